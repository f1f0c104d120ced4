"""What refers to a table by its oid and is no part of it: views, functions, other tables' policies and rules,
publications, children. A swap carries it over from the table that goes to the one that comes.

In the one transaction of the swap, either way (a revert calls the same):

    found = read(conn, tables)          # before the lock, without any
    with conn.transaction():
        found.lock_views(conn)          # before the tables: in the order in which readers lock
        ...                             # LOCK the tables and `found.tables`
        read(conn, tables) == found     # or try again
        found.take_away(conn)
        ...                             # one table moves away, the other takes its name
        found.put_back(conn, away)      # every text names the table, which by now is the other one
        left_behind(conn, tables) == []

What can be told anew in its place (CREATE OR REPLACE VIEW, FUNCTION and RULE, ALTER POLICY) keeps oid, owner, grants,
comments and whatever depends on it. What cannot, since its columns or arguments get other types, is dropped and made
again, and so is whatever stands on that. CASCADE is never used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from psycopg import sql

from airflow_provider_pgddl.engine.apply.as_client import run_as
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.rights.alter_as_owner import alter
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("dependents")


_MATERIALIZED = "materialized view"


@dataclass(frozen=True, slots=True)
class Refused:
    """What cannot be carried over: the table's oid, what it is and why, and what to do."""

    table: int
    what: str
    fix: str
    code: str = "dependent"


class _Object(NamedTuple):
    """A user of a table, or of what uses one. `oid` is a view's or a function's own."""

    kind: str
    classid: int
    oid: int


@dataclass(frozen=True, slots=True)
class _Use:
    """That `user` refers to `used`, and in which way."""

    user: _Object
    used: int
    part_of: int | None
    column: int
    by_type: bool
    in_signature: bool
    description: str
    of_extension: bool


@dataclass(frozen=True, slots=True)
class _Made:
    """What is dropped and made again: `granted` where rights on it were ever given or taken, `grants` as (grantor or
    None for the owner, statement)."""

    kind: str
    name: str
    away: str
    statements: tuple[str, ...]
    granted: bool
    grants: tuple[tuple[str | None, str], ...]


@dataclass(frozen=True, slots=True)
class Carried:
    """All that goes over, as it was read: two of them are equal where nothing changed in between."""

    refused: tuple[Refused, ...] = ()
    views: tuple[str, ...] = ()
    """Statements that do no more than lock a view each, the outermost first."""
    tables: tuple[Name, ...] = ()
    """Other tables whose policies and rules are told anew."""
    made: tuple[_Made, ...] = ()
    """In the order in which they are dropped."""
    again: tuple[str, ...] = ()
    published: tuple[tuple[str, str], ...] = ()
    children: tuple[tuple[Name, Name], ...] = ()
    """(child, parent) by name."""

    def statements(self, away: Mapping[Name, Name]) -> tuple[list[str], list[str]]:
        """What is run before the tables move and after it, but for grants on what is made again: for a plan."""
        moved = [
            _child_statement(child, how, name).as_string()
            for child, parent in self.children
            for how, name in (("INHERIT", parent), ("NO INHERIT", away[parent]))
        ]
        made = [statement for one in reversed(self.made) for statement in one.statements]
        before = [*(leave for leave, _ in self.published), *(one.away for one in self.made)]
        return before, [*moved, *made, *self.again, *(join for _, join in self.published)]

    def lock_views(self, conn: Session) -> None:
        """A reader locks a view before the tables in it: who locks a table first would meet it half-way. LOCK on a view
        would lock every table in it; to give it the owner that it has locks nothing else."""
        for statement in self.views:
            conn.execute(statement)

    def take_away(self, conn: Session) -> None:
        """Before the tables move. An object that came just now and stands on one of these makes it fail."""
        for leave, _ in self.published:
            conn.execute(leave)
        for made in self.made:
            conn.execute(made.away)

    def put_back(self, conn: Session, away: Mapping[Name, Name], trusted: Sequence[str]) -> None:
        """After the move; `away`: the name of each table → what the one that it replaced is called now. `trusted` are
        the pipeline's trusted_roles: what is made again may be others'."""
        for child, parent in self.children:
            # In this order: what nobody passes on any more becomes the child's own for good.
            conn.execute(_child_statement(child, "INHERIT", parent))
            conn.execute(_child_statement(child, "NO INHERIT", away[parent]))
        conn.execute("SELECT pg_catalog.set_config('check_function_bodies', 'off', true)")
        for made in reversed(self.made):
            _make(conn, made, trusted)
        for statement in self.again:
            alter(conn, statement, trusted)
        for _, join in self.published:
            conn.execute(join)


def _child_statement(child: Name, how: str, parent: Name) -> sql.Composed:
    return sql.SQL("ALTER TABLE {} {} {}").format(sql.Identifier(*child), sql.SQL(how), sql.Identifier(*parent))


def _make(conn: Session, made: _Made, trusted: Sequence[str]) -> None:
    for statement in made.statements:
        alter(conn, statement, trusted)
    query = _Q["bare_function" if made.kind == "function" else "bare_relation"]
    for (statement,) in conn.execute(query, {"name": made.name, "owner": made.granted}).fetchall():
        conn.execute(statement)
    for role, grant in made.grants:
        run_as(conn, role, grant)


def still_referring(conn: Session, oids: Sequence[int], but_not: Collection[int] = ()) -> list[str]:
    """What refers to these tables and is no part of them: nothing, behind a swap."""
    relation = _table_class(conn)
    uses = _uses(conn, [(relation, oid) for oid in oids])
    return [use.description for use in uses if use.user.oid not in but_not]


def lacking(conn: Session, relations: Collection[int], functions: Collection[int] = ()) -> list[tuple[int, str, str]]:
    """(oid, what, fix) of the rights that we or their owners lack to make these again with owner and grants."""
    if not (relations or functions):
        return []
    privilege = "SET" if conn.info.server_version >= 160_000 else "MEMBER"
    args = {"relations": sorted(relations), "functions": sorted(functions), "privilege": privilege}
    return conn.execute(_Q["lacking"], args).fetchall()


def read(
    conn: Session,
    oids: Sequence[int],
    changed: Mapping[int, Collection[str]] | None = None,
    *,
    materialized: bool = False,
    but_not: Collection[int] = (),
) -> Carried:
    """What refers to these tables. `changed`: the columns of each that get another type; `materialized`: whether
    materialized views are made again, filled under the lock; `but_not`: views and functions that stay with them."""
    return _Reader(conn, oids, changed or {}, materialized, but_not).read()


class _Reader:
    """One look at the catalog; what it finds out is in the lists that become a `Carried`."""

    def __init__(
        self, conn: Session, oids: Sequence[int], changed: Mapping[int, Collection[str]], materialized: bool,
        but_not: Collection[int],
    ) -> None:  # fmt: skip
        self.conn, self.roots, self.materialized, self.but_not = conn, set(oids), materialized, but_not
        self.refused: list[Refused] = []
        named = [(oid, column) for oid, columns in changed.items() for column in sorted(columns)]
        args = {"oids": [oid for oid, _ in named], "columns": [column for _, column in named]}
        self.changed = set(conn.execute(_Q["columns"], args).fetchall()) if named else set()
        self.uses: list[_Use] = []
        self.root_of: dict[int, int] = {}

    def read(self) -> Carried:
        self._follow()
        direct = {use.user for use in self.uses if use.used in self.roots}
        dropped = self._dropped(direct)
        gone = {user.oid for user in dropped}
        for use in self.uses:
            if use.used in self.roots or use.used in gone:
                self._refuse(use, gone)
        carried = dropped | {user for user in direct if user.kind in ("view", "function")}
        order = self._users_first(carried)
        relations, functions = self._relations(order), self._functions(order)
        grants = self._grants(dropped)
        views, made, again = [], [], []
        for user in order:
            row = relations.get(user.oid) or functions.get(user.oid)
            if row is None:
                continue  # dropped just now
            if user.oid in relations:
                views.append(row["owner"])
            if user in dropped:
                # Its owner first: what is evaluated for its indexes, and to fill it, is evaluated as that role.
                statements = [row["make"], row["owner"], *row["parts"], *filter(None, [row.get("fill")])]
                given = tuple(grants.get(user.oid, ()))
                made.append(_Made(user.kind, row["name"], row["away"], tuple(statements), row["granted"], given))
            else:
                again.append(row["again"])
        remade = [{o.oid for o in dropped if (o.kind == "function") == of} for of in (False, True)]
        for oid, what, fix in lacking(self.conn, *remade):
            self._no(self.root_of[oid], what, fix, "rights")
        tables, locks, told = self._policies_and_rules(direct, gone)
        return Carried(
            tuple(dict.fromkeys(self.refused)),
            tuple(dict.fromkeys([*views, *locks])),
            tuple(tables),
            tuple(made),
            (*again, *told),
            tuple(self._publications()),
            tuple(self._children()),
        )

    def _follow(self) -> None:
        """Everything that stands on the tables, at any height."""
        relation = _table_class(self.conn)
        self.root_of = {oid: oid for oid in self.roots}
        ask = [(relation, oid) for oid in sorted(self.roots)]
        while ask:
            found = [use for use in _uses(self.conn, ask) if use.user.oid not in self.but_not]
            self.uses += found
            ask = []
            for use in found:
                new = use.user.oid not in self.root_of and use.user.kind in ("view", _MATERIALIZED, "function")
                self.root_of.setdefault(use.user.oid, self.root_of[use.used])
                if new:
                    ask.append((use.user.classid, use.user.oid))
            ask.sort()

    def _dropped(self, direct: set[_Object]) -> set[_Object]:
        """What cannot be told anew in its place, and what stands on that."""
        dropped: set[_Object] = set()
        for use in self.uses:
            if use.used not in self.roots or use.user not in direct:
                continue
            retyped = use.by_type or (use.used, use.column) in self.changed
            if use.user.kind == _MATERIALIZED or use.in_signature or (retyped and use.user.kind == "view"):
                dropped.add(use.user)
        while True:
            gone = {user.oid for user in dropped}
            more = {
                use.user
                for use in self.uses
                if use.used in gone and use.user.kind in ("view", _MATERIALIZED, "function")
            } - dropped
            if not more:
                return dropped
            dropped |= more

    def _users_first(self, objects: Collection[_Object]) -> list[_Object]:
        users: dict[int, list[_Object]] = {}
        for use in self.uses:
            if use.user in objects:
                users.setdefault(use.used, []).append(use.user)
        order: dict[_Object, None] = {}
        seen: set[_Object] = set()

        def visit(one: _Object) -> None:
            if one in seen:
                return
            seen.add(one)
            for user in users.get(one.oid, ()):
                visit(user)
            order[one] = None

        for one in sorted(objects):
            visit(one)
        return list(order)

    # --- what is refused --------------------------------------------------------------------------------------------

    def _refuse(self, use: _Use, gone: Collection[int]) -> None:
        root, kind, what = self.root_of[use.used], use.user.kind, use.description
        if use.part_of in gone:
            return  # goes and comes back with it
        if use.of_extension:
            self._no(root, f"{what} belongs to an extension or depends on one, and refers to it", _ANYWAY)
        elif kind == _MATERIALIZED and not self.materialized:
            self._no(
                root,
                f"{what} refers to it, and would go on referring to the old table after the swap",
                "swap: {recreate_materialized_views: true}  # it is filled again while the table is locked\n"
                "-- or set it aside:\n" + "\n".join(f"-- {line}" for line in self._set_aside(use.user).splitlines()),
            )
        elif kind == "other" or (kind in ("policy", "rule") and use.used in gone):
            self._no(root, f"{what} refers to it, and would go on referring to the old table after the swap", _ANYWAY)
        elif kind in ("policy", "rule") and use.part_of in self.roots:
            self._no(
                root,
                f"{what} refers to it, and both tables are rewritten by this pipeline",
                "rewrite one after the other, each in a pipeline of its own",
            )

    def _no(self, root: int, what: str, fix: str, code: str = "dependent") -> None:
        self.refused.append(Refused(root, what, fix, code))

    def _set_aside(self, view: _Object) -> str:
        rows = self._relations([view])
        if view.oid not in rows:
            return _ANYWAY
        row = rows[view.oid]
        parts = "".join(f"{statement};\n" for statement in [row["make"], *row["parts"]])
        return f"{row['away']};\n-- after the swap, with its grants:\n{parts}".rstrip()

    def _rights(self, oid: int, what: str, owned: bool, owner: str) -> None:
        if not owned:
            role = self.conn.execute("SELECT current_user::text").fetchone()
            assert role is not None
            grant = sql.SQL("GRANT {} TO {};").format(sql.Identifier(owner), sql.Identifier(role[0]))
            told = f"the swap tells {what} anew: role {role[0]} needs the rights of its owner, {owner}"
            self._no(self.root_of[oid], told, grant.as_string(self.conn), "rights")

    # --- texts ------------------------------------------------------------------------------------------------------

    def _relations(self, objects: Iterable[_Object]) -> dict[int, dict[str, Any]]:
        oids = sorted(o.oid for o in objects if o.kind in ("view", _MATERIALIZED))
        rows = self.conn.execute(_Q["relations"], {"oids": oids}).fetchall() if oids else []
        found = {}
        for oid, schema, name, kind, temporary, owner, owned, labelled, granted, *texts in rows:
            what = f"{'view' if kind == 'v' else _MATERIALIZED} {schema}.{name}"
            if temporary:
                self._no(self.root_of[oid], f"temporary {what} of another session refers to it", "end that session")
            if labelled:
                self._no(self.root_of[oid], f"{what} has a security label and refers to it", _ANYWAY)
            self._rights(oid, what, owned, owner)
            quoted = sql.Identifier(schema, name).as_string(self.conn)
            found[oid] = {
                **dict(zip(("owner", "away", "again", "make", "fill", "parts"), texts, strict=True)),
                "name": quoted, "granted": granted,
            }  # fmt: skip
        return found

    def _functions(self, objects: Iterable[_Object]) -> dict[int, dict[str, Any]]:
        oids = sorted(o.oid for o in objects if o.kind == "function")
        rows = self.conn.execute(_Q["functions"], {"oids": oids}).fetchall() if oids else []
        found = {}
        for oid, owner, owned, labelled, granted, change_owner, away, text, parts, name in rows:
            if labelled:
                self._no(self.root_of[oid], f"function {name} has a security label and refers to it", _ANYWAY)
            self._rights(oid, f"function {name}", owned, owner)
            found[oid] = {
                "owner": change_owner, "away": away, "again": text, "make": text, "parts": parts, "name": name,
                "granted": granted,
            }  # fmt: skip
        return found

    def _grants(self, objects: Collection[_Object]) -> dict[int, list[tuple[str | None, str]]]:
        found: dict[int, list[tuple[str | None, str]]] = {}
        oids = sorted(o.oid for o in objects)
        rows = self.conn.execute(_Q["grants"], {"oids": oids}).fetchall() if oids else []
        for oid, grantor, of_owner, statement in rows:
            found.setdefault(oid, []).append((None if of_owner else grantor, statement))
        return found

    def _policies_and_rules(
        self, direct: Collection[_Object], gone: Collection[int]
    ) -> tuple[list[Name], list[str], list[str]]:
        """The tables to lock, the views to lock, and the statements."""
        tables: dict[Name, None] = {}
        locks: list[str] = []
        told: list[str] = []
        parts = {use.user: use.part_of for use in self.uses}
        by_kind = {
            kind: sorted(
                u.oid for u in direct if u.kind == kind and parts[u] not in gone and parts[u] not in self.roots
            )
            for kind in ("policy", "rule")
        }
        for oid, name, schema, table, owned, owner, statement in self._rows("policies", by_kind["policy"]):
            self._rights(oid, f"policy {name} on {schema}.{table}", owned, owner)
            tables[schema, table] = None
            told.append(statement)
        for oid, name, schema, table, owned, owner, of_view, statement, lock in self._rows("rules", by_kind["rule"]):
            self._rights(oid, f"rule {name} on {schema}.{table}", owned, owner)
            if of_view:
                locks.append(lock)
            else:
                tables[schema, table] = None
            told.append(statement)
        return sorted(tables), locks, told

    def _rows(self, query: str, oids: Sequence[int]) -> list[tuple[Any, ...]]:
        return self.conn.execute(_Q[query], {"oids": list(oids)}).fetchall() if oids else []

    def _publications(self) -> list[tuple[str, str]]:
        query = "publications" if self.conn.info.server_version >= 150_000 else "publications_14"
        found = []
        for oid, name, owned, owner, _, leave, join in self._rows(query, sorted(self.roots)):
            self._rights(oid, f"publication {name}", owned, owner)
            found.append((leave, join))
        return found

    def _children(self) -> list[tuple[Name, Name]]:
        found = []
        rows = self._rows("children", sorted(self.roots))
        for parent_oid, parent_schema, parent, schema, name, owned, owner, last in rows:
            self._rights(parent_oid, f"child {schema}.{name}", owned, owner)
            if not last:
                self._no(
                    parent_oid,
                    f"{schema}.{name} inherits from it and from another table behind it; their order would change",
                    "see that this is the last of its parents",
                    "inheritance",
                )
            found.append(((schema, name), (parent_schema, parent)))
        return found


_ANYWAY = "drop it, and create it again after the swap"


def _table_class(conn: Session) -> int:
    row = conn.execute("SELECT 'pg_catalog.pg_class'::pg_catalog.regclass::oid").fetchone()
    assert row is not None
    return int(row[0])


def _uses(conn: Session, objects: Sequence[tuple[int, int]]) -> list[_Use]:
    args = {"classes": [c for c, _ in objects], "oids": [o for _, o in objects]}
    return [
        _Use(_Object(kind, classid, oid), used, *rest)
        for used, kind, classid, oid, *rest in conn.execute(_Q["users"], args).fetchall()
    ]
