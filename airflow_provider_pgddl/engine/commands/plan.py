"""plan: every statement that the stages would run on relations of users, with the locks that it takes. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log, slot_log
from airflow_provider_pgddl.engine.ddl.constraint_nodes import not_valid
from airflow_provider_pgddl.engine.ddl.dump_phases import Phase
from airflow_provider_pgddl.engine.ddl.lock_modes import locks
from airflow_provider_pgddl.engine.ddl.relocate import old_schema
from airflow_provider_pgddl.engine.following.adopted_tables import different
from airflow_provider_pgddl.engine.following.ddl import captures_ddl
from airflow_provider_pgddl.engine.following.plans import first_plan
from airflow_provider_pgddl.engine.following.replacing_dump import live_tables
from airflow_provider_pgddl.engine.following.source_dump import DumpStep, dump_events, in_place_steps, steps_across
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import written
from airflow_provider_pgddl.engine.pipeline.selection import check_columns, matches
from airflow_provider_pgddl.engine.preflight import preflight
from airflow_provider_pgddl.engine.preflight.findings import refuse
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.server.strong_locks import lock_statement
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.swapping import in_place, replacing

PlannedStatements = Iterator[dict[str, Any]]


def plan(pipeline: Pipeline, source_dsn: str, target_dsn: str) -> dict[str, Any]:
    """`{"pipeline", "job", "stages": {stage: {"statements": […], "notes": […]}}}` of a run that would begin now; a
    statement is `{"on": "source" | "target", "statement", "locks": [{"relation", "mode"}]}`.

    PreflightRefused where setup would refuse."""
    with (
        connect(source_dsn, purpose="plan", pipeline=pipeline.pipeline) as source,
        connect(target_dsn, purpose="plan", pipeline=pipeline.pipeline) as target,
    ):
        draft = _Draft(pipeline, source_dsn, target_dsn, source, target)
        steps = _steps(draft)
        return {
            "pipeline": pipeline.pipeline,
            "job": "rewrite" if pipeline.in_place else "migrate",
            "stages": {
                "setup": _stage(_capture(draft), _migrations(draft)),
                "snapshot": _stage(
                    _of_phase(steps, "create"), [*_skipped(steps), *_adopted(draft), *_partitions(draft)]
                ),
                "backfill": _stage((), [*map(partial(_chunks, draft), draft.captured()), *_in_part(draft)]),
                "schema_sync": _stage(_of_phase(steps, "index"), ["every copy is analyzed", *_compared(draft)]),
                "replay": _stage((), ["windows: ACCESS SHARE on the source's tables, for one snapshot each"]),
                "verify": _stage((), ["both sides are read range by range: ACCESS SHARE"]),
                "swap": _stage(_swap(draft, steps), _swap_notes(draft)),
                "cleanup": _stage(_cleanup(draft), _of_replaced(draft)),
            },
        }


class _Draft(Context):
    """A run that has not begun: its tables as setup would record them, and no journal."""

    def __init__(self, pipeline: Pipeline, source_dsn: str, target_dsn: str, source: Any, target: Any):
        self.job, self.pipeline, self.name = Job("plan", pipeline), pipeline, pipeline.pipeline
        self.source_dsn, self.target_dsn, self.source, self.target = source_dsn, target_dsn, source, target
        everything = catalog.describe_all(source)
        selection = matches(pipeline, sorted(everything), partitions=catalog.partitions(source))
        check_columns(pipeline, {name: [c.name for c in t.columns] for name, t in everything.items()})
        findings = preflight(pipeline, source, target, selection.rows)
        refuse([*findings, *different(pipeline, source, target, selection.rows)])
        self.described = {name: everything[name] for name in selection.rows}
        self._tables = [_row(pipeline, number, table) for number, table in enumerate(self.described.values(), 1)]
        if pipeline.tables.existing == "adopt" and not pipeline.in_place:
            there = catalog.oids_of(target, selection.rows)
            self._tables = [_taken(t) if (t.schema, t.name) in there else t for t in self._tables]

    def tables(self) -> list[TableRow]:
        return self._tables

    def healthy(self, tables: Sequence[TableRow], *_: str) -> list[TableRow]:
        return list(tables)

    def adopted(self) -> list[TableRow]:
        return [t for t in self._tables if t.plan.adopted]

    def given_way(self) -> list[Name]:
        """Tables of the target's own that the swap replaces."""
        return [*live_tables(self.target, [*self.described])] if self.pipeline.replaces else []

    def captured(self) -> list[Table]:
        """Those with a key: the others are copied whole at the swap."""
        return [t for t in self.described.values() if t.key is not None]

    def say(self, text: str) -> None:
        pass


def _row(pipeline: Pipeline, number: int, table: Table) -> TableRow:
    log, plan_ = change_log.log_name(pipeline.pipeline, table.oid), first_plan(pipeline, table)
    return TableRow(number, table.schema, table.name, table.oid, log, plan_, {}, "", {}, "captured", planned=False)


def _taken(table: TableRow) -> TableRow:
    """One that the target has. Whether it has rows is for the snapshot to see: nobody reads any for a plan."""
    return replace(table, plan=replace(table.plan, adopted="uncompared"))


def _stage(statements: Iterable[dict[str, Any]], notes: Iterable[str] = ()) -> dict[str, Any]:
    return {"statements": list(statements), "notes": list(notes)}


def _told(on: str, statement: sql.Composable | str) -> dict[str, Any]:
    text = statement if isinstance(statement, str) else statement.as_string()
    found = [{"relation": sql.Identifier(*name).as_string(), "mode": mode} for name, mode in locks(text)]
    return {"on": on, "statement": text, "locks": found}


def _migrations(draft: _Draft) -> Iterator[str]:
    sets = [(draft.target, "target", "journal"), (draft.source, "source", "core")]
    if draft.pipeline.capture.identities:
        sets.append((draft.source, "source", "injector"))
    for conn, where, name in sets:
        if pending := migrations.state(conn, name)["pending"]:
            yield f"schema pgddl on the {where}: set {name}, versions {', '.join(map(str, pending))}"
    if captures_ddl(draft):
        yield "event triggers on the source record DDL; none of them locks a table"


def _capture(draft: _Draft) -> PlannedStatements:
    for table in draft.captured():
        if draft.pipeline.by_slot:
            yield _told("source", change_log.lock_against_writers(table))
            for leaf in table.leaves:
                yield _told("source", slot_log.publish_statement(draft.source, draft.name, table, leaf))
            continue
        for leaf in table.leaves:
            yield from (_told("source", statement) for statement in change_log.trigger_statements(draft.name, leaf))


def _steps(draft: _Draft) -> list[DumpStep]:
    events = dump_events(draft)
    return list(in_place_steps(draft, events) if draft.in_place else steps_across(draft, events))


def _of_phase(steps: Iterable[DumpStep], *phases: Phase) -> PlannedStatements:
    return (_told("target", s.statement) for s in steps if s.event.phase in phases and s.status != "skipped")


def _skipped(steps: Iterable[DumpStep]) -> list[str]:
    counts: dict[str, int] = {}
    for step in steps:
        if step.status == "skipped" and step.note:
            counts[step.note] = counts.get(step.note, 0) + 1
    return [f"{n} left out: {note}" for note, n in counts.items()]


def _adopted(draft: _Draft) -> Iterator[str]:
    for table in draft.adopted():
        yield f"{table.qualified}: the target's own table is taken as it is, with its indexes and constraints"


def _compared(draft: _Draft) -> Iterator[str]:
    told = {
        None: "rows that only the target has end the stage, which says how many (tables.keep_extra)",
        True: "rows that only the target has stay",
        False: "rows that only the target has are removed",
    }
    for table in (t for t in draft.adopted() if not t.keyless):
        what = "if the target's has rows, both are read range by range, and what differs is read again"
        yield f"{table.qualified}: {what}; {told[draft.pipeline.tables.keep_extra]}"


def _partitions(draft: _Draft) -> Iterator[str]:
    """Which ones there will be is for the rows to say, and nobody reads all of them for a plan."""
    for table in draft.tables():
        if table.plan.split is not None:
            yield (
                f"{table.qualified}: CREATE TABLE … PARTITION OF {table.plan.copy.as_string()} for what its rows need, "
                "here and whenever others come; the swap moves each by SET SCHEMA, with the copy. No lock on the table"
            )


def _in_part(draft: _Draft) -> list[str]:
    """Of which tables not all rows, or other values, are on the target; in every stage behind."""
    read = draft.pipeline.rows_read
    return [f"{written(*table)}: {read[table]}" for table in draft.described if table in read]


def _chunks(draft: _Draft, table: Table) -> str:
    sizes = draft.source.execute(queries("catalog")["sizes"], {"oids": [leaf.oid for leaf in table.leaves]}).fetchall()
    size = sum(total for _, _, total in sizes)
    chunks = sum(-(-total // draft.pipeline.backfill.chunk_bytes) for _, blocks, total in sizes if blocks)
    if_empty = ", if the target's own table is empty" if table.oid in {t.oid for t in draft.adopted()} else ""
    what = f"{size:,} bytes in about {chunks:,} chunks, each under ACCESS SHARE for its own time"
    return f"{table.qualified}: {what}{if_empty}"


def _swap(draft: _Draft, steps: Iterable[DumpStep]) -> PlannedStatements:
    if not draft.in_place:
        given_way = replacing.read(draft, draft.tables()) if draft.pipeline.replaces else None
        if given_way:
            yield from (_told("target", statement) for statement in _exchange(draft, given_way))
        yield from (
            _told("target", _added_later(draft, s))
            for s in steps
            if s.event.phase == "foreign_key" and s.status != "skipped"
        )
        if given_way:
            yield from (_told("target", statement) for statement in _carried_over(draft, given_way))
        yield from _of_phase(steps, "finish")
        return
    conn, tables = draft.source, draft.tables()
    keys = in_place.foreign_keys(conn, [t.oid for t in tables])
    carried = in_place.read_dependents(draft.pipeline, conn, tables)
    leaving, coming = carried.statements(in_place.replaced_names(tables))
    locked = sorted({*in_place.involved(tables, keys), *carried.tables})
    yield from (_told("source", statement) for statement in carried.views)
    yield _told("source", lock_statement(locked, "ACCESS EXCLUSIVE"))
    yield from (_told("source", in_place.drop_statement(key)) for key in keys)
    yield from (_told("source", statement) for statement in leaving)
    for table in tables:
        away, move = sql.SQL("ALTER TABLE {} SET SCHEMA {}"), sql.Identifier(table.schema, table.name)
        yield _told("source", away.format(move, sql.Identifier(old_schema(table.schema))))
        yield _told("source", away.format(table.plan.copy, sql.Identifier(table.schema)))
    yield from (_told("source", in_place.add_statement(key)) for key in keys)
    yield from (_told("source", statement) for statement in coming)
    yield from _of_phase(steps, "finish")


def _exchange(draft: _Draft, standing: replacing.Standing) -> Iterator[sql.Composable | str]:
    """The target's own tables away, the copies in."""
    yield from standing.carried.views
    if locked := standing.locked():
        yield lock_statement(locked, "ACCESS EXCLUSIVE")
    yield from map(in_place.drop_statement, standing.keys)
    leaving, _ = standing.carried.statements(_given_way(draft, standing))
    yield from leaving
    move = sql.SQL("ALTER TABLE {} SET SCHEMA {}")
    for schema, name in standing.old:
        yield move.format(sql.Identifier(schema, name), sql.Identifier(old_schema(schema)))
    for table in draft.tables():
        yield move.format(table.plan.copy, sql.Identifier(table.schema))


def _carried_over(draft: _Draft, standing: replacing.Standing) -> Iterator[sql.Composable | str]:
    yield from map(in_place.add_statement, standing.of_others())
    _, coming = standing.carried.statements(_given_way(draft, standing))
    yield from coming


def _given_way(draft: _Draft, standing: replacing.Standing) -> Mapping[Name, Name]:
    return in_place.replaced_names([t for t in draft.tables() if (t.schema, t.name) in standing.old])


def _added_later(draft: _Draft, step: DumpStep) -> str:
    """As the cut-over adds a foreign key: a partitioned table takes NOT VALID ones from 18 on (C23)."""
    table = draft.described.get(step.event.table) if step.event.table else None
    later = catalog.server(draft.target).major >= 18 or table is None or table.kind != "p"
    return not_valid(step.statement) if later else step.statement


def _swap_notes(draft: _Draft) -> list[str]:
    fence = draft.pipeline.swap.fence
    keyless = [t.qualified for t in draft.described.values() if t.key is None]
    notes = [f"copied whole, while their writers wait: {', '.join(keyless)}"] if keyless else []
    notes.append(
        "`pgddl run swap --dry-run`, once replay is through, shows it to the last statement and how long it takes"
    )
    if not draft.in_place and fence != "none":
        notes.append(f"before: the fence ({fence}) on the source's tables")
    if draft.in_place and draft.pipeline.swap.keep_old:
        notes.append("for the way back, triggers on the new tables log what is written to them; cleanup drops them")
    return [*notes, "after: foreign keys are validated, SHARE UPDATE EXCLUSIVE"]


def _cleanup(draft: _Draft) -> PlannedStatements:
    for table in draft.tables():
        schema = old_schema(table.schema) if draft.in_place else table.schema
        described = draft.described[table.schema, table.name]
        for leaf in described.leaves if described.key else ():
            relation = sql.Identifier(schema if draft.in_place else leaf.schema, leaf.name)
            if draft.pipeline.by_slot:
                publication = sql.Identifier(change_log.publication_name(draft.name))
                drop = sql.SQL("ALTER PUBLICATION {} DROP TABLE ONLY {}")
                yield _told("source", drop.format(publication, relation))
                continue
            for trigger in change_log.trigger_names(draft.name):
                drop = sql.SQL("DROP TRIGGER IF EXISTS {} ON {}")
                yield _told("source", drop.format(sql.Identifier(trigger), relation))
        if draft.in_place:
            yield _told("source", sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, table.name)))
    for schema, name in draft.given_way():
        yield _told("target", sql.SQL("DROP TABLE {}").format(sql.Identifier(old_schema(schema), name)))


def _of_replaced(draft: _Draft) -> Iterator[str]:
    told = {
        None: "with rows that the new one has not got it ends the stage, which says how many (tables.keep_extra)",
        True: "with rows that the new one has not got it stays",
        False: "its rows go with it",
    }
    for schema, name in draft.given_way():
        replaced = sql.Identifier(old_schema(schema), name).as_string()
        yield f"{replaced}, which was replaced: {told[draft.pipeline.tables.keep_extra]}"


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """For people: what `plan` returns, as SQL with comments."""
    for stage, told in found["stages"].items():
        yield f"-- {stage}"
        yield from (f"--   {note}" for note in told["notes"])
        for one in told["statements"]:
            yield f"{one['statement']};"
            yield from (f"    -- {lock['mode']} on {lock['relation']} ({one['on']})" for lock in one["locks"])
