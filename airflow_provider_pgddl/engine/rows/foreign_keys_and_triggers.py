"""Foreign keys and triggers on copies that windows write to (C13).

Ours make none before the swap, but the target may have its own. In the replica role none of them fires, as in native
logical replication. Where our role may not take that, a row that left its copy would take others along (ON DELETE
CASCADE), and one that comes back too early would be refused. So whatever refers to a row that leaves goes with it and
is read again, and all of them leave in one statement and come back in one: checks and actions, which Postgres runs at
the end of a statement, find nothing to do, in whatever order. Triggers cannot be kept from firing like that: they stop
their table; and so do, in the replica role, those that are enabled ALWAYS or REPLICA: a row that is read again leaves
and comes back, and they would take each for what an application does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from psycopg import sql

from airflow_provider_pgddl.engine.errors import OPEN, Closed, GaveWay
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.plan import Plan, equal, into
from airflow_provider_pgddl.engine.rights import as_owner
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, keeping_plans, may_set, plans_kept
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("foreign_keys_and_triggers")
CHANGED = "foreign keys or triggers on the target changed just now"
NOT_TOGETHER = (
    "foreign keys of the target tie it to others, and it has code of its owner, as whom they cannot be written "
    "together: drop one or the other, or name the owner in trusted_roles"
)


@dataclass(frozen=True, slots=True)
class CopyForeignKey:
    """One at an end of which, or at both, are copies: `child` refers to `parent`; None is another table. `same` are
    (referenced column, operator, referring column)."""

    name: str
    child: int | None
    parent: int | None
    child_table: Name
    child_partitioned: bool
    parent_table: Name
    parent_partitioned: bool
    same: tuple[tuple[str, str, str], ...]


# By table: each relation of its copy, with the names of its triggers.
Triggers = Mapping[int, tuple[tuple[str, tuple[str, ...]], ...]]


@dataclass(frozen=True, slots=True)
class Ties:
    """What would fire on copies, by their tables' ids. `as_replica` are the triggers that do in the replica role."""

    keys: tuple[CopyForeignKey, ...] = ()
    triggers: Triggers = field(default_factory=dict)
    as_replica: Triggers = field(default_factory=dict)
    silenced: bool = False

    def __bool__(self) -> bool:
        return bool(self.keys or self.triggers or self.as_replica)

    def in_replica_role(self) -> Ties:
        """What is left of them for a session that has taken it."""
        return Ties((), self.as_replica, silenced=True)

    def among(self, tables: Collection[int]) -> Ties:
        """Those that tie one of these tables to another."""
        return replace(self, keys=tuple(k for k in self.keys if {k.parent, k.child} & {*tables}))

    @property
    def inner(self) -> list[CopyForeignKey]:
        """Those to copies: to other tables they are checked when a row comes, and nothing else."""
        return [key for key in self.keys if key.parent is not None]

    @property
    def tied(self) -> set[int]:
        """The tables whose rows leave and come together."""
        return {end for key in self.inner for end in (key.parent, key.child) if end is not None}

    def stops(self, keeping: Collection[int], role: str) -> dict[int, list[tuple[str, str]]]:
        """The tables to which nothing can be written so, each with why and the SQL that changes that; the copies of
        those in `keeping` have values that nobody else knows."""
        grant = f"GRANT SET ON PARAMETER session_replication_role TO {sql.Identifier(role).as_string()}"
        found: dict[int, list[tuple[str, str]]] = {}
        for table, fired in self.triggers.items():
            names = ", ".join(name for _, listed in fired for name in listed)
            disable = " ".join(
                f"ALTER TABLE {relation} DISABLE TRIGGER {sql.Identifier(name).as_string()};"
                for relation, listed in fired
                for name in listed
            )
            what = f"triggers on the target would fire for every replayed row ({names})"
            found.setdefault(table, []).append(
                (f"{what}, as they are enabled ALWAYS or REPLICA", disable) if self.silenced
                else (f"{what}, and role {role} may not keep them from it", f"{disable} -- or {grant}")
            )  # fmt: skip
        for key in self.inner:
            assert key.parent is not None
            far, here = ".".join(key.child_table), found.setdefault(key.parent, [])
            what = f"foreign key {key.name} of {far} on the target refers to it"
            child = sql.Identifier(*key.child_table).as_string()
            drop = f"ALTER TABLE {child} DROP CONSTRAINT {sql.Identifier(key.name).as_string()}; -- or {grant}"
            if key.child is None:
                what += f", which is not followed here: a row that is replayed would take rows of {far} along"
                here.append((f"{what}, and role {role} may not prevent it", drop))
            elif {key.parent, key.child} & {*keeping}:
                what += ", and one of both has columns, or may have rows, that only the target has"
                here.append((f"{what}: role {role} may not switch it off", drop))
        return {table: why for table, why in found.items() if why}


@contextmanager
def quiet(target: Session, plans: Mapping[int, Plan]) -> Iterator[Ties]:
    """Around what writes rows, in the caller's transaction: foreign keys and triggers on these copies do not fire where
    our role may see to that; else, and where they would all the same, what they are.

    GaveWay where some came or went meanwhile: from our first write on they cannot, so the next try sees all of them.
    Closed where a cut-over has left one of them, unless this is its way back."""
    names = _names(plans)
    with keeping_plans(target):
        before = read_ties(target, names)
        silenced = bool(before) and may_silence(target)
        if silenced:
            target.execute("SET LOCAL session_replication_role = replica")
        fenced = _is_fenced(target, names)
    if fenced:
        target.execute("SELECT pgddl.pass_fences()")
    yield before.in_replica_role() if silenced else before
    if fenced:
        target.execute("SELECT pgddl.return_passes()")
    if read_ties(target, names) != before:
        raise GaveWay(CHANGED, todo="nothing: this is tried again")


def closed(target: Session, plans: Mapping[int, Plan]) -> dict[int, list[str]]:
    """The tables that refuse writes for another cut-over than the one whose way back this is, with what to say of it:
    what is written there never gets to the server that applications are on."""
    found: dict[int, list[str]] = {}
    for table, pipeline, is_way_back in _fences(target, _names(plans)):
        if not is_way_back:
            found.setdefault(table, []).append(
                f"it refuses writes on the target for the cut-over of pipeline {pipeline!r}: what is written here "
                "never gets to the new server. Take it out (tables.exclude, `pgddl reconfigure`); "
                + OPEN.format(by=pipeline)
            )
    return found


def _is_fenced(target: Session, names: Mapping[int, Name]) -> bool:
    """Whether the target is, as the server that a cut-over has left and whose way back this is: our transaction is let
    through then, and nobody else's."""
    found = _fences(target, names)
    for table, pipeline, is_way_back in found:
        if not is_way_back:
            raise Closed(
                f"refuses writes on the target for the cut-over of pipeline {pipeline!r}, which is under way or done: "
                "what is written here never gets to the new server",
                table=".".join(names[table]),
                todo=OPEN.format(by=pipeline),
            )
    return bool(found)


def _fences(target: Session, names: Mapping[int, Name]) -> list[tuple[int, str, bool]]:
    args = [list(names), [s for s, _ in names.values()], [n for _, n in names.values()]]
    with plans_kept(target):
        return target.execute(_Q["fences"], args).fetchall()


def _names(plans: Mapping[int, Plan]) -> dict[int, Name]:
    return {table: (plan.copy_schema, plan.copy_name) for table, plan in plans.items()}


def may_silence(target: Session) -> bool:
    """Whether the session may take the replica role, in which none of them fires."""
    return may_set(target, "session_replication_role")


def read_ties(target: Session, names: Mapping[int, Name]) -> Ties:
    """What is there on these tables, which are known by any number."""
    args = {"ids": list(names), "schemas": [s for s, _ in names.values()], "names": [n for _, n in names.values()]}
    with plans_kept(target):
        found = target.execute(_Q["foreign_keys"], args).fetchall()
        rows = target.execute(_Q["triggers"], args).fetchall()
        same = catalog.compared_columns(target, [oid for oid, *_ in found]) if found else {}
    keys = tuple(
        CopyForeignKey(name, child, parent, (cs, cn), cp, (ps, pn), pp, same[oid])
        for oid, name, child, parent, (cs, cn), cp, (ps, pn), pp in found
        if oid in same
    )
    return Ties(
        keys, _by_table((t, r, names) for t, r, names, _ in rows), _by_table((t, r, names) for t, r, _, names in rows)
    )


def _by_table(rows: Iterable[tuple[int, str, Sequence[str]]]) -> Triggers:
    found: dict[int, tuple[tuple[str, tuple[str, ...]], ...]] = {}
    for table, relation, names in rows:
        if names:
            found[table] = (*found.get(table, ()), (relation, tuple(names)))
    return found


def empty(target: Session, relations: Sequence[sql.Composable], names: Iterable[Name], role: str = "") -> None:
    """TRUNCATE, or DELETE where a foreign key would refuse that even in the replica role (C27); one statement, so that
    none of them is checked in between. As the role where they have code of it."""
    listed = list(names)
    args = {"schemas": [s for s, _ in listed], "names": [n for _, n in listed]}
    row = target.execute(_Q["is_referenced"], args).fetchone()
    if row and row[0]:
        parts = [sql.SQL("DELETE FROM {}").format(relation) for relation in relations]
        as_owner.execute(target, role, _at_once(parts))
    else:
        target.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(relations)))


def stage_referring(target: Session, ties: Ties, staged: Mapping[int, tuple[Plan, sql.Identifier]]) -> None:
    """Adds to the staged keys those of all rows of copies that refer to a staged one, and so on."""
    grown = True
    while grown:
        grown = False
        for key in ties.inner:
            assert key.parent is not None and key.child is not None
            (parent, parent_keys), (child, child_keys) = staged[key.parent], staged[key.child]
            query = sql.SQL(_Q["refer_to_staged"]).format(
                into=child_keys,
                keys=child.key.list(),
                columns=sql.SQL(", ").join(sql.Identifier("c", column) for column in child.key.columns),
                child=_relation(key.child_table, key.child_partitioned),
                parent=_relation(key.parent_table, key.parent_partitioned),
                same=sql.SQL(" AND ").join(
                    equal(operator, sql.Identifier("p", p), sql.Identifier("c", c)) for p, operator, c in key.same
                ),
                staging=parent_keys,
                join=parent.key.join("p", "k"),
                known=child.key.join("c", "s"),
            )
            grown = target.execute(query).rowcount > 0 or grown


def delete_together(target: Session, staged: Iterable[tuple[Plan, sql.Identifier]]) -> None:
    parts = []
    for plan, keys in staged:
        target.execute(sql.SQL("ANALYZE {}").format(keys))
        join = plan.key.join("c", "k")
        parts.append(sql.SQL(_Q["delete"]).format(copy=plan.copy_only, staging=keys, join=join))
    target.execute(_at_once(parts))


def insert_together(target: Session, arrived: Iterable[tuple[Plan, sql.Identifier]]) -> None:
    target.execute(_at_once([
        sql.SQL(_Q["insert"]).format(
            into=into(plan.copy, plan.columns.list), columns=plan.columns.list, arrivals=arrivals
        )
        for plan, arrivals in arrived
    ]))  # fmt: skip


def _at_once(statements: Sequence[sql.Composable]) -> sql.Composed:
    parts = [
        sql.SQL("{} AS ({})").format(sql.Identifier(f"part_{number}"), statement)
        for number, statement in enumerate(statements)
    ]
    return sql.SQL("WITH {} SELECT").format(sql.SQL(", ").join(parts))


def _relation(name: Name, partitioned: bool) -> sql.Composable:
    relation = sql.Identifier(*name)
    return relation if partitioned else sql.SQL("ONLY {}").format(relation)


def told(stops: Mapping[int, Sequence[tuple[str, str]]]) -> dict[int, list[str]]:
    """What `Ties.stops` says, as findings."""
    return {table: [f"{what}: {fix}" for what, fix in why] for table, why in stops.items()}


def by_id(tables: Iterable[TableRow]) -> dict[int, Plan]:
    return {table.id: table.plan for table in tables}
