"""Swaps: in place, across servers, the way back, and the guard over the schema that lets one happen.

Bringing a copy up to date belongs to `following`."""
