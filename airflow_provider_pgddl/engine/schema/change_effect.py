"""What a change of a table asks for before windows may go on: nothing but a new plan, its rows again, or its capture
as well. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.schema.definitions import same_expression


@dataclass(frozen=True, slots=True)
class Change:
    """`plan`: rows and log still mean what they meant. `leaves`: so they do but for these partitions, whose rows have
    to be read. `part`: so they do but for rows that belong on the target now and did not, or the other way.
    `reload`: all rows have to be read again. `capture`: the log has to be made anew, then all rows read."""

    what: Literal["plan", "leaves", "part", "reload", "capture"]
    why: str
    leaves: tuple[int, ...] = ()


def was_rewritten(before: dict[str, list[Any]], now: dict[str, list[Any]], gone: int = 0) -> bool:
    """Whether a copy may hold other values than it did (both `Table.physical`): ALTER TABLE has written its rows anew,
    or another table has taken its place or that of a partition; `gone` are the partitions that the source has lost.
    VACUUM FULL and TRUNCATE leave the columns as they were."""
    if len(before.keys() - now.keys()) > gone:
        return True
    return any(
        now[leaf][0] != filenode and now[leaf][1] != attributes
        for leaf, (filenode, attributes, _) in before.items()
        if leaf in now
    )


def change_of(
    version: dict[str, Any],
    physical: dict[str, list[Any]],
    key: tuple[str, ...],
    key_types: tuple[str, ...],
    now: Table,
    *,
    read: Collection[str],
    lost_track: bool,
    born_empty: Collection[int],
) -> Change:
    """What has become of a table since its version was recorded.

    `read` are the names that what is copied of it was made of. `lost_track`: its log says that it does not know what
    changed. `born_empty` are partitions that were captured from their creation on.
    """
    numbers = [version["attnums"].get(name) for name in key]
    columns = {c.name: c for c in now.columns}
    key_now = [(columns[k].attnum, columns[k].base_type) for k in now.key.columns] if now.key else []
    if lost_track:
        return Change("capture", "its log does not tell which rows changed")
    if key_now != list(zip(numbers, key_types, strict=True)):
        return Change("capture", f"its key changed (it was {', '.join(key)})")
    bare = [leaf for leaf in now.leaves if leaf.triggers is None]
    if bare:
        return Change("capture", f"{bare[0].schema}.{bare[0].name} was not captured")
    for leaf in now.leaves:
        was = physical.get(str(leaf.oid))
        if was is None:
            continue
        filenode, attributes, triggers = was
        if leaf.triggers != triggers:
            return Change("capture", f"the capture of {leaf.schema}.{leaf.name} was off for a while, or altered")
        if leaf.filenode != filenode and leaf.attributes != attributes:
            return Change("reload", f"{leaf.schema}.{leaf.name} was rewritten by ALTER TABLE")
    if (column := _computed_otherwise(version, now, read)) is not None:
        return Change("reload", f"column {column} is computed by another expression")
    new = tuple(x.oid for x in now.leaves if str(x.oid) not in physical and x.oid not in born_empty)
    if new:
        return Change("leaves", f"{len(new)} partition(s) came with rows", new)
    return Change("plan", "its columns or name changed")


def _computed_otherwise(version: dict[str, Any], now: Table, read: Collection[str]) -> str | None:
    """A generated column whose values, which are read, are others than they were. Those of a virtual one are in no
    file: another expression writes nothing anew, and fires no trigger."""
    names = {number: name for name, number in version["attnums"].items()}
    renamed = {names[c.attnum]: c.name for c in now.columns if names.get(c.attnum, c.name) != c.name}
    whole_rows = not {*read} <= {*names.values()}
    for column in now.columns:
        name = names.get(column.attnum)
        if name is None or not column.generated or not (whole_rows or name in read):
            continue
        was = version["columns"][name]
        if was["generated"] and not same_expression(was["default"] or "", column.default or "", renamed):
            return column.name
    return None
