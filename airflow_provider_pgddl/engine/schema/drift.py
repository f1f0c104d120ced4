"""What changed in a table since its plan was made: findings as sentences, none where the plan still holds."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgddl.engine.model.tables import Table

AGAIN = "its rows have to be copied again: `pgddl reset --tables` this table, then run from setup"


def drift(version: dict[str, Any], physical: dict[str, list[Any]], now: Table | None) -> list[str]:
    """Findings against the recorded structure and the recorded files and triggers (`Table.structure`,
    `Table.physical`)."""
    if now is None:
        return ["was dropped on the source"]
    return structure_drift(version, now.version()) or physical_drift(physical, now, followed=bool(version["key"]))


def structure_drift(recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Differences between two versions of one table."""
    findings = []
    for what in ("schema", "name"):
        if recorded[what] != now[what]:
            findings.append(f"its {what} was changed from {recorded[what]} to {now[what]}")
    before, after = recorded["columns"], now["columns"]
    findings += [f"column {c} was added ({after[c]['type']})" for c in after if c not in before]
    findings += [f"column {c} was dropped or renamed" for c in before if c not in after]
    numbers, numbers_now = recorded.get("attnums", {}), now.get("attnums", {})
    findings += [
        f"column {c} was dropped, and another of this name added"
        for c in numbers
        if numbers_now.get(c, numbers[c]) != numbers[c]
    ]
    for c in before:
        for what, was in before[c].items():
            if c in after and after[c][what] != was:
                findings.append(f"column {c}: {what.replace('_', ' ')} was {was!r}, is {after[c][what]!r}")
    if recorded["key"] != now["key"]:
        findings.append(f"its key was ({_list(recorded['key'])}), is ({_list(now['key'])})")
    for part in sorted(now["partitions"].keys() - recorded["partitions"].keys()):
        findings.append(f"partition {part} was created or attached")
    for part in sorted(recorded["partitions"].keys() - now["partitions"].keys()):
        findings.append(f"partition {part} was dropped or detached")
    for what in ("kind", "persistence", "partition_key"):
        if recorded[what] != now[what]:
            findings.append(f"its {what.replace('_', ' ')} was {recorded[what]!r}, is {now[what]!r}")
    for part, bound in recorded["partitions"].items():
        if part in now["partitions"] and now["partitions"][part] != bound:
            findings.append(f"partition {part}: its bound was {bound}, is {now['partitions'][part]}")
    return findings


def physical_drift(recorded: dict[str, list[Any]], now: Table, *, followed: bool) -> list[str]:
    """What a structure does not show: capture switched off for a while (C9), or a rewrite that changed values.
    `followed`: its changes are, as it has a key; capture that is off is a finding then, whatever is recorded.

    A new file alone is VACUUM FULL, CLUSTER or TRUNCATE, none of which changes a row behind the change log's back; a
    new file together with altered columns is ALTER TABLE … TYPE … USING, which may."""
    findings = []
    for leaf in now.leaves:
        was = recorded.get(str(leaf.oid))
        if was is None:
            findings.append(f"{leaf.schema}.{leaf.name} is not the relation that was captured; {AGAIN}")
            continue
        filenode, attributes, triggers = was
        if leaf.triggers != triggers or (followed and leaf.triggers is None):
            findings.append(
                f"the capture of {leaf.schema}.{leaf.name} was disabled, dropped or altered, "
                f"so writes may have been missed; {AGAIN}"
            )
        if leaf.filenode != filenode and leaf.attributes != attributes:
            findings.append(f"{leaf.schema}.{leaf.name} was rewritten by ALTER TABLE; {AGAIN}")
    return findings


def in_same_files(recorded: dict[str, list[Any]], now: dict[str, list[Any]]) -> bool:
    """Whether every leaf is in the file that is recorded of it (both `Table.physical`), as the snapshot and the server
    say alike (0 where they do not): so nothing can have been rewritten in between."""
    files, files_now = ({leaf: facts[0] for leaf, facts in physical.items()} for physical in (recorded, now))
    return files == files_now and all(files.values())


def _list(names: list[str] | None) -> str:
    return ", ".join(names) if names else "none"
