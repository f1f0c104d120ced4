"""What a command did that its rebuilt statements would leave out: the facts in `rest`, which nobody writes. Pure.

Left aside is what the server does by itself in the course of these statements: what a partition has from its parent,
what a new type sets back, what goes with an index or a trigger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from airflow_provider_pgddl.engine.ddl.captured_events import ColumnMeta, TableMeta
from airflow_provider_pgddl.engine.ddl.create_table import World, column
from airflow_provider_pgddl.engine.errors import CannotRebuild
from airflow_provider_pgddl.engine.schema.table_versions import name_of, rest_of, table_diff


def refuse_made(meta: TableMeta, world: World, settings: Mapping[str, str]) -> None:
    """Raises CannotRebuild where a new table has what CREATE TABLE would not give it here. `settings`: the client's,
    which the statements are run under."""
    given = {
        f"tablespace {settings.get('default_tablespace')}",
        f"access method {settings.get('default_table_access_method')}",
    }
    parents = [parent for name in meta["parents"] if (parent := world.named(name)) is not None]
    inherited = frozenset[str]().union(*(rest_of(parent) for parent in parents))
    missing: list[tuple[str | None, str]] = [(None, part) for part in sorted(rest_of(meta) - given - inherited)]
    for c in meta["columns"]:
        theirs = [twin for parent in parents if (twin := column(parent, c["name"])) is not None]
        left = rest_of(c).difference(*(rest_of(twin) for twin in theirs))
        missing += [(c["name"], part) for part in sorted(left)]
    _refuse(meta, missing)


def refuse_changed(
    before: TableMeta, after: TableMeta, world: World, subjects: Collection[int], gone: Collection[str]
) -> None:
    """Raises CannotRebuild where a table, or a descendant that only took part, differs in what ALTER TABLE would not
    do. `gone`: names of the indexes, constraints and triggers that the event dropped."""
    _refuse(
        after, [*_changed(before, after, gone), *((c["name"], p) for c in _added(before, after) for p in rest_of(c))]
    )
    for was, part in world.descendants(after):
        if was is not None and part["oid"] not in subjects and was["parents"] == part["parents"]:
            _refuse(part, [*_changed(was, part, gone)])


def _added(before: TableMeta, after: TableMeta) -> Iterator[ColumnMeta]:
    yield from (c for c in table_diff(before, after).columns_added if c["local"])


def _changed(before: TableMeta, after: TableMeta, gone: Collection[str]) -> Iterator[tuple[str | None, str]]:
    change = table_diff(before, after)
    if change.rest:
        for part in sorted(rest_of(before) ^ rest_of(after)):
            if part in rest_of(after) or not any(part.endswith(f" {name}") for name in gone):
                yield None, part
    for c in change.columns:
        was, is_ = rest_of(c.before), rest_of(c.after)
        if c.retyped:  # ALTER TYPE sets these back
            was = frozenset(part for part in was if not part.startswith(("storage ", "compression ")))
        yield from ((c.after["name"], part) for part in sorted(was ^ is_))


def _refuse(meta: TableMeta, missing: Collection[tuple[str | None, str]]) -> None:
    if missing:
        told = ", ".join(f"column {of}: {part}" if of else part for of, part in missing)
        raise CannotRebuild(f"it changed what is not rebuilt ({told})", table=".".join(name_of(meta)))
