"""Swaps: in place, across servers, the way back, and the guard over the schema that lets one happen. What comes before
a swap's transaction (readiness, indexes), and what comes after it (follow-ups).

Bringing a copy up to date belongs to `following`; what stands on a table is read and carried over by
`apply.dependents`."""
