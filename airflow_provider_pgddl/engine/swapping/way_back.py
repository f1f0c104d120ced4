"""What a swap in place begins so that it can be taken back: the new table's own change log, the plan by which it leads
into the old one, and what the new table is defined as at that moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.ddl.relocate import old_schema
from airflow_provider_pgddl.engine.errors import PreflightRefused, gone_or_keyless
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.journal.ways_back import Reverse
from airflow_provider_pgddl.engine.model.plan import Plan, PlanColumns, PlanKey, ReversePlan
from airflow_provider_pgddl.engine.model.tables import Column, Table
from airflow_provider_pgddl.engine.rows.copy_shape import copy_digests
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, plans_kept
from airflow_provider_pgddl.engine.server.lock_timeout import limit_lock_wait
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("way_back")
# A table of the pipeline and its way back.
Back = tuple[TableRow, Reverse]

# What the swap of an older version has not written down: it tells of no ACCESS METHOD either.
_NEWER = (
    "ACCESS METHOD ", "OF ", "TOAST ", "INHERITS ", "NOT NULL CONSTRAINT ", "INDEX ", "STATISTICS ", "SECURITY LABEL ",
)  # fmt: skip
_NUMBERS = ("smallint", "integer", "bigint", "numeric", "real", "double precision")


class WayBack:
    """`prepare` before the swap's locks, `is_ready` and `start` under them. Nothing where the pipeline keeps no old
    table, and nothing for a table that cannot go back (see `why_not`): `revert` says so."""

    def __init__(self, context: Context):
        self._context = context
        self._copies: dict[int, Table] = {}
        self._plans: dict[int, Plan] = {}
        self._digests: dict[int, str] = {}
        self._facts: dict[int, list[str]] = {}

    def prepare(self, tables: Sequence[TableRow]) -> None:
        """Log and trigger function of each copy, without a lock that anybody meets; made anew where a copy is another
        than they were made for."""
        context = self._context
        context.check_fence()
        self._digests = copy_digests(context.source, tables)  # first: what is altered after this shows another one
        anew: dict[int, tuple[TableRow, Table]] = {}  # by the copy
        for table in tables if context.pipeline.swap.keep_old else ():
            old, copy = _described(context.source, table)
            if self._is_same(table, copy):
                continue
            self._copies.pop(table.id, None)
            if why_not(table, copy) is not None:
                continue
            if copy.oid in change_log.captured_roots(context.source, context.name):  # of a run that has died
                with context.source.transaction():
                    limit_lock_wait(context.source, context.pipeline.swap.lock_timeout)
                    change_log.stop(context.source, context.name, copy.oid)
                    failpoint("swap.before_way_back_stop_commit", context.source)
            anew[copy.oid] = table, old
        prepared = change_log.prepare(context.source, context.name, anew, context.pipeline.swap.lock_timeout)
        for oid, (table, old) in anew.items():
            if oid not in prepared:
                raise gone_or_keyless(table.qualified)
            self._copies[table.id] = copy = prepared[oid].table
            self._plans[table.id] = _plan(context.source, table, old, copy)
        self._facts = facts(context.source, self._oids())

    def is_ready(self, conn: Session, tables: Sequence[TableRow]) -> bool:
        """Whether the copies are still what `prepare` has found."""
        return copy_digests(conn, tables) == self._digests and facts(conn, self._oids()) == self._facts

    def _oids(self) -> list[int]:
        return [copy.oid for copy in self._copies.values()]

    def start(self, conn: Session, tables: Sequence[TableRow], lost: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        """In the swap's transaction, once the copies are the new tables: from its commit on their changes are logged.
        `lost`: by the old table's oid, its foreign keys that the new one cannot have."""
        name, journal = self._context.name, Journal(conn, self._context.name)
        tables = [t for t in tables if t.id in self._copies]
        for table in tables:
            change_log.create_triggers(conn, name, _moved(self._copies[table.id], table.schema))
        with plans_kept(conn):
            now = catalog.describe(conn, self._oids(), change_log.capture_names(name))
            defined = facts(conn, self._oids())
            digests = copy_digests(conn, [replace(t, plan=self._plans[t.id]) for t in tables])
        for table in tables:
            live = now[self._copies[table.id].oid]
            plan = replace(self._plans[table.id], copy_attributes=digests[table.id])
            log = change_log.log_name(name, live.oid)
            journal.ways_back.add(table.id, live, log, plan, defined[live.oid], lost.get(table.oid, ()))

    def _is_same(self, table: TableRow, copy: Table) -> bool:
        known = self._copies.get(table.id)
        return known is not None and (known.oid, known.structure()) == (copy.oid, copy.structure())


def why_not(table: TableRow, new: Table) -> str | None:
    """Why a table cannot go back once it is swapped; None where it can."""
    if new.key is None:
        return "it has no key, by which what has changed since could be told"
    if new.kind == "p" and not table.plan.partitioned:
        return "the new table is partitioned and the old one is not: going back to it is not built"
    if set(new.key.columns) != set(table.plan.key.columns):
        return f"the new table is not known by the key of the old one ({', '.join(table.plan.key.columns)})"
    return None


def are_copies_again(conn: Session, journal: Journal, backs: Sequence[Back]) -> None:
    """Plans go on with copies as the swap has left them; they have to be compared before they are swapped again."""
    copies = catalog.describe(conn, [way.row.oid for _, way in backs])
    digests = copy_digests(conn, [t for t, _ in backs])
    for table, way in backs:
        plan = replace(table.plan, copy_attributes=digests[table.id])
        journal.tables.set_copy(replace(table, plan=plan, copy_physical=copies[way.row.oid].physical()))
        journal.verification.forget(table.id)


def refuse_changed_since(conn: Session, backs: Sequence[Back]) -> None:
    """What people have changed of a new table since the swap would be gone without a word."""
    defined = facts(conn, [way.row.oid for _, way in backs])
    for table, way in backs:
        told = defined[way.row.oid]
        if not any(fact.startswith(_NEWER[0]) for fact in way.facts):
            told = [fact for fact in told if not fact.startswith(_NEWER)]
        now, before = Counter(told), Counter(way.facts)
        if now == before:
            continue
        changed = [*(f"+ {f}" for f in (now - before).elements()), *(f"- {f}" for f in (before - now).elements())]
        raise PreflightRefused(
            "was changed since the swap: " + "; ".join(sorted(changed, key=lambda c: c[2:])), table=table.qualified,
            todo="undo this on the table (+ came, - went), run revert, then do it again on the table that is live then",
        )  # fmt: skip


def facts(conn: Session, oids: Iterable[int]) -> dict[int, list[str]]:
    """The tables' definitions, one line a fact, in order."""
    found: dict[int, list[str]] = {oid: [] for oid in oids}
    for oid, fact in conn.execute(_Q["facts"], {"oids": list(found)}):
        found[oid].append(fact)
    return found


def _moved(copy: Table, schema: str) -> Table:
    return replace(copy, schema=schema, leaves=tuple(replace(leaf, schema=schema) for leaf in copy.leaves))


def _described(conn: Session, table: TableRow) -> tuple[Table, Table]:
    """The live table and its copy."""
    oid = catalog.oid_of(conn, table.plan.copy_schema, table.plan.copy_name)
    assert oid is not None, "its windows have just written to it"
    both = catalog.describe(conn, [table.oid, oid])
    return both[table.oid], both[oid]


def _plan(conn: Session, table: TableRow, old: Table, new: Table) -> Plan:
    """From the new table into the old one. What the new one does not have, or has computed, stays as the old one knows
    it; and whatever is not simply the same column has to yield the new table's value again."""
    assert new.key is not None
    before = {c.name: c for c in old.columns if not c.generated}
    forward = dict(zip(table.plan.columns.names, table.plan.columns.expressions, strict=True))
    columns, expressions, proof = list[str](), list[str](), dict[str, list[Any]]()
    for column in new.columns:
        if column.generated:
            continue
        name, was = sql.Identifier(column.name).as_string(), before.get(column.name)
        made = forward.get(column.name, name)
        if was is not None and made == name and was.type == column.type:
            columns.append(column.name)
            expressions.append(name)
            continue
        proof[column.name] = [made, column.type, column.base_type.partition("(")[0] in _NUMBERS]
        if was is not None and made == name and _may_be_cast(conn, column, was):
            columns.append(column.name)
            expressions.append(f"CAST({name} AS {was.type})")
    keep = [c for c in before.values() if c.name not in columns]
    key = {c.name: c for c in new.columns}
    return Plan(
        schema=table.schema,
        name=table.name,
        oid=new.oid,
        partitioned=False,
        copy_schema=old_schema(table.schema),
        copy_name=table.name,
        columns=PlanColumns(
            names=tuple(columns),
            expressions=tuple(expressions),
            binary=False,
            kept=tuple(c.name for c in keep),
            kept_types=tuple(c.type for c in keep),
        ),
        key=PlanKey(
            columns=new.key.columns,
            types=tuple(key[k].base_type for k in new.key.columns),
            operators=new.key.operators,
            domains=tuple(key[k].domain for k in new.key.columns),
            binary=False,
        ),
        copies={str(new.oid): (old_schema(table.schema), table.name)},
        reverse=ReversePlan(proof=proof, echo=table.log_table, serials=_serials(conn, old)),
    )


def _serials(conn: Session, table: Table) -> dict[str, str]:
    rows = conn.execute(queries("swap")["owned_sequences"], [table.oid]).fetchall()
    return {name: type_ for kind, _, name, _, type_, _ in rows if kind == "a"}


def _may_be_cast(conn: Session, new: Column, old: Column) -> bool:
    try:
        with conn.transaction():
            conn.execute(sql.SQL("SELECT CAST(NULL::{} AS {})").format(sql.SQL(new.type), sql.SQL(old.type)))
    except (pg.CannotCoerce, pg.UndefinedFunction):
        return False
    return True
