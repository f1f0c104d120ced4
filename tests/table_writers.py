"""Writers on tables that they have never seen: random rows in, changed, out, keys too, and rows that change places."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.demo.traffic import Connection, Operation, Traffic

_INTROSPECT = """
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), format_type(coalesce(base.oid, t.oid), NULL),
       a.attgenerated <> '' , a.attidentity <> '' OR coalesce(pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%%', false),
       a.attidentity = 'a',
       EXISTS (SELECT FROM pg_catalog.pg_constraint f
                WHERE f.conrelid = c.oid AND f.contype = 'f' AND a.attnum = ANY (f.conkey)),
       EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indnkeyatts = 1
                  AND i.indkey[0] = a.attnum AND i.indpred IS NULL),
       coalesce(a.attnum = ANY (key.indkey), false),
       pg_table_size(c.oid)
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
  LEFT JOIN pg_catalog.pg_type base ON base.oid = t.typbasetype
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
  LEFT JOIN LATERAL (SELECT i.indkey FROM pg_catalog.pg_index i
                      WHERE i.indrelid = c.oid AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
                      ORDER BY NOT i.indisprimary, i.indexrelid LIMIT 1) key ON true
 WHERE c.oid = %s::regclass
 ORDER BY a.attnum
"""

_FRESH = {
    "smallint": "floor(random() * 32000)",
    "integer": "floor(random() * 2000000000)",
    "bigint": "floor(random() * 1e15)",
    "numeric": "round((random() * 9)::numeric, 2)",
    "real": "random() * 1000",
    "double precision": "random() * 1000",
    "text": "left(md5(random()::text), 9)",
    "character varying": "left(md5(random()::text), 9)",
    "character": "left(md5(random()::text), 9)",
    "bytea": "decode(md5(random()::text), 'hex')",
    "boolean": "random() < 0.5",
    "uuid": "md5(random()::text)::uuid",
    "date": "'2020-01-01'::date + floor(random() * 3000)::integer",
    "timestamp without time zone": "'2020-01-01'::timestamp + random() * interval '3000 days'",
    "timestamp with time zone": "'2020-01-01+00'::timestamptz + random() * interval '3000 days'",
    "time without time zone": "'00:00'::time + random() * interval '1 day'",
    "interval": "random() * interval '1 day'",
    "json": "json_build_object('r', random())",
    "jsonb": "jsonb_build_object('r', random())",
}

# A random writer walks into constraints all the time; that says nothing about us.
_OUTCOMES = (pg.IntegrityError, psycopg.DataError)


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    base: str
    generated: bool
    serial: bool
    always: bool
    foreign: bool
    unique: bool
    key: bool

    @property
    def fresh(self) -> sql.Composable | None:
        """An expression for a value that is likely to be new; None for types that are only copied around."""
        expression = _FRESH.get(self.base)
        return None if expression is None else sql.SQL(f"({expression})::{self.type}")


class Table:
    """A table, and statements that change a random row of it."""

    def __init__(self, conn: Connection, schema: str, name: str) -> None:
        self.name = sql.Identifier(schema, name)
        rows = conn.execute(_INTROSPECT, [self.name.as_string(conn)]).fetchall()
        if not rows:
            raise ValueError(f"{schema}.{name} has no columns")
        self.columns = [Column(*row[:9]) for row in rows]
        self.large = rows[0][9] > 4 << 20
        self.key = [column for column in self.columns if column.key]
        # Without a key a row is where it is, as long as nobody moves it.
        self._row_id = _names(self.key) if self.key else sql.SQL("ctid")

    def insert(self, conn: Connection, chance: random.Random) -> None:
        columns = [c for c in self.columns if not c.generated and not c.serial]
        if not columns:
            conn.execute(sql.SQL("INSERT INTO {} DEFAULT VALUES").format(self.name))
            return
        values = [self._like_another(column, chance) for column in columns]
        done = conn.execute(
            sql.SQL("INSERT INTO {} ({}) SELECT {} FROM (SELECT * FROM {} ORDER BY random() LIMIT 1) s").format(
                self.name, _names(columns), sql.SQL(", ").join(values), self._some()
            )
        )
        if not done.rowcount:
            fresh = sql.SQL(", ").join(column.fresh or sql.SQL("DEFAULT") for column in columns)
            conn.execute(sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(self.name, _names(columns), fresh))

    def update(self, conn: Connection, chance: random.Random) -> None:
        columns = [c for c in self.columns if not (c.generated or c.always or c.key or c.unique)]
        if columns:
            self._set(conn, chance.sample(columns, min(len(columns), chance.randint(1, 3))))

    def rekey(self, conn: Connection, chance: random.Random) -> None:
        columns = [c for c in self.key if not (c.always or c.generated)]
        if columns:
            self._set(conn, [chance.choice(columns)])

    def delete(self, conn: Connection, chance: random.Random) -> None:
        conn.execute(sql.SQL("DELETE FROM {} WHERE ({}) = ({})").format(self.name, self._row_id, self._one()))

    def swap(self, conn: Connection, chance: random.Random) -> None:
        """Two rows change places in a unique column, by way of a value that nobody has."""
        columns = [c for c in self.columns if c.unique and not (c.generated or c.always) and c.fresh is not None]
        if not columns:
            return
        column = chance.choice(columns)
        name = sql.Identifier(column.name)
        # As text: not every value has a counterpart here.
        rows = conn.execute(
            sql.SQL(
                "SELECT {0}::text FROM {1} WHERE {0} IN (SELECT {0} FROM {2} ORDER BY random() LIMIT 2) FOR UPDATE"
            ).format(name, self.name, self._some())
        ).fetchall()
        if len(rows) != 2:  # children of the table may have the same values again
            return
        (one,), (other,) = rows
        ((spare,),) = conn.execute(sql.SQL("SELECT ({})::text").format(column.fresh)).fetchall()
        statement = sql.SQL("UPDATE {} SET {} = {}::{} WHERE {} = {}::{}")
        kind = sql.SQL(column.type)
        for value, previous in ((spare, one), (one, other), (other, spare)):
            # Literals, since a name may have a percent sign in it.
            conn.execute(statement.format(self.name, name, sql.Literal(value), kind, name, sql.Literal(previous), kind))

    def truncate(self, conn: Connection, chance: random.Random) -> None:
        conn.execute(sql.SQL("TRUNCATE {}").format(self.name))

    def _like_another(self, column: Column, chance: random.Random) -> sql.Composable:
        """A value for a row that is made after another one, `s`."""
        copied = sql.SQL("s.{}").format(sql.Identifier(column.name))
        if column.foreign:
            return self._drawn(column) if column.key or column.unique else copied
        new = column.key or column.unique or chance.random() < 0.3
        return column.fresh or copied if new else copied

    def _set(self, conn: Connection, columns: Sequence[Column]) -> None:
        parts = [
            sql.SQL("{} = {}").format(
                sql.Identifier(column.name),
                self._drawn(column) if column.foreign else column.fresh or self._drawn(column),
            )
            for column in columns
        ]
        conn.execute(
            sql.SQL("UPDATE {} SET {} WHERE ({}) = ({})").format(
                self.name, sql.SQL(", ").join(parts), self._row_id, self._one()
            )
        )

    def _one(self) -> sql.Composed:
        return sql.SQL("SELECT {} FROM {} ORDER BY random() LIMIT 1").format(self._row_id, self._some())

    def _drawn(self, column: Column) -> sql.Composed:
        """The value that some other row has."""
        return sql.SQL("(SELECT d.{} FROM {} d ORDER BY random() LIMIT 1)").format(
            sql.Identifier(column.name), self.name
        )

    def _some(self) -> sql.Composable:
        """Enough rows to choose from, without reading all of a large table."""
        return sql.SQL("{} TABLESAMPLE SYSTEM (1)").format(self.name) if self.large else self.name


class TableWriters(Traffic):
    """Random inserts, updates, deletes, key changes and swaps on any tables; what constraints refuse is normal.

    truncate: tables that are truncated now and then.
    """

    def __init__(
        self,
        dsns: Sequence[str],
        tables: Sequence[tuple[str, str]],
        *,
        truncate: Sequence[tuple[str, str]] = (),
        **options: Any,
    ) -> None:
        super().__init__(dsns, **options)
        self._names = list(tables)
        self._truncated = list(truncate)

    def prepare(self, conn: Connection) -> list[Operation]:
        self._tables = [Table(conn, *name) for name in self._names]
        self._scratch = [Table(conn, *name) for name in self._truncated]
        verbs = {"insert": 5.0, "update": 6.0, "delete": 2.0, "rekey": 2.0, "swap": 2.0}
        operations = [Operation(verb, weight, self._on_one(verb), _OUTCOMES) for verb, weight in verbs.items()]
        operations.append(Operation("several", 2.0, self._on_several, _OUTCOMES))
        if self._scratch:
            operations.append(Operation("truncate", 0.3, self._truncate, _OUTCOMES))
        return operations

    def _on_one(self, verb: str) -> Callable[[Connection, random.Random], None]:
        def run(conn: Connection, chance: random.Random) -> None:
            self._change(conn, chance, verb)

        return run

    def _on_several(self, conn: Connection, chance: random.Random) -> None:
        for _ in range(chance.randint(2, 5)):
            self._change(conn, chance, chance.choice(["insert", "update", "delete", "rekey"]))

    def _truncate(self, conn: Connection, chance: random.Random) -> None:
        chance.choice(self._scratch).truncate(conn, chance)

    def _change(self, conn: Connection, chance: random.Random, verb: str) -> None:
        conn.execute("SELECT setseed(%s)", [chance.uniform(-1, 1)])
        getattr(chance.choice(self._tables), verb)(conn, chance)


def _names(columns: Sequence[Column]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)
