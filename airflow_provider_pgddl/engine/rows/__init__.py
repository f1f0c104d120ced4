"""Rows on their way: `chunks` and COPY; `windows` with their change log and pending keys, which `fill` reads;
`range_checksums`, which compares a range of both sides, and `timed_comparison`, which says how many fit into a window's
time; and what of a copy stands in the way (its shape, columns of its own, foreign keys and triggers, partitions).

When a window is run belongs to `following`; what keeps the change log, to `capture`."""
