"""Sequences across databases: ahead of the source's while rows are followed, and where they stand at the cut-over."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg
from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.serial_and_identity import rebounded
from airflow_provider_pgddl.engine.errors import GaveWay, PgddlError
from airflow_provider_pgddl.engine.job.context import Context, patiently
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.selection import matches
from airflow_provider_pgddl.engine.rights import foreign_code
from airflow_provider_pgddl.engine.rights.trust import untrusted
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("sequences")
# More than a busy server draws from one sequence in the minute between two runs. What is left out after a failover
# costs nothing: a cut-over sets the sequence back to where the source's stands.
DRAWS_AHEAD = 1_000_000
# At most this part of the values that are left: whoever outruns it between two runs has no values left soon anyway.
PART_AHEAD = 100
SEQUENCES_A_QUERY = 100


@dataclass(frozen=True, slots=True)
class Sequence:
    """A sequence and what it may hand out."""

    oid: int
    increment: int
    low: int
    high: int
    cycle: bool

    @property
    def length(self) -> int:
        """How many values a cycle has."""
        return (self.high - self.low) // abs(self.increment) + 1

    def left(self, last: int) -> int:
        """How many values come behind this one before the end is reached."""
        return ((self.high - last) if self.increment > 0 else (last - self.low)) // abs(self.increment)


@dataclass(frozen=True, slots=True)
class Position:
    """`last` is the last value that was handed out, or the first that will be (not `called`)."""

    last: int
    called: bool


def ahead(sequence: Sequence, source: Position, target: Position) -> Position | None:
    """Where the target's sequence has to go so that it hands out nothing that the source's did, or will soon.

    None while it may stay: it is far enough ahead, and it is never set back, but where values come round again. Nothing
    outside of what it may hand out, which DDL will have widened by the time that a row needs it."""
    if not sequence.low <= source.last <= sequence.high:
        return None
    left, first = sequence.left(source.last), sequence.low if sequence.increment > 0 else sequence.high
    margin = min(DRAWS_AHEAD, (sequence.length if sequence.cycle else left) // PART_AHEAD)
    lead = (target.last - source.last) // sequence.increment
    if sequence.cycle and lead < 0:  # round the end, from where values may be others than before
        lead = left + 1 + (target.last - first) // sequence.increment
    enough = 2 * lead >= margin and (lead > 0 or target.called or not source.called)
    if enough and not (sequence.cycle and lead > margin):
        return None
    if margin <= left:
        last = source.last + margin * sequence.increment
    else:
        last = first + (margin - left - 1) * sequence.increment
    return Position(last, source.called or margin > 0)


def keep_ahead(context: Context) -> None:
    """Before rows are brought: what they have drawn, the target's sequences have passed. In a transaction of its own;
    nothing is written while they are far enough ahead."""

    def attempt() -> None:
        here = _sequences(context.target)
        now = _on_source(context, here)
        stand = positions(context.target, {name: here[name].oid for name in now})
        wanted = {name: to for name in now if (to := ahead(here[name], now[name], stand[name])) is not None}
        if wanted:
            owners = _owners(context.source)
            others = _of_others(owners, _own_tables(context))
            others |= _not_to_move(context, owners, wanted.keys() - others)
        if moved := {here[name].oid: to for name, to in wanted.items() if name not in others}:
            with context.fenced("sequences.before_ahead_commit"):
                _set(context.target, moved)

    patiently(context, attempt)


@contextmanager
def in_reach(context: Context, statements: Collection[str]) -> Iterator[None]:
    """While DDL may give sequences other bounds, they stand where the source's do, which these were meant for; behind
    it they are ahead again as far as they were, if that is within the bounds."""
    names = rebounded(statements) if context.moves_rows and not context.beside else set[Name]()
    if not names:
        yield
        return
    here = _of(context, names)
    strange = _not_to_move(context, _owners(context.source), here)
    here = {name: one for name, one in here.items() if name not in strange}
    now, before = _on_source(context, here), positions(context.target, {name: one.oid for name, one in here.items()})
    _go(context, here, now)
    try:
        yield
    except BaseException:
        with suppress(psycopg.Error, PgddlError):  # what has ended it is what is told
            _go(context, _of(context, names), before)
        raise
    _go(context, _of(context, names), before)


def _of(context: Context, names: Collection[Name]) -> dict[Name, Sequence]:
    """The target's sequences of these names, and those of the columns of tables of these names."""
    oids = {oid for (oid,) in context.target.execute(_Q["of"], [[s for s, _ in names], [n for _, n in names]])}
    return {name: one for name, one in _sequences(context.target).items() if one.oid in oids} if oids else {}


def _go(context: Context, sequences: Mapping[Name, Sequence], to: Mapping[Name, Position]) -> None:
    within = {one.oid: to[n] for n, one in sequences.items() if n in to and one.low <= to[n].last <= one.high}
    if within:
        with context.fenced("sequences.before_reach_commit"):
            _set(context.target, within)


def set_exactly(context: Context, *, forward_only: Collection[Name] = ()) -> int:
    """Every sequence of the source that the target has too stands where the source's stands; returns how many. None is
    moved that the owner of the source's may not move here. None is set back of those in `forward_only`, of those that
    may be another pipeline's that has cut over (where the target had tables before, so may any that goes with no
    column), and of tables with rows that the target alone has. In the caller's transaction, though a sequence does not
    go back with it."""
    here = _sequences(context.target)
    now = _on_source(context, here)
    owners, mine = _owners(context.source), _own_tables(context)
    strange = _not_to_move(context, owners, now)
    now = {name: position for name, position in now.items() if name not in strange}
    with_extra = {(t.schema, t.name) for t in context.tables() if t.plan.extra}
    schemas = set[str]() if context.pipeline.tables.existing == "adopt" else {schema for schema, _ in mine}
    stay = {
        name for name, owner in owners.items() if (owner.table in with_extra if owner.table else name[0] not in schemas)
    }
    stay |= {*forward_only} | _of_others(owners, mine)
    kept = {name: here[name].oid for name in now if name in stay}
    for name, there in positions(context.target, kept).items() if kept else ():
        lead = (there.last - now[name].last) * here[name].increment
        if lead > 0 or (lead == 0 and (there.called or not now[name].called)):
            del now[name]
    _set(context.target, {here[name].oid: position for name, position in now.items()})
    return len(now)


def _on_source(context: Context, here: Collection[Name]) -> dict[Name, Position]:
    """Where the source's sequences stand that the target has too."""
    there = {name: sequence.oid for name, sequence in _sequences(context.source).items() if name in here}
    return positions(context.source, there)


@dataclass(frozen=True, slots=True)
class _Owner:
    """Whose a sequence is: a role's, and a table's if it goes with a column, a partition's as its root."""

    role: str
    table: Name | None


def _owners(conn: Session) -> dict[Name, _Owner]:
    found = conn.execute(_Q["owners"]).fetchall()
    return {(schema, name): _Owner(role, (of, table) if table else None) for schema, name, role, of, table in found}


def _own_tables(context: Context) -> set[Name]:
    """As they are called on the source now, and where only the structure goes over."""
    chosen = matches(context.pipeline, catalog.table_oids(context.source), strict=False)
    return {*chosen.rows, *chosen.schema_only, *((t.schema, t.name) for t in context.tables())}


def _of_others(owners: Mapping[Name, _Owner], mine: Collection[Name]) -> set[Name]:
    """Sequences of tables that the pipeline leaves out."""
    return {name for name, owner in owners.items() if owner.table is not None and owner.table not in mine}


def _not_to_move(context: Context, owners: Mapping[Name, _Owner], names: Collection[Name]) -> set[Name]:
    """Which of the source's sequences have nothing but their name in common with the target's, as far as we know: no
    table of their schema is followed, their owner is not trusted and has no right to move the target's, and the run has
    not made that. Said once."""
    roles = {owners[name].role for name in names if name in owners}
    strange = untrusted(context.source, roles, context.pipeline.trusted_roles)
    left = {name: owners[name] for name in names if name in owners and owners[name].role in strange}
    if left:  # beside tables that are followed: one that stayed where it is would give their rows numbers again
        schemas = {schema for schema, _ in _own_tables(context)}
        left = {name: owner for name, owner in left.items() if name[0] not in schemas}
    if left:
        mapping = context.pipeline.ddl.other_roles
        args = [[s for s, _ in left], [n for _, n in left], [mapping.get(o.role, o.role) for o in left.values()]]
        may = {*context.target.execute(_Q["may_move"], args).fetchall()}
        left = {name: owner for name, owner in left.items() if name not in may}
    if left:
        applied = (DdlEvent.from_json(one.event) for one in context.journal.dump_events.applied(context.journal.run))
        made = {(event.schema, event.name) for event in applied if event.tag == "CREATE SEQUENCE"}
        left = {name: owner for name, owner in left.items() if name not in made}
    for name, owner in left.items():
        if name not in context.said_to_stay:
            context.said_to_stay.add(name)
            context.say(
                f"sequence {'.'.join(name)} stays where it is on the target: it is no part of this run, and role"
                f" {mapping.get(owner.role, owner.role)}, whose the source's is, may not move it there. If it is to"
                f" follow, grant that right, or name {owner.role} in trusted_roles"
            )
    return {*left}


def _sequences(conn: Session) -> dict[Name, Sequence]:
    return {(schema, name): Sequence(*rest) for schema, name, *rest in conn.execute(_Q["sequences"])}


def positions(conn: Session, sequences: Mapping[Name, int]) -> dict[Name, Position]:
    """Where these stand, given their oids; read by the names that they have once they are locked, for a view that has
    taken the name of one would run as us (C28)."""
    found: dict[Name, Position] = {}
    listed = sorted(sequences)
    for start in range(0, len(listed), SEQUENCES_A_QUERY):
        batch = listed[start : start + SEQUENCES_A_QUERY]
        oids = [sequences[name] for name in batch]
        try:
            with conn.transaction():
                conn.execute(_Q["hold"], [oids])
                foreign_code.hold_schemas(conn, oids)
                names = dict(conn.execute(_Q["names"], [oids]).fetchall())
                query = sql.SQL(" UNION ALL ").join(
                    sql.SQL(_Q["position"]).format(number=sql.Literal(i), sequence=sql.SQL(names[oid]))
                    for i, oid in enumerate(oids)
                )
                found |= {batch[i]: Position(last, called) for i, last, called in conn.execute(query)}
        except (pg.UndefinedTable, pg.InternalError_) as error:  # the latter: an oid that is nobody's by now
            raise GaveWay("a sequence was dropped or renamed just now") from error
    return found


def _set(target: Session, positions: Mapping[int, Position]) -> None:
    last, called = [p.last for p in positions.values()], [p.called for p in positions.values()]
    target.execute(_Q["set_positions"], [list(positions), last, called])
