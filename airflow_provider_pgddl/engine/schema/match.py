"""Whether a copy still takes what its source gives: a strict comparison of two structures (`Table.structure`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def mismatches(
    source: Mapping[str, Any], copy: Mapping[str, Any], *, altered: Collection[str], skipped: Collection[str]
) -> list[str]:
    """Findings that would lose or corrupt data; `altered` columns were given another shape on purpose."""
    findings = []
    there, here = source["columns"], copy["columns"]
    for name, column in there.items():
        if name in skipped or name in altered:
            continue
        if name not in here:
            findings.append(f"column {name} is missing on the copy")
            continue
        for what in ("type", "generated", "collation"):
            if column[what] != here[name][what]:
                findings.append(
                    f"column {name}: {what} is {column[what]!r} on the source, {here[name][what]!r} on the copy"
                )
    for name, column in here.items():
        if name not in there and column["not_null"] and column["default"] is None and not column["identity"]:
            findings.append(f"column {name} of the copy takes no NULL, and the source has no such column")
    if source["key"] != copy["key"]:
        findings.append(f"the key is {source['key']} on the source, {copy['key']} on the copy")
    return findings
