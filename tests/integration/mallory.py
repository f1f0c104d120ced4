"""Mallory: an ordinary role who attaches code of hers to tables of hers, so that it runs with rights that she has not.

`mallory_kinds.KINDS` is every kind of code that a table can have, each on a table of its own in her schema `m`; what it
calls is in `mallory_code`. `escalations` tells what she has gained. What she does only when asked to, as it may well
stop a pipeline, is `LEAVINGS`: what her code leaves in our session. `attempts` has her tables in a pipeline.

Tests look at her tables as she does: a superuser who as much as plans a query of them runs her code.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.integration.mallory_code import GROUND, LAIR, LEAVINGS, OF_BOB, VAULT
from tests.integration.mallory_kinds import Kind

_numbers = count(1)


class Mallory:
    """One of her, with a name of its own, and bob, whom she does not know better than us."""

    def __init__(self) -> None:
        self.name, self.bob = (f"{who}_{os.getpid()}_{next(_numbers)}" for who in ("mallory", "bob"))
        self._homes: list[Cluster] = []
        self._for_good = False

    # --- being there ------------------------------------------------------------------------------------------------

    def joins(self, *clusters: Cluster) -> Mallory:
        for cluster in clusters:
            if cluster in self._homes:
                continue
            with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
                for role in (self.name, self.bob):
                    made = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
                    admin.execute(made.format(sql.Identifier(role), sql.Literal(cluster.password)))
            self._homes.append(cluster)
        return self

    def leaves(self) -> None:
        """Whatever she has become, she is nobody from here on; she is gone unless something is still hers."""
        for cluster in self._homes:
            with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
                for role in map(sql.Identifier, (self.name, self.bob)):
                    nobody = "ALTER ROLE {} NOLOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION NOBYPASSRLS"
                    admin.execute(sql.SQL(nobody).format(role))
                    try:
                        admin.execute(sql.SQL("DROP ROLE {}").format(role))
                    except psycopg.errors.DependentObjectsStillExist:
                        continue

    def moves_in(self, dsn: str, kinds: Iterable[Kind] = (), *, with_rows: bool = True) -> None:
        """Her schemas and code in a database, and tables of these kinds with rows in them."""
        kinds = list(kinds)
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(self.named(GROUND))
        self.visits(dsn)
        self.does(dsn, LAIR)
        self._leaving(dsn, "")
        with psycopg.connect(self.at(dsn, self.bob), autocommit=True) as conn:
            conn.execute(self.named(OF_BOB))
        if with_rows:
            self.makes(dsn, kinds)

    def visits(self, dsn: str) -> None:
        """A database that has nothing of hers, and something that she would like to see."""
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(VAULT)

    @staticmethod
    def lets_in(dsn: str) -> None:
        """Grants that wait for the swap on a target."""
        with psycopg.connect(dsn, autocommit=True) as admin:
            for schema in ("m", "lair", "trap", "bob"):
                if admin.execute("SELECT to_regnamespace(%s)", [schema]).fetchone() != (None,):
                    admin.execute(sql.SQL("GRANT ALL ON SCHEMA {} TO PUBLIC").format(sql.Identifier(schema)))

    def makes(self, dsn: str, kinds: Iterable[Kind]) -> None:
        kinds = list(kinds)
        for kind in kinds:
            self.does(dsn, kind.told(kind.made), kind.rows(1, 12))
            if kind.as_superuser:
                with psycopg.connect(dsn, autocommit=True) as admin:
                    admin.execute(self.named(kind.told(kind.as_superuser)))

    # --- what she does in sessions of her own -----------------------------------------------------------------------

    def at(self, dsn: str, who: str | None = None) -> str:
        return make_conninfo(dsn, user=who or self.name)

    @contextmanager
    def session(self, dsn: str) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.at(dsn), autocommit=True) as conn:
            conn.execute("SET search_path = ''")
            yield conn

    def does(self, dsn: str, *statements: str) -> None:
        with self.session(dsn) as conn:
            for statement in statements:
                conn.execute(self.named(statement))

    def writes(self, dsn: str, kinds: Iterable[Kind], turn: int) -> None:
        """Rows that come, change, get another key and go; `turn` counts up."""
        with self.session(dsn) as conn:
            for kind in kinds:
                with conn.transaction():
                    key, first = f'"{kind.key}"', 100 * turn
                    conn.execute(kind.rows(first, first + 3).encode())
                    other = kind.told(kind.value).replace("'v' || i", f"'v' || {first}")
                    conn.execute(
                        f"UPDATE {kind.relation} SET v = (SELECT {other} FROM generate_series(2, 2) i)"
                        f" WHERE {key} = {first}".encode()
                    )
                    conn.execute(f"UPDATE {kind.relation} SET {key} = {first + 9} WHERE {key} = {first + 1}".encode())
                    conn.execute(f"DELETE FROM {kind.relation} WHERE {key} IN ({first + 2}, {turn})".encode())

    def hostile(self, dsn: str, kinds: Iterable[Kind], turn: int) -> None:
        """The same from a session that was made ready for whoever runs code in it with more rights than she has."""
        settings = [
            "standard_conforming_strings = off", "backslash_quote = on", "quote_all_identifiers = on",
            "transform_null_equals = on", "row_security = on", "check_function_bodies = off",
            "array_nulls = off", "xmloption = content", "DateStyle = 'German'", "extra_float_digits = -15",
            "default_transaction_isolation = 'read committed'", "constraint_exclusion = on",
        ]  # fmt: skip
        made = [*(f"SET {setting}" for setting in settings), "SET search_path = trap, pg_catalog, pg_temp"]
        for name in ("temporary types", "temporary relations"):
            made.insert(0, f"DO $do$ DECLARE i int; BEGIN {LEAVINGS[name]} END $do$")
        with psycopg.connect(self.at(dsn), autocommit=True) as conn:
            for statement in made:
                conn.execute(statement.encode())
            for kind in kinds:
                key, first = f'"{kind.key}"', 100 * turn
                conn.execute(
                    kind.rows(first, first + 1).replace("generate_series", "pg_catalog.generate_series").encode()
                )
                conn.execute(f"DELETE FROM {kind.relation} WHERE {key} OPERATOR(pg_catalog.=) {turn}".encode())

    def leaves_behind(self, dsn: str, what: str) -> None:
        """From here on her code leaves this (of LEAVINGS) in the session that it runs in; "" ends it."""
        with psycopg.connect(dsn, autocommit=True) as admin:
            there = admin.execute("SELECT to_regprocedure('lair.leave()') IS NOT NULL").fetchone()
        if there == (True,):
            self._leaving(dsn, LEAVINGS[what] if what else "")

    def _leaving(self, dsn: str, body: str) -> None:
        self.does(
            dsn,
            "CREATE OR REPLACE FUNCTION lair.leave() RETURNS void LANGUAGE plpgsql AS"
            f" $leave$ DECLARE f record; BEGIN {body} END $leave$",
        )

    # --- what came of it --------------------------------------------------------------------------------------------

    def escalations(self, *dsns: str) -> list[str]:
        """Everything that she has gained in these databases."""
        return [line for dsn in dsns for line in self._gained(dsn)]

    def _gained(self, dsn: str) -> list[str]:
        with psycopg.connect(dsn, autocommit=True) as admin:
            loot: dict[tuple[str, str, str], set[str]] = {}
            for told, kind, *where in _told(admin):
                if told == "loot":
                    loot.setdefault((kind, where[0], where[2]), set()).add(where[1])
            found = [f"{kind}: {gain} (as {who}: {'; '.join(sorted(how))})" for (kind, who, gain), how in loot.items()]
            if self._for_good and (row := admin.execute("SELECT is_called FROM lair.for_good").fetchone()) and row[0]:
                found.append("somewhere: ran as another, and it was rolled back")
            became = (
                "SELECT format('%%I has become more than it was', rolname) FROM pg_roles WHERE rolname = ANY(%s) AND"
                " (rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls OR EXISTS"
                " (SELECT FROM pg_auth_members WHERE member = pg_roles.oid))"
            )
            found += [line for (line,) in admin.execute(became, [[self.name, self.bob]])]
            granted = (
                "SELECT format('may write to %%s', c.oid::regclass) FROM pg_class c JOIN pg_roles r ON r.rolname = %s"
                " WHERE c.relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname IN ('pgddl', 'vault'))"
                " AND c.relkind = 'r' AND has_table_privilege(r.oid, c.oid, 'INSERT, UPDATE, DELETE')"
            )
            found += [line for (line,) in admin.execute(granted, [self.name])]
        return sorted(found)

    def kinds_gained(self, *dsns: str) -> list[str]:
        """The same by kind alone."""
        return sorted({line.partition(":")[0] for line in self.escalations(*dsns)})

    def seen(self, dsn: str) -> dict[str, set[str]]:
        """By kind, as whom her code was run by others than herself."""
        found: dict[str, set[str]] = {}
        with psycopg.connect(dsn, autocommit=True) as admin:
            for line in _told(admin):
                if line[0] == "seen":
                    found.setdefault(line[1], set()).add(line[2])
        return found

    def tells_for_good(self, dsn: str) -> None:
        """For transactions that are rolled back: whoever runs her code moves a sequence. That locks it."""
        self._for_good = True
        body = "BEGIN PERFORM pg_catalog.nextval('lair.for_good'); END"
        self.does(dsn, "CREATE SEQUENCE lair.for_good; GRANT ALL ON SEQUENCE lair.for_good TO PUBLIC")
        create = "CREATE OR REPLACE FUNCTION lair.tell_for_good(kind text) RETURNS void LANGUAGE plpgsql AS"
        self.does(dsn, f"{create} $tell$ {body} $tell$")

    def rows(self, dsn: str, kind: Kind, columns: str = "*") -> Counter[bytes]:
        """As COPY prints them, which calls no cast."""
        query = f"COPY (SELECT {columns} FROM {kind.relation}) TO STDOUT"
        with self.session(dsn) as conn, conn.cursor() as cursor, cursor.copy(query.encode()) as copy:
            return Counter(bytes(line) for chunk in copy for line in bytes(chunk).splitlines())

    def named(self, text: str) -> bytes:
        return (
            text.replace("{me}", sql.Identifier(self.name).as_string())
            .replace("{name}", sql.Literal(self.name).as_string())
            .replace("{bob}", sql.Identifier(self.bob).as_string())
            .replace("{bobs_name}", sql.Literal(self.bob).as_string())
            .encode()
        )


def _told(conn: psycopg.Connection[Any]) -> list[list[str]]:
    query = "SELECT convert_from(lo_get(oid), 'UTF8') FROM pg_largeobject_metadata"
    return [json.loads(line) for (line,) in conn.execute(query)]


def differing(one: Counter[bytes], other: Counter[bytes]) -> list[bytes]:
    """EXCEPT ALL both ways."""
    return sorted(((one - other) + (other - one)).elements())
