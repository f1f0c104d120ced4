"""One operator a stage."""
