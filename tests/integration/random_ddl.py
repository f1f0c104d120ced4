"""An application and its developers, at random: transactions of DDL and DML over a handful of tables."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import psycopg
from psycopg import sql

START = """
CREATE TYPE public.mood AS ENUM ('m0');
CREATE TABLE public.t0 (id int PRIMARY KEY, a text, b int);
CREATE TABLE public.t1 (k1 int, k2 text, a numeric DEFAULT 0, PRIMARY KEY (k1, k2));
CREATE TABLE public.t2 (id bigint PRIMARY KEY, a text, m public.mood) PARTITION BY RANGE (id);
CREATE TABLE public.t2_0 PARTITION OF public.t2 FOR VALUES FROM (0) TO (1000);
CREATE VIEW public.v0 AS SELECT id FROM public.t0;
INSERT INTO public.t0 SELECT i, 'a' || i, i FROM generate_series(1, 300) i;
INSERT INTO public.t1 SELECT i, 'k' || i, i FROM generate_series(1, 300) i;
INSERT INTO public.t2 SELECT i, 'a', 'm0' FROM generate_series(1, 300) i;
"""

TABLES = """
SELECT c.relname, c.relkind = 'p',
       (SELECT array_agg(a.attname ORDER BY a.attnum) FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attnum <> ALL (i.indkey::int2[])),
       (SELECT array_agg(a.attname ORDER BY array_position(i.indkey::int2[], a.attnum)) FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey::int2[])),
       (SELECT jsonb_object_agg(a.attname, format_type(a.atttypid, NULL)) FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
ORDER BY c.relname
"""

VALUES = {
    "integer": lambda r: str(r.randrange(2000)),
    "bigint": lambda r: str(r.randrange(2000)),
    "numeric": lambda r: f"{r.randrange(2000)}.5",
    "text": lambda r: f"'x{r.randrange(2000)}'",
    "character varying": lambda r: f"'v{r.randrange(2000)}'",
    "public.mood": lambda _: "'m0'",
    "mood": lambda _: "'m0'",
}


class Developers:
    """Runs random transactions in a thread until it is left; `done` counts those that committed. The first `limit` of
    them may hold DDL, those after it only rows, so that a stage on a slow machine has an end."""

    def __init__(self, dsn: str, seed: int, pause: float = 0.3) -> None:
        self.pause = pause
        self._dsn, self._random = dsn, random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._number = 0
        self.rows_only = False
        self.done = self.ddl = 0
        self.limit = 10**9
        self.log: list[str] = []
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as conn:
                while not self._over.is_set():
                    self._transaction(conn)
                    self._over.wait(self._random.uniform(0, self.pause))
        except BaseException as error:  # noqa: BLE001 - raised again when the block is left
            self.error = error

    def _transaction(self, conn: psycopg.Connection[Any]) -> None:
        ran: list[str] = []
        try:
            with conn.transaction(force_rollback=self._random.random() < 0.1) as transaction:
                for _ in range(self._random.randint(1, 3)):
                    statement = self._statement(conn)
                    if self._random.random() < 0.1:
                        with conn.transaction(force_rollback=True):
                            conn.execute(statement.encode())
                        continue
                    ran.append(statement)
                    conn.execute(statement.encode())
            if not transaction.force_rollback:
                self.done += 1
                self.ddl += sum(s.split()[0] not in ("INSERT", "UPDATE", "DELETE", "TRUNCATE") for s in ran)
                self.log.append("; ".join(ran))
        except (psycopg.errors.IntegrityError, psycopg.errors.DataError, psycopg.errors.DeadlockDetected,
                psycopg.errors.DependentObjectsStillExist, psycopg.errors.FeatureNotSupported,
                psycopg.errors.ObjectInUse, psycopg.errors.InvalidTableDefinition,
                psycopg.errors.CannotCoerce, psycopg.errors.DatatypeMismatch,
                psycopg.errors.SyntaxError) as error:  # fmt: skip
            if "publication" in str(error):
                raise  # and these only for us

    def _statement(self, conn: psycopg.Connection[Any]) -> str:
        tables = conn.execute(TABLES).fetchall()
        name, partitioned, others, key, types = self._random.choice(tables)
        kinds: list[tuple[int, Callable[..., str]]] = [
            (30, self._insert), (20, self._update), (8, self._delete), (2, self._truncate), (6, self._move_key),
            (8, self._add_column), (4, self._drop_column), (5, self._rename_column), (3, self._rename_table),
            (4, self._retype), (3, self._default), (3, self._create), (2, self._drop), (3, self._index),
            (2, self._check), (2, self._block), (3, self._partition), (2, self._create_as), (3, self._retype_key),
        ]  # fmt: skip
        kinds = kinds[:5] if self.rows_only or self.done >= self.limit else kinds
        chosen = self._random.choices([k for _, k in kinds], [w for w, _ in kinds])[0]
        self._number += 1
        return chosen(name, partitioned, others or [], key, types, len(tables))

    def _value(self, type_: str) -> str:
        return VALUES.get(type_, lambda _: "NULL")(self._random)

    def _q(self, name: str) -> str:
        return sql.Identifier(name).as_string(None)

    def _table(self, name: str) -> str:
        return f"public.{self._q(name)}"

    def _where(self, key: list[str], types: dict[str, str]) -> str:
        column = self._random.choice(key)
        if types[column] in ("integer", "bigint", "numeric"):
            return f"{self._q(column)} % {self._random.randint(5, 60)} = {self._random.randrange(5)}"
        return f"{self._q(column)} LIKE '%{self._random.randrange(10, 99)}'"

    def _insert(self, name: str, _p: bool, others: list[str], key: list[str], types: dict[str, str], _n: int) -> str:
        columns = [*key, *(c for c in others if self._random.random() < 0.7)]
        rows = ", ".join(f"({', '.join(self._value(types[c]) for c in columns)})" for _ in range(5))
        return (
            f"INSERT INTO {self._table(name)} ({', '.join(map(self._q, columns))}) VALUES {rows} ON CONFLICT DO NOTHING"
        )

    def _update(self, name: str, _p: bool, others: list[str], key: list[str], types: dict[str, str], n: int) -> str:
        if not others:
            return self._insert(name, _p, others, key, types, n)
        column = self._random.choice(others)
        where = self._where(key, types)
        return f"UPDATE {self._table(name)} SET {self._q(column)} = {self._value(types[column])} WHERE {where}"

    def _move_key(self, name: str, _p: bool, others: list[str], key: list[str], types: dict[str, str], n: int) -> str:
        column = self._q(key[0])
        if types[key[0]] not in ("integer", "bigint"):
            return self._update(name, _p, others, key, types, n)
        by, where = self._random.choice([1, 1000, -1]), self._where(key, types)
        return f"UPDATE {self._table(name)} SET {column} = {column} + {by} WHERE {where} AND {column} < 900"

    def _delete(self, name: str, _p: bool, _o: list[str], key: list[str], types: dict[str, str], _n: int) -> str:
        return f"DELETE FROM {self._table(name)} WHERE {self._where(key, types)}"

    def _truncate(self, name: str, *_: Any) -> str:
        return f"TRUNCATE {self._table(name)}"

    def _add_column(self, name: str, *_: Any) -> str:
        definition = self._random.choice([
            "int", "text DEFAULT 'd'", "numeric DEFAULT random()", "text DEFAULT now()::text", "int NOT NULL DEFAULT 7",
            "public.mood", "bigint GENERATED BY DEFAULT AS IDENTITY", "varchar(30)",
        ])  # fmt: skip
        return f"ALTER TABLE {self._table(name)} ADD COLUMN c{self._number} {definition}"

    def _drop_column(self, name: str, p: bool, others: list[str], *rest: Any) -> str:
        if not others:
            return self._add_column(name)
        return f"ALTER TABLE {self._table(name)} DROP COLUMN {self._q(self._random.choice(others))}"

    def _rename_column(self, name: str, _p: bool, others: list[str], key: list[str], *_: Any) -> str:
        column = self._random.choice([*others, *key])
        return f'ALTER TABLE {self._table(name)} RENAME {self._q(column)} TO "R{self._number}"'

    def _rename_table(self, name: str, *_: Any) -> str:
        return f"ALTER TABLE {self._table(name)} RENAME TO r{self._number}"

    def _retype(self, name: str, _p: bool, others: list[str], key: list[str], types: dict[str, str], _n: int) -> str:
        wider = {"integer": "bigint", "bigint": "numeric", "numeric": "text", "character varying": "text"}
        able = [c for c in others if types[c] in wider] + [c for c in key if types[c] == "integer" and not _p]
        if not able:
            return self._add_column(name)
        column = self._random.choice(able)
        return f"ALTER TABLE {self._table(name)} ALTER {self._q(column)} TYPE {wider[types[column]]}"

    def _retype_key(self, name: str, p: bool, _o: list[str], key: list[str], types: dict[str, str], n: int) -> str:
        other = {"integer": "bigint", "bigint": "integer", "text": "varchar", "character varying": "text"}
        able = [c for c in key if types[c] in other]
        if p or not able:
            return self._move_key(name, p, _o, key, types, n)
        column = self._random.choice(able)
        new = other[types[column]]
        using = self._random.choice(["", f" USING {self._q(column)}::text::{new}"])
        return f"ALTER TABLE {self._table(name)} ALTER COLUMN {self._q(column)} SET DATA TYPE {new}{using}"

    def _default(self, name: str, _p: bool, others: list[str], _k: list[str], types: dict[str, str], _n: int) -> str:
        able = [c for c in others if types[c] in VALUES]
        if not able:
            return self._add_column(name)
        column = self._random.choice(able)
        what = self._random.choice([f"SET DEFAULT {self._value(types[column])}", "DROP DEFAULT"])
        return f"ALTER TABLE {self._table(name)} ALTER {self._q(column)} {what}"

    def _create(self, name: str, _p: bool, _o: list[str], _k: list[str], _t: dict[str, str], number: int) -> str:
        if number > 7:
            return self._drop(name, _p, _o, _k, _t, number)
        return f"CREATE TABLE public.n{self._number} (id int PRIMARY KEY, a text DEFAULT 'new', b bigint)"

    def _create_as(self, name: str, _p: bool, _o: list[str], _k: list[str], _t: dict[str, str], number: int) -> str:
        if number > 7:
            return self._drop(name, _p, _o, _k, _t, number)
        return (
            f"CREATE TABLE public.s{self._number} AS SELECT i AS id, 'as' AS a FROM generate_series(1, 40) i;"
            f" ALTER TABLE public.s{self._number} ADD PRIMARY KEY (id)"
        )

    def _drop(self, name: str, *rest: Any) -> str:
        return f"DROP TABLE {self._table(name)}" if rest[-1] > 3 and name[0] in "nsr" else self._add_column(name)

    def _index(self, name: str, _p: bool, others: list[str], key: list[str], *_: Any) -> str:
        column = self._q(self._random.choice([*others, *key]))
        return f"CREATE INDEX i{self._number} ON {self._table(name)} ({column})"

    def _check(self, name: str, *_: Any) -> str:
        return f"ALTER TABLE {self._table(name)} ADD CONSTRAINT k{self._number} CHECK ({self._number} > 0)"

    def _block(self, name: str, *_: Any) -> str:
        inside = f"ALTER TABLE {self._table(name)} ADD COLUMN c{self._number} int DEFAULT 3"
        return f"DO $$ BEGIN {inside}; UPDATE {self._table(name)} SET c{self._number} = 4; END $$"

    def _partition(self, name: str, partitioned: bool, *rest: Any) -> str:
        if not partitioned:
            return self._add_column(name)
        low = 1000 * self._number
        bound = f"FOR VALUES FROM ({low}) TO ({low + 999})"
        return f"CREATE TABLE public.p{self._number} PARTITION OF {self._table(name)} {bound}"


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "still not so"
        time.sleep(0.01)
