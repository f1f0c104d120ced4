"""Whether all that the source's schema has become was carried over: what nobody carried must not vanish at a swap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.grants import taken_back
from airflow_provider_pgddl.engine.ddl.quoting import bare
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.following.ddl import captures_ddl, ddl_held
from airflow_provider_pgddl.engine.following.left_out import without_left_out
from airflow_provider_pgddl.engine.following.missing_definitions import without_finished
from airflow_provider_pgddl.engine.following.schema_comparison import altered_columns, evaluate
from airflow_provider_pgddl.engine.following.source_dump import schema_digest, settled_dump
from airflow_provider_pgddl.engine.following.target_dump import Arrived
from airflow_provider_pgddl.engine.following.waiting_statements import parts_of, replace_pending
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.rows.windows import stopped_by_drift
from airflow_provider_pgddl.engine.schema.definitions import named_checks, same_constraint, same_expression
from airflow_provider_pgddl.engine.schema.table_model import TableModel
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.swapping.indexes import carry_indexes, carry_late, carry_marks, name_as_on_source

# What the target shows as the source does, but for tables in it that the policy gives another shape.
_ALIKE = ("schema", "type", "domain", "function", "procedure", "aggregate", "view")

NAMED = 5  # statements that are named in the refusal
LENGTH = 160  # characters of each


class ChangedJustNow(Exception):
    """DDL came while it was looked at: look again."""


class SchemaGuard:
    """Compares by dumping again, which takes a second; a digest tells, under a lock, that nothing came since."""

    def __init__(self, context: Context):
        self._context = context
        self._oids = [t.oid for t in context.tables()] if context.in_place else None
        self._digest: str | None = None
        self._came_too_fast = False

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Around one try of a swap: where DDL has spoiled one, clients' DDL waits for the next."""
        held = self._came_too_fast and captures_ddl(self._context)
        with ddl_held(self._context, everything=True) if held else nullcontext():
            yield

    def refuse_changed(self) -> None:
        """Carries over what a dump can tell and PreflightRefused where the source has more than was carried.

        Where DDL is captured, statements that wait for the swap are taken from this dump, and indexes that the scope
        left out are built now. Everything else that has become different must be on the target by its own dump; of
        what a policy may leave apart there, an applied event must have been about it. ChangedJustNow: try again.
        """
        context = self._context
        now = self._digest_by(context.source)
        if now == self._digest:
            return
        dumped = without_left_out(context, [e for e in settled_dump(context) if e.phase != "noise"])
        carry_late(context, dumped)
        (settled, apart), arrived = _equal_now(context), Arrived(context)
        recorded = without_left_out(context, context.journal.dump_events.as_dumped(context.journal.run))
        added, gone = _differences(dumped, recorded)
        if captures_ddl(context):
            name_as_on_source(context)
            carry_indexes(context, dumped, added, gone)
            carry_marks(context, added, gone)
            waiting = without_finished(context, arrived, [*_taken_back(gone, dumped), *dumped])
            replace_pending(context, waiting, ["foreign_key", "finish"])
            added, gone = ([e for e in events if _is_compared(e)] for events in (added, gone))
        came, went = added, gone
        # Whoever brought it, by an event or by hand on both sides.
        added, gone = arrived.without(came, went)
        if captures_ddl(context):
            explained = _Explained(context, apart)
            added, gone = ([e for e in events if not explained.has(e, settled)] for events in (added, gone))
        # The same of single columns, where the policy leaves others apart.
        there = arrived.tables() if added else []
        unnamed = [e for e in added if e.table in settled and _is_named_otherwise(context, e, went)]
        added, gone = _without_carried(added, [*went, *there], settled), _without_carried(gone, came, settled)
        added += [event for event in unnamed if event not in added]
        if added or gone:
            if self._digest_by(context.source) != now:
                self._came_too_fast = True
                raise ChangedJustNow("the source's schema changed just now")
            self._refuse_drift()
            heads = {_first_line(e.statement) for e in added}  # of which no more than what changed is told
            before = [e.statement for e in went if e in gone or _first_line(e.statement) in heads]
            listed = changes([e.statement for e in added], before)
            more = f"; and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
            raise PreflightRefused(
                f"the source's schema changed since the snapshot: {'; '.join(listed[:NAMED])}{more}", todo=self._todo()
            )
        self._digest = now

    def _todo(self) -> str:
        again = (
            "`pgddl reset` (--tables, where one table is concerned) and run again from setup; nothing has been swapped"
        )
        alike = "make the target the same (of a table DEFAULT, NOT NULL and CHECK too)"
        if captures_ddl(self._context):
            return (
                "`pgddl ddl list` shows what was left out and why: retry or resolve it there; "
                f"or {alike}, undo it, or {again}"
            )
        return f"{alike}, undo the change on the source, or {again}"

    def _refuse_drift(self) -> None:
        """What a window would stop a table for is said in a window's words, and recorded like by one."""
        context = self._context
        tables = context.healthy(context.tables())
        with context.fenced("swap.before_drift_commit"):
            _, stopped = stopped_by_drift(context.source, context.journal, tables)
        context.block(stopped)
        for table in tables:
            if table.id in stopped:
                raise PreflightRefused(
                    "; ".join(stopped[table.id]),
                    table=table.qualified,
                    todo="undo it on the source, or `pgddl reset --tables` this table and run again from setup",
                )

    def unchanged(self, conn: Session) -> bool:
        """Whether nothing has changed since `refuse_changed`; for a transaction that keeps further changes out."""
        same = self._digest_by(conn) == self._digest
        self._came_too_fast |= not same
        return same

    def _digest_by(self, conn: Session) -> str:
        return schema_digest(self._context, conn, self._oids)


def _is_compared(event: DdlEvent) -> bool:
    """Whether a difference in it is nobody's to carry here: what rows need, and what asks something of them NOT VALID,
    for which a dump has a statement behind the rows."""
    if event.phase == "index":
        return event.kind in ("check", "not null", "domain") and event.index is None
    return event.phase == "create" and not event.is_right_from_start


def _equal_now(context: Context) -> tuple[set[Name], set[Name]]:
    """Tables that have come to be the same on both sides, but for columns that the policy treats apart; and those of
    which it leaves something apart."""
    rows = [t for t in context.healthy(context.tables()) if t.state == "indexed"]
    found = evaluate(context.pipeline, context.source, context.target, rows, ())
    apart = {name for name, e in found.items() if e.verdict.findings or altered_columns(context.pipeline, name)}
    equal = {
        name
        for name, e in found.items()
        if e.source
        and e.target
        and _are_equal(
            e.source,
            e.target,
            {
                c: [f.kind for f in e.verdict.findings if f.column == c]
                for c in {f.column for f in e.verdict.findings if f.column} | altered_columns(context.pipeline, name)
            },
        )
    }
    return equal, apart | parts_of(context, [t for t in rows if (t.schema, t.name) in apart])


def _taken_back(gone: Sequence[DdlEvent], dumped: Sequence[DdlEvent]) -> list[DdlEvent]:
    """What takes back the grants that came with what the snapshot made, and that the source has no more."""
    schemas = {e.schema for e in dumped if e.tag == "CREATE SCHEMA"}
    still = {(e.schema, e.name, e.arguments) for e in dumped if e.tag.startswith("CREATE ") and e.table is None}
    aggregates = {(e.schema, e.name) for e in dumped if e.tag == "CREATE AGGREGATE"}

    def is_there(event: DdlEvent) -> bool:
        if event.is_right_on_schema:
            return event.schema in schemas
        name = event.schema, event.name
        return (*name, event.arguments) in still or name in aggregates

    return [
        replace(e, phase="finish", tag="GRANT" if e.tag == "REVOKE" else "REVOKE", statement=taken_back(e.statement))
        for e in gone
        if e.phase in ("create", "index") and e.is_right_from_start and e.tag != "ALTER SCHEMA" and is_there(e)
    ]


def _without_carried(
    events: Sequence[DdlEvent], others: Sequence[DdlEvent], settled: Collection[Name]
) -> list[DdlEvent]:
    """Without what comparing the tables of both sides has shown to be equal: columns, defaults, checks, and that there
    is an identity or a sequence; not what these or the tables are set to."""

    def is_carried(event: DdlEvent) -> bool:
        if event.phase != "create" or event.table not in settled:
            return False
        if event.tag == "CREATE TABLE":
            return any(o.tag == event.tag and o.table == event.table and _frame(o) == _frame(event) for o in others)
        alike = any(_first_line(o.statement) == _first_line(event.statement) for o in others)
        return event.kind == "default" or (event.kind in ("identity", "sequence") and not alike)

    return [event for event in events if not is_carried(event)]


def _is_named_otherwise(context: Context, event: DdlEvent, went: Sequence[DdlEvent]) -> bool:
    """Whether a CHECK or NOT NULL of a table has got a name, or NO INHERIT, that the copy's has not: tables are
    compared by what they ask of rows."""
    if event.tag != "CREATE TABLE" or event.table is None:
        return False
    before = [named_checks(e.statement) for e in went if (e.tag, e.table) == (event.tag, event.table)]
    new = named_checks(event.statement).difference(*before)
    servers = (context.source, context.target)
    if any(side.info.server_version < 180_000 for side in servers):
        new = {one for one in new if one[0] == "CHECK"}  # before 18 a NOT NULL has no name
    if not new:
        return False
    names = event.table, (copy_schema(event.table[0]) if context.beside else event.table[0], event.table[1])
    query = queries("swap")["named_checks"]
    here, there = ({*side.execute(query, name)} for side, name in zip(servers, names, strict=True))
    chosen = {(kind, column, alone): name for kind, name, column, alone in here if kind == "NOTNULL"}
    return any((kind, name or chosen.get((kind, column, alone)), column, alone) not in there
               for kind, name, column, alone in new)  # fmt: skip


def _frame(event: DdlEvent) -> tuple[str, str]:
    """What a CREATE TABLE says around its columns."""
    return _first_line(event.statement), event.statement.rpartition("\n)")[2]


def _are_equal(source: TableModel, target: TableModel, apart: Mapping[str, Collection[str]]) -> bool:
    """`apart`: column → the kinds of findings on it, which say what of it is not the same."""
    both = {c.name for c in source.columns} & {c.name for c in target.columns}
    if any(_differ(source, target, name, kinds) for name, kinds in apart.items() if name in both):
        return False
    sides = [[c for c in side.columns if c.name not in apart] for side in (source, target)]
    defaults = [{c.name: c.default for c in side} for side in sides]
    without = [[replace(c, default=None) for c in side] for side in sides]
    columns = [TableModel(0, "", "", "r", tuple(side), source.key).canonical() for side in without]
    checks = [[c for c in side.constraints if c.kind == "c"] for side in (source, target)]
    same = len(checks[0]) == len(checks[1]) and all(
        any(same_constraint(here.definition, there.definition, {}) for here in checks[1]) for there in checks[0]
    )
    same = same and columns[0] == columns[1] and source.key == target.key
    return same and all(_same_default(default, defaults[1][name]) for name, default in defaults[0].items())


def _differ(source: TableModel, target: TableModel, name: str, kinds: Collection[str]) -> bool:
    """Whether a column is not the same in what no finding tells of it: NOT NULL and the default."""
    here, there = source.column(name), target.column(name)
    if here is None or there is None or not kinds or "target_added_column" in kinds:
        return False  # of one side alone, given another shape on purpose, or left out
    same = "generated" in kinds or _same_default(here.default, there.default)
    return not same or ("not_null" not in kinds and here.not_null != there.not_null)


def _same_default(here: str | None, there: str | None) -> bool:
    return here == there or (here is not None and there is not None and same_expression(here, there, {}))


class _Explained:
    """Whether a difference is what an applied event was about, and may look otherwise on the target: tables have what
    the policy leaves `apart`, roles are missing there. All else must have arrived, whatever events say (C30); in place,
    where the copies have statements of their own, the settings of table and columns must. What a person resolved is
    taken at the person's word."""

    def __init__(self, context: Context, apart: Collection[Name]):
        carried, left_out, self._resolved = context.journal.ddl_history.touched(context.journal.run)
        self._names = carried - left_out
        self._context, self._apart = context, apart
        self._roles = {role for (role,) in context.target.execute("SELECT rolname FROM pg_catalog.pg_roles")}

    def has(self, event: DdlEvent, settled: Collection[Name]) -> bool:
        own = {event.table, (event.schema or "", event.name or ""), event.sequence, event.index}
        if self._names.isdisjoint({*own, *event.references, *event.types, *event.functions}):
            return False
        if not self._resolved.isdisjoint(own):
            return True
        alike = event.kind in _ALIKE and event.tag.startswith("CREATE") and {*event.references} <= {*settled}
        return not alike and (self._has_copy_settings(event) if self._context.in_place else self._may_differ(event))

    def _may_differ(self, event: DdlEvent) -> bool:
        if event.kind == "owner":
            return not {*event.roles} <= self._roles
        return not {event.table, *event.references}.isdisjoint(self._apart)

    def _has_copy_settings(self, event: DdlEvent) -> bool:
        table = event.table
        rewrite = self._context.pipeline.rewrites.get(table) if table else None
        if table is None or rewrite is None or rewrite.alter or rewrite.partition_by:
            return True
        names = table, (copy_schema(table[0]), table[1])
        query = queries("catalog")["table_settings"]
        live, copy = (self._context.target.execute(query, name).fetchone() for name in names)
        return live == copy


def _differences(dumped: Sequence[DdlEvent], recorded: Sequence[DdlEvent]) -> tuple[list[DdlEvent], list[DdlEvent]]:
    """(added, gone), by statement."""
    return _without(dumped, recorded), _without(recorded, dumped)


def _without(events: Sequence[DdlEvent], others: Sequence[DdlEvent]) -> list[DdlEvent]:
    left, found = Counter(bare(e.statement) for e in others), []
    for event in events:
        if left[bare(event.statement)]:
            left[bare(event.statement)] -= 1
        else:
            found.append(event)
    return found


def changes(added: Iterable[str], gone: Iterable[str]) -> list[str]:
    """Statements that came and went, a line each; of one that only changed, the lines of it that did."""
    left = {_first_line(s): s for s in gone}
    listed = []
    for statement in added:
        head = _first_line(statement)
        before = left.pop(head, None)
        if before is None:
            listed.append(f"new: {_short(statement)}")
            continue
        now, then = ([line.strip().rstrip(",") for line in s.splitlines()] for s in (statement, before))
        differing = [f"+ {x}" for x in now if x not in then] + [f"- {x}" for x in then if x not in now]
        listed.append(_short(f"changed: {head} {' '.join(differing)}"))
    return listed + [f"gone: {_short(s)}" for s in left.values()]


def _first_line(statement: str) -> str:
    return statement.strip().splitlines()[0]


def _short(statement: str) -> str:
    line = " ".join(statement.split())
    return line if len(line) <= LENGTH else line[: LENGTH - 3] + "..."
