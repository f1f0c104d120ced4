"""Names of relations, types and other objects: a schema's name and the object's own, as the catalog has them."""

from __future__ import annotations

Name = tuple[str, str]
"""(schema, name), not quoted."""
