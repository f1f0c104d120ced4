"""Change capture on the source."""
