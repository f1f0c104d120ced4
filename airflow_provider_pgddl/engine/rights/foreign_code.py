"""Rows of tables whose owners we do not trust (C28). Their code runs as they, behind the wall; where none can be
reached, which is nearly always, it is kept out by locks, and everything goes on as with any other table.

The locks: ROW EXCLUSIVE on the relation keeps indexes, triggers and constraints from coming (CREATE INDEX CONCURRENTLY
makes its entry, which is looked at, and then waits for us); SHARE on two catalogs keeps extended statistics and
partitions from coming, which no lock on the table does; and a lock on their rows keeps its schemas' names. Casts can
come at any time: what is cast of or to a user's type is cast behind the wall. Reading is enough to run code: a query
that is planned evaluates what is constant in the predicates of a table's indexes and in its statistics."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.errors import (
    NO_SUCH_RELATION,
    GaveWay,
    LeftBehindTheWall,
    OwnerChanged,
    StageFailed,
    copy_gone_meanwhile,
)
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.plan import Keepers, Plan
from airflow_provider_pgddl.engine.rights.trust import more
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, plans_kept
from airflow_provider_pgddl.engine.server.giving_way import lock_briefly
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("rights")
RowUse = Literal["reader", "writer"]
PATIENCE = 60.0  # seconds for a look at a table that somebody is at

# What is evaluated where a table is only read.
_READ = ("index", "statistics", "partition key", "cast")
# What the plan reads for a column beside itself, and runs nobody's code but a cast's.
_PLAIN = re.compile(r'("([^"]|"")*"|\w+|NULL|CAST\(("([^"]|"")*"|\w+) AS [a-z ]+(\(\d+(,\d+)?\))?\))')


@dataclass(frozen=True, slots=True)
class Code:
    """Something that runs where a table is read or written: `code` (`function m.f(integer)`) of role `author`, in what
    `kind` and `name` say (`check`, `positive`). `nested`: by way of a domain inside another type."""

    kind: str
    name: str
    author: str
    code: str
    nested: bool

    def __str__(self) -> str:
        return f"{self.code} of role {self.author} (in {self.kind} {self.name})"


# --- who keeps what: once a stage, and where a table is new ---------------------------------------------------------


def look(
    source: Session, target: Session, tables: Mapping[int, tuple[int, Plan]], trusted: Sequence[str]
) -> dict[int, Keepers]:
    """By table id, given each one's oid on the source and its plan."""
    names = {i: (plan.copy_schema, plan.copy_name) for i, (_, plan) in tables.items()}
    there = catalog.oids_of(target, names.values())
    copies = {i: there[name] for i, name in names.items() if name in there}
    originals = [oid for oid, _ in tables.values()]
    live = survey(source, [*originals, *copies.values()] if source is target else originals, trusted)
    copied = live if source is target else survey(target, copies.values(), trusted)
    authors = {code.author for here in live.values() for code in here.code}
    raised = {} if source is target else more(target, source, authors, trusted)
    found = {}
    for i, (oid, _) in tables.items():
        here, copy = live.get(oid, NOTHING), copied.get(copies.get(i, 0), NOTHING)
        why = [*here.refused, *copy.refused]
        why += [may_more(role, raised[role]) for role in sorted({code.author for code in here.code} & raised.keys())]
        if source is target and i in copies and copy.role != here.role:
            why.append(
                f"it belongs to {here.role or 'a trusted role'} and its copy to {copy.role or 'a trusted role'}: "
                "give both one owner"
            )
        found[i] = Keepers(here.role, copy.role, tuple(trusted), tuple(dict.fromkeys(why)))
    if source is target:
        guests = [(names[i][0], found[i].writer, tables[i][1].split is not None) for i in copies if found[i].writer]
        let_in(target, guests)
    return found


def let_in(conn: Session, guests: Sequence[tuple[str, str, bool]]) -> None:
    """(schema, role, whether it makes tables there): into schemas of ours, where code runs as that role."""
    if guests:
        for (grant,) in conn.execute(_Q["let_in"], [list(each) for each in zip(*guests, strict=True)]).fetchall():
            conn.execute(grant)


@contextmanager
def may_make(conn: Session, role: str, schema: str, *names: str) -> Iterator[None]:
    """Lets a role make something in a schema, in this block and no longer. What it may make there by that is a relation
    of these names, indexes and sequences: its code could make what has the name of somebody else's table as well."""
    lacking = [sql.SQL(p) for (p,) in conn.execute(_Q["lacks_on_schema"], {"role": role, "schema": schema})]
    if not lacking:
        yield
        return
    args = {"role": role, "schema": schema, "names": list(names)}
    before = {found for (found,) in conn.execute(_Q["made_in_schema"], args)}
    rights = sql.SQL("{} ON SCHEMA {} {} {}")
    where, who = sql.Identifier(schema), sql.Identifier(role)
    conn.execute(sql.SQL("GRANT {}").format(rights.format(sql.SQL(", ").join(lacking), where, sql.SQL("TO"), who)))
    yield
    conn.execute(sql.SQL("REVOKE {}").format(rights.format(sql.SQL(", ").join(lacking), where, sql.SQL("FROM"), who)))
    others = {found for (found,) in conn.execute(_Q["made_in_schema"], args)} - before
    if others:
        raise LeftBehindTheWall(
            f"code that runs as {role} has made {min(others)} in schema {schema}; nothing of it was committed",
            todo=f"change that code, or name the role in the pipeline file: trusted_roles: [{role}]",
        )


def rules_on(conn: Session, tables: Iterable[Name]) -> list[tuple[Name, str]]:
    """What writing to these would set off that no window keeps from it."""
    names = dict(enumerate(tables))
    if not names:
        return []
    with plans_kept(conn):
        found = conn.execute(_Q["traps"], {"ids": list(names), **_listed(names.values())}).fetchall()
    return [(names[number], trap) for number, trap in found]


@dataclass(frozen=True, slots=True)
class Survey:
    """Of one table: the role that owns it and is not trusted, or ''; the code that is not; and why nothing may be done
    with it, if there is a reason."""

    role: str
    code: tuple[Code, ...]
    refused: tuple[str, ...]


NOTHING = Survey("", (), ())


def anybody(conn: Session, trusted: Sequence[str]) -> bool:
    """Whether anything in this database belongs to a role that is not trusted."""
    return conn.execute(_Q["anybody"], [list(trusted)]).fetchone() == (True,)


def survey(conn: Session, oids: Iterable[int], trusted: Sequence[str], *, few: bool = False) -> dict[int, Survey]:
    """By oid; tables of which nothing is to be said are left out. `few`: of the many that the database may have, so
    that it is not asked first whether anybody else has anything in it at all."""
    listed = sorted(set(oids))
    if not listed or not (few or anybody(conn, trusted)):
        return {}
    with plans_kept(conn):
        standing = _standing(conn, "by_oid", {"oids": listed}, trusted)
    reaching = [s.oid for s in standing.values() if s.reaching]
    if few and not any(s.strange for s in standing.values()) and not (reaching and anybody(conn, trusted)):
        return {}
    code = foreign_code(conn, reaching, trusted)
    owners = {s.oid: s.owners for s in standing.values()}
    guarded = {s.oid: next(iter(s.strange), "") for s in standing.values()}
    others = _strangers(conn, [(c, guarded[oid]) for oid in guarded for c in code.get(oid, ())])
    forced = {oid for (oid,) in conn.execute(_Q["forced"], [sorted(code)])} if code else set()
    found = {}
    for oid, role in guarded.items():
        why, here = list[str](), code.get(oid, ())
        if role and len(owners[oid]) > 1:
            why.append(
                f"it and its partitions belong to several roles ({', '.join(sorted(owners[oid]))}), and code of one "
                f"would run with another's rights: give them one owner, or set trusted_roles: [{role}]"
            )
        why += [refusal(c, role) for c in here if (c, role) in others or c.nested]
        if role and here and oid in forced:
            why.append(
                f"its rows would be read as {role}, for {here[0]}, and its row security is forced on {role}: "
                f"ALTER TABLE … NO FORCE ROW LEVEL SECURITY, or set trusted_roles: [{role}]"
            )
        if role or here:
            found[oid] = Survey(role, tuple(here), tuple(dict.fromkeys(why)))
    return found


def strangers(conn: Session, code: Iterable[Code], role: str) -> list[Code]:
    """Which of these would gain rights by running as the role, or as one that is trusted ('')."""
    listed = list(code)
    others = _strangers(conn, [(c, role) for c in listed])
    return [c for c in listed if (c, role) in others or c.nested]


def _strangers(conn: Session, pairs: Iterable[tuple[Code, str]]) -> set[tuple[Code, str]]:
    """Code whose author would gain rights even by running as the table's owner ('': a trusted one)."""
    listed = list(pairs)
    if not listed:
        return set()
    args = [[code.author for code, role in listed if role], [role for _, role in listed if role]]
    fine = set(conn.execute(_Q["may_act_as"], args).fetchall()) if args[0] else set()
    return {(code, role) for code, role in listed if (code.author, role) not in fine}


def foreign_code(conn: Session, oids: Iterable[int], trusted: Sequence[str]) -> dict[int, list[Code]]:
    """By oid, what of roles that are not trusted can run where these tables are read or written."""
    listed, found = sorted(set(oids)), dict[int, list[Code]]()
    if not listed:
        return found
    args = {"oids": listed, "trusted": list(trusted)}
    with plans_kept(conn):
        rows = [row for query in ("calls", "foreign_code") for row in conn.execute(_Q[query], args).fetchall()]
    for oid, *code in sorted(rows):
        found.setdefault(oid, []).append(Code(*code))
    return found


@dataclass(frozen=True, slots=True)
class _Standing:
    """Of a relation, with its partitions: who owns them, and who of these is not trusted; whether something may fire
    on it, and whether it is worth a walk."""

    oid: int
    owners: list[str]
    strange: list[str]
    fires: bool
    reaching: bool


def _standing(
    conn: Session, which: Literal["by_oid", "by_name"], args: Mapping[str, object], trusted: Sequence[str]
) -> dict[Name, _Standing]:
    query = sql.SQL(_Q["standing"]).format(relations=sql.SQL(_Q[which]))
    rows = conn.execute(query, {**args, "trusted": list(trusted)}).fetchall()
    return {(s, n): _Standing(oid, owners, strange or [], *more) for oid, s, n, owners, strange, *more in rows}


# --- under locks, in the transaction that reads or writes -----------------------------------------------------------


def lock(
    conn: Session,
    relations: Iterable[tuple[sql.Composable, Plan]],
    side: RowUse,
    wait: float = 0.0,
    *,
    fenced: bool = False,
) -> None:
    """Locks live tables or copies against what must not pass while their rows are moved; Busy where somebody is at one
    for as long as we `wait`. To read or write one that is not trusted, see above; only a superuser may be sure to have
    those locks. `fenced`: another session of ours keeps out whatever writes or alters, and would keep us out."""
    listed = [(relation, plan) for relation, plan in relations]
    guarded = [(r, p) for r, p in listed if getattr(p.keepers, side)]
    if guarded and (fenced or not is_superuser(conn)):
        guarded = []
    strong = {id(r) for r, _ in guarded}
    lock_briefly(conn, [r for r, _ in listed if id(r) not in strong], wait=wait)
    lock_briefly(conn, [r for r, _ in guarded], "ROW EXCLUSIVE", wait=wait)
    if guarded:
        _hold_catalogs(conn, [p for _, p in guarded])


def _hold_catalogs(conn: Session, guarded: Iterable[Plan]) -> None:
    catalogs = ["pg_statistic_ext", *(["pg_inherits"] if any(p.partitioned or p.split for p in guarded) else [])]
    lock_briefly(conn, [sql.Identifier("pg_catalog", name) for name in catalogs], "SHARE")


def is_superuser(conn: Session) -> bool:
    """As the server has told: no query, which would take the transaction's snapshot before the lock that it is for."""
    return conn.info.parameter_status("is_superuser") == "on"


def code_of_live(conn: Session, plans: Mapping[int, Plan]) -> tuple[set[int], dict[int, list[str]]]:
    """(tables to be read behind the wall, findings for those that must not be touched): asked once the lock is there,
    of a session whose snapshot is not older than it. OwnerChanged where one is another's by now."""
    return _code(conn, plans, "reader", {i: (p.schema, p.name) for i, p in plans.items()}, _READ)


def code_of_copies(conn: Session, plans: Mapping[int, Plan]) -> tuple[set[int], dict[int, list[str]]]:
    """The same for writing to copies, or reading them."""
    return _code(conn, plans, "writer", {i: (p.copy_schema, p.copy_name) for i, p in plans.items()}, ())


def hold_code_of_copies(conn: Session, plans: Mapping[int, Plan]) -> tuple[set[int], dict[int, list[str]]]:
    """The same for copies that are still to be locked; GaveWay where somebody is at one."""
    try:
        lock(conn, [(plan.copy, plan) for plan in plans.values() if plan.keepers.writer], "writer")
    except NO_SUCH_RELATION:
        raise copy_gone_meanwhile() from None
    return code_of_copies(conn, plans)


def reader_of(conn: Session, plan: Plan, *, asked: bool = True) -> str:
    """The role as which a live table is to be read that is locked already; '' for ourselves. StageFailed where it must
    not be. `asked`: of one that is trusted, whoever began the window or the chunk has asked whether it still is."""
    if asked and not (plan.keepers.reader or plan.keepers.refused):
        return ""
    return _role(plan, "reader", code_of_live(conn, {0: plan}))


def writer_of(conn: Session, plan: Plan, *, asked: bool = True) -> str:
    """The same of its copy, which is locked by this."""
    if asked and not (plan.keepers.writer or plan.keepers.refused):
        return ""
    return _role(plan, "writer", hold_code_of_copies(conn, {0: plan}))


def _role(plan: Plan, side: RowUse, found: tuple[set[int], dict[int, list[str]]]) -> str:
    coded, stops = found
    if stops:
        raise StageFailed("; ".join(stops[0]), table=plan.qualified)
    return str(getattr(plan.keepers, side)) if coded else ""


def _code(
    conn: Session, plans: Mapping[int, Plan], side: str, names: Mapping[int, Name], kinds: Sequence[str]
) -> tuple[set[int], dict[int, list[str]]]:
    if not plans:
        return set(), {}
    roles = {i: str(getattr(plan.keepers, side)) for i, plan in plans.items()}
    trusted = next(iter(plans.values())).keepers.trusted
    stops = {i: list(plan.keepers.refused) for i, plan in plans.items() if plan.keepers.refused}
    guarded = {i: names[i] for i, role in roles.items() if role and i not in stops}
    with plans_kept(conn):
        if guarded:
            _hold_names(conn, guarded.values(), side)
        standing = _standing(conn, "by_name", _listed(names.values()), trusted)
    there = {i: standing[name] for i, name in names.items() if name in standing}
    for i, found in there.items():
        if found.owners != [roles[i]] if roles[i] else found.strange:
            raise OwnerChanged(
                "its owner is another since the stage began", table=plans[i].qualified, todo="run the stage again"
            )
    if not guarded:
        return set(), stops
    if side == "reader" and any(there[i].oid != plans[i].oid for i in guarded if i in there):
        raise GaveWay("another table has its name just now", todo="nothing: this part is tried again")
    firing = {i: name for i, name in guarded.items() if i in there and there[i].fires} if side == "writer" else {}
    if firing:
        with plans_kept(conn):
            for i, trap in conn.execute(_Q["traps"], {"ids": list(firing), **_listed(firing.values())}).fetchall():
                what = f"{trap} would run where rows are written to its copy: drop it"
                stops.setdefault(i, []).append(what)
    oids = {i: there[i].oid for i in guarded if i in there}
    code_of = foreign_code(conn, [oid for i, oid in oids.items() if there[i].reaching], trusted)
    coded = {i: code_of[oid] for i, oid in oids.items() if oid in code_of}
    others = _strangers(conn, [(c, roles[i]) for i, code in coded.items() for c in code])
    for i, code in coded.items():
        why = [c for c in code if (c, roles[i]) in others or c.nested]
        if why:
            stops.setdefault(i, []).extend(refusal(c, roles[i]) for c in why)
    met = {i for i, code in coded.items() if not kinds or any(c.kind in kinds for c in code)}
    met |= {i for i in guarded if any(_PLAIN.fullmatch(made) is None for made in plans[i].columns.expressions)}  # USING
    met |= {i for i in guarded if plans[i].where}
    met |= {i for i in guarded if any("." in type_ for type_ in plans[i].key.types)}  # printed, and read again
    calling = {i for i in guarded if any("(" in made for made in plans[i].columns.expressions)}
    if casting := {oid: i for i, oid in oids.items() if i in calling}:
        met |= {casting[oid] for (oid,) in conn.execute(_Q["have_types"], [list(casting)])}
    return met - stops.keys(), stops


def _hold_names(conn: Session, names: Collection[Name], side: str) -> None:
    """They are kept from here on. What bears one now is locked, where that is a copy: its schema may have got another
    name since it was locked, and another table its name. What a live table is, its oid tells."""
    if not is_superuser(conn):
        return
    _hold_schemas(conn, "by_name", _listed(names))
    if side == "reader":
        return
    try:
        lock_briefly(conn, [sql.SQL("ONLY {}").format(sql.Identifier(*name)) for name in names], "ROW EXCLUSIVE")
    except (*NO_SUCH_RELATION, pg.WrongObjectType):
        raise GaveWay("it was dropped or renamed just now", todo="nothing: this part is tried again") from None


def hold_schemas(conn: Session, oids: Iterable[int]) -> None:
    """Keeps the names of the schemas that these relations and their partitions are in, until the transaction ends: no
    lock on a table keeps its schema from being renamed, and another table, or a view, from being found under its name.
    GaveWay where somebody is renaming one. Only a superuser may lock rows of a catalog."""
    if is_superuser(conn):
        _hold_schemas(conn, "by_oid", {"oids": sorted(set(oids))})


def _hold_schemas(conn: Session, which: Literal["by_oid", "by_name"], args: Mapping[str, object]) -> None:
    try:
        conn.execute(sql.SQL(_Q["hold_schemas"]).format(relations=sql.SQL(_Q[which])), args)
    except (pg.LockNotAvailable, pg.SerializationFailure):
        raise GaveWay("its schema is being altered just now", todo="nothing: this part is tried again") from None


def _listed(names: Iterable[Name]) -> dict[str, list[str]]:
    listed = list(names)
    return {"schemas": [schema for schema, _ in listed], "names": [name for _, name in listed]}


def may_more(role: str, taken_by: Iterable[str]) -> str:
    """Why code of a role must not run on the target, with the ways out."""
    return (
        f"code of role {role} would run on the target with rights that {role} has not on the source: there "
        f"{' '.join(sorted(taken_by))} or set trusted_roles: [{role}]"
    )


def refusal(code: Code, role: str) -> str:
    """Why a table must not be touched, with the ways out."""
    how = (
        "is reached through an array, a composite or a range, and"
        if code.nested
        else "would run as " + (role or "a trusted role") + ": it"
    )
    return (
        f"{code} {how} cannot be kept from rights that {code.author} has not: run the pipeline as "
        f"{role or code.author}, or set trusted_roles: [{code.author}]"
    )
