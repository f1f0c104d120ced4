"""The schema gate."""
