"""Pure schema comparison: no connection, no I/O."""
