"""SQL by name: every `.sql` file beside this one holds one subject, as blocks headed by `-- name: x`. The folders
`core`, `injector` and `journal` are versioned sets, which `journal.migrations` applies: what has been released never
changes.

SQL that is put together from names stands where it is made."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import LiteralString


@cache
def queries(subject: str) -> dict[str, LiteralString]:
    """The named queries of `<subject>.sql`; KeyError for a name that is not there."""
    text = files(__package__).joinpath(f"{subject}.sql").read_text(encoding="utf-8")
    found: dict[str, LiteralString] = {}
    for block in text.split("-- name: ")[1:]:
        name, _, body = block.partition("\n")
        found[name.strip()] = body.strip()
    return found
