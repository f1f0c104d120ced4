"""Rows on their way: chunks and COPY, windows with their change log and pending keys, ranges and checksums, and what of
a copy stands in the way (its shape, columns of its own, foreign keys and triggers, partitions).

When a window is run belongs to `following`; what keeps the change log, to `capture`."""
