"""Source and target as they are now, table by table: what differs, and what the policy makes of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_pgddl.engine.ddl.relocate import copy_schema
from airflow_provider_pgddl.engine.ddl.rewrite_actions import alter_actions
from airflow_provider_pgddl.engine.following.plans import skipped_columns
from airflow_provider_pgddl.engine.following.rows_read import NOTHING, beside_the_expressions, unreadable
from airflow_provider_pgddl.engine.journal.schema import Recorded
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model import tables
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.schema.compatibility import compare_tables
from airflow_provider_pgddl.engine.schema.difference import Difference
from airflow_provider_pgddl.engine.schema.names import sql_name
from airflow_provider_pgddl.engine.schema.policy import judge, judge_missing
from airflow_provider_pgddl.engine.schema.table_model import Schemas, TableModel
from airflow_provider_pgddl.engine.schema.table_policy import TablePolicy
from airflow_provider_pgddl.engine.schema.verdict import SchemaFinding, Verdict
from airflow_provider_pgddl.engine.server import schema_reading
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

COPY_LEFT = "was dropped on the source, and its copy is still there"
KEYLESS = "has no key, so its changes cannot be followed: give it a primary key, or leave it out (tables.exclude)"
AT_SWAP = "has no key: no change of it is followed, it is copied whole at the swap while its writers wait"
LOST_KEY = (
    "has lost its key, so its changes cannot be followed: give it one again, or `pgddl reset --tables` it and run again"
    " from setup, which leaves it to be copied whole at the swap"
)
INDEXED = ("indexed", "swapped", "cleaned")


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One table on both sides. `skipped` are the source's columns (attnum as text) that the file leaves out, each with
    its name in the file."""

    source: TableModel | None
    target: TableModel | None
    differences: tuple[Difference, ...]
    verdict: Verdict
    skipped: Mapping[str, str]


def evaluate(
    pipeline: Pipeline,
    source: Session,
    target: Session,
    rows: Sequence[TableRow] | None,
    names: Collection[Name],
    *,
    seen: Schemas | None = None,
) -> dict[Name, Evaluated]:
    """The tables of the journal (`rows`, by their recorded names) and others by name, both sides read once; of the
    source what was `seen` of it, where that is given.

    A table is found on the source by its oid where it is recorded, whatever it is called now."""
    rows = list(rows or ())
    present = _present(source, rows) if seen is None else {t.oid: name for name, t in seen.tables.items()}
    wanted = {**{(r.schema, r.name): present.get(r.oid) for r in rows}, **{n: n for n in names}}
    there = seen or schema_reading.read(source, [name for name in wanted.values() if name is not None])
    copies = {name: _copy_name(pipeline, now or name) for name, now in wanted.items()}
    old = {(r.plan.copy_schema, r.plan.copy_name) for r in rows}
    here = schema_reading.read(target, {*copies.values(), *old})
    by_name = {(r.schema, r.name): r for r in rows}
    # What has a renamed table's name on the target is its copy only where its own has not kept its old name.
    strange = {copy for name, copy in copies.items() if wanted[name] not in (None, name) and copy not in old}
    return {
        name: _evaluate(pipeline, name, now, there, here, copies[name], by_name.get(name), target.info.user, strange)
        for name, now in wanted.items()
    }


def _present(source: Session, rows: Sequence[TableRow]) -> dict[int, Name]:
    found = source.execute(queries("catalog")["relations"], {"oids": [r.oid for r in rows]}) if rows else ()
    return {oid: (schema, name) for oid, schema, name, _, _ in found}


def _copy_name(pipeline: Pipeline, name: Name) -> Name:
    return (copy_schema(name[0]), name[1]) if pipeline.beside else name


def _evaluate(
    pipeline: Pipeline,
    name: Name,
    now: Name | None,
    there: Schemas,
    here: Schemas,
    copy: Name,
    row: TableRow | None,
    role: str,
    strange: Collection[Name],
) -> Evaluated:
    source = there.tables.get(now) if now else None
    if source is not None and row is not None and source.oid != row.oid:
        source = None  # another table has its name since we asked
    target = here.tables.get(copy)
    if source is not None and (found := unreadable(pipeline, name, source, row.version if row else None)):
        return Evaluated(source, target, (), Verdict("mismatch", found), {})
    if source is not None and (target is None if row is None else row.state == "captured"):
        what = f"{sql_name(*copy)} is not on the target yet: the snapshot makes it"
        finding = SchemaFinding("missing_on_target", "info", what, source=sql_name(*name))
        return Evaluated(source, None, (), Verdict("compatible", (finding,)), {})
    former = _former_copy(row, here)
    if source is not None and former is not None and (target is None or copy in strange):
        finding = _renamed(name, now or name, (former.schema, former.name), copy, taken=target is not None)
        return Evaluated(source, former, (), Verdict("mismatch", (finding,)), {})
    skipped = _skipped(pipeline, source, row)
    altered = altered_columns(pipeline, name)
    differences = compare_tables(
        source,
        target,
        here.types,
        removed=removed_columns(row, source),
        renamed=_renamed_columns(row, source),
        altered=altered,
        keyed=row is None or row.state in INDEXED,
        names=(now or name, copy),
        major=here.major,
        role=role,
    )
    differences = [d for d in differences if d.finding.column is None or d.finding.column not in altered]
    if target is not None and source is not None and row is not None and row.plan.split is not None:
        # The partition key is part of the copy's key (C23), by whose first columns rows are found again.
        extended = {*(source.key or ()), row.plan.split.column} == {*(target.key or ())}
        differences = [d for d in differences if d.finding.kind != "key" or not extended]
    if source is None or target is None or any(d.finding.kind == "not_a_table" for d in differences):
        missing = judge_missing(differences, TablePolicy.of(pipeline, name))
        return Evaluated(source, target, tuple(differences), missing, skipped)
    skip = [c.name for c in source.columns if str(c.attnum) in skipped]
    verdict = judge(source, target, differences, TablePolicy.of(pipeline, name, skip=skip))
    if beside := beside_the_expressions(pipeline.rows_read.get(name, NOTHING), verdict):
        verdict = replace(verdict, status="mismatch", findings=(*verdict.findings, *beside))
    return Evaluated(source, target, tuple(differences), verdict, skipped)


def _skipped(pipeline: Pipeline, source: TableModel | None, row: TableRow | None) -> dict[str, str]:
    if source is None:
        return {}
    numbers = {c.name: c.attnum for c in source.columns}
    return skipped_columns(pipeline, (source.schema, source.name), numbers, row.plan.columns.left_out if row else {})


def altered_columns(pipeline: Pipeline, name: Name) -> set[str]:
    """The columns that rewrite.alter gives another shape on purpose."""
    rewrite = pipeline.rewrites.get(name) if pipeline.in_place else None
    return {a.column for a in alter_actions(rewrite.alter) if a.column} if rewrite else set()


def removed_columns(row: TableRow | None, source: TableModel | None) -> list[str]:
    """Columns that the source had once, and has no more."""
    if row is None:
        return []
    now = {c.name for c in source.columns} if source else set()
    return sorted({*row.removed_columns, *row.version["columns"]} - now)


def _renamed_columns(row: TableRow | None, source: TableModel | None) -> dict[str, str]:
    if row is None or source is None:
        return {}
    names = {c.attnum: c.name for c in source.columns}
    taken = set(names.values())
    return {
        was: names[number]
        for was, number in row.version.get("attnums", {}).items()
        if was not in taken and number in names
    }


def _former_copy(row: TableRow | None, here: Schemas) -> TableModel | None:
    """What still has the copy's recorded name, if it is the copy: a view may have taken the name of a renamed table."""
    there = here.tables.get((row.plan.copy_schema, row.plan.copy_name)) if row is not None else None
    if row is None or there is None:
        return None
    known = row.copy_physical  # of a partitioned table: its leaves
    split = row.plan.partitioned or row.plan.split
    is_it = there.relkind == "p" if split else not known or str(there.oid) in known
    return there if is_it else None


def _renamed(name: Name, now: Name, former: Name, copy: Name, *, taken: bool) -> SchemaFinding:
    """`taken`: what has the new name on the target is none of the pipeline's, so no row of it is touched."""
    what = f"Source table {sql_name(*name)} is called {sql_name(*now)} now; the target still has {sql_name(*former)}"
    fix = []
    if taken:
        what += f", and another table of the name {sql_name(*copy)}"
        fix.append(f"ALTER TABLE {sql_name(*copy)} RENAME TO {sql_name(copy[1] + '_before_pgddl')};")
    if former[0] != copy[0]:
        fix.append(f"ALTER TABLE {sql_name(*former)} SET SCHEMA {sql_name(copy[0])};")
    if former[1] != copy[1]:
        fix.append(f"ALTER TABLE {sql_name(copy[0], former[1])} RENAME TO {sql_name(copy[1])};")
    return SchemaFinding(
        "missing_on_target",
        "mismatch",
        what,
        source=sql_name(*now),
        target=sql_name(*former),
        fix=tuple(fix),
        reason="missing_table",
    )


def is_as_described(source: TableModel, table: tables.Table) -> bool:
    """Whether two looks at a table of the source, at two moments, saw the same columns and key."""
    seen = [(c.attnum, c.name, c.type, c.generated) for c in table.columns]
    return seen == [(c.attnum, c.name, c.type.text, c.generated) for c in source.columns] and source.key == (
        table.key.columns if table.key else None
    )


def recorded(evaluated: Evaluated, *more: SchemaFinding) -> Recorded:
    """A verdict as the journal keeps it."""
    from airflow_provider_pgddl.engine.schema.report import resolution  # with rich behind it

    verdict = evaluated.verdict
    findings = (*verdict.findings, *more)
    status = "mismatch" if more else verdict.status
    prints = [side.fingerprint() if side else None for side in (evaluated.source, evaluated.target)]
    return status, findings, resolution(findings), (prints[0], prints[1])
