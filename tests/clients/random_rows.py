"""Rows for tables that nobody here knows: hostile values by type, keys of parents that are there, what a constraint
refuses left out."""

from __future__ import annotations

import random
import string
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

Connection = psycopg.Connection[tuple[Any, ...]]
Name = tuple[str, str]

REFUSED = (pg.IntegrityError, psycopg.DataError)

_COLUMNS = """
SELECT a.attname::text, a.atttypid::bigint, a.atttypmod, a.attnotnull,
       a.attidentity = 'a' OR a.attgenerated <> '', a.attidentity <> '' OR a.atthasdef
  FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_TYPE = """
SELECT t.typtype::text, t.typname::text, format_type(t.oid, NULL),
       CASE WHEN t.typcategory = 'A' THEN t.typelem::bigint END, t.typbasetype::bigint,
       ARRAY(SELECT e.enumlabel::text FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid),
       ARRAY(SELECT a.atttypid::bigint FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
       (SELECT r.rngsubtype::bigint FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid), t.typtypmod
  FROM pg_catalog.pg_type t WHERE t.oid = %s
"""
_PARENTS = """
SELECT f.confrelid::regclass::text, pn.nspname::text, p.relname::text,
       ARRAY(SELECT a.attname::text FROM unnest(f.conkey) WITH ORDINALITY k(n, o)
               JOIN pg_catalog.pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.n ORDER BY o),
       ARRAY(SELECT a.attname::text FROM unnest(f.confkey) WITH ORDINALITY k(n, o)
               JOIN pg_catalog.pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = k.n ORDER BY o)
  FROM pg_catalog.pg_constraint f
  JOIN pg_catalog.pg_class p ON p.oid = f.confrelid JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
 WHERE f.conrelid = %s::regclass AND f.contype = 'f' ORDER BY f.conname
"""

TEXTS = [
    "",
    " ",
    "\\N",
    "\\.",
    "NULL",
    "null",
    "'",
    "''",
    '"',
    '"quoted"',
    "\\",
    "\\\\",
    "\\x41",
    "a\tb",
    "a\nb",
    "a\r\nb",
    "{}",
    "{NULL}",
    "(,)",
    "$$",
    "%s",
    "%",
    "--",
    "/*",
    ";",
    "  both  ",
    "ß",
    "İ",
    "é",
    "e\u0301",
    "\u202e",
    "\ufeff",
    "日本語",
    "👩\u200d👩\u200d👧",
    "\U0010ffff",
    "\x01\x7f",
    "x" * 9000,
    "Ω" * 3000,
]
JSON = [
    "{}",
    "[]",
    "null",
    "0",
    "-0",
    "1e400",
    "1.10",
    '""',
    '"\\u00e9"',
    '"\\\\N"',
    '{"a": 1, "a": 2}',
    ' {"b" : 1 } ',
    '{"": {"": [null, true, 1E+2]}}',
    "[" * 60 + "]" * 60,
    '{"k": "' + "y" * 5000 + '"}',
]
_BY_TYPE: dict[str, Sequence[str]] = {
    "int2": ["0", "-1", "32767", "-32768"],
    "int4": ["0", "-1", "2147483647", "-2147483648"],
    "int8": ["0", "-1", "9223372036854775807", "-9223372036854775808"],
    "numeric": ["0", "-0.00", "NaN", "Infinity", "-Infinity", "1e-30", "1.000000000000000000000", "-9.99", "1e200"],
    "float4": ["0", "-0", "NaN", "Infinity", "-Infinity", "1e-45", "3.4028235e38", "0.1"],
    "float8": ["0", "-0", "NaN", "Infinity", "-Infinity", "5e-324", "1.7976931348623157e308", "0.1"],
    "money": ["0", "-0.01", "92233720368547758.07"],
    "bool": ["true", "false"],
    "date": ["infinity", "-infinity", "4713-01-01 BC", "0044-03-15 BC", "0001-01-01", "5874897-12-31", "2024-02-29"],
    "timestamp": ["infinity", "-infinity", "4713-01-01 00:00:00 BC", "0001-12-31 23:59:59.999999 BC",
                  "294276-12-31 23:59:59.999999", "2024-02-29 24:00:00"],
    "timestamptz": ["infinity", "-infinity", "4713-01-01 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00",
                    "2024-03-31 02:30:00 Europe/Berlin", "1883-11-18 12:00:00 America/New_York"],
    "time": ["00:00", "24:00", "23:59:59.999999"],
    "timetz": ["00:00+15:59", "24:00-15:59"],
    "interval": ["0", "1 mon -30 days 00:00:00.000001", "-178000000 years", "P1Y2M3DT4H5M6.7S", "720 hours", "1 mon"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "json": [*JSON, '"\\u0000"'],
    "jsonb": JSON,
    "inet": ["0.0.0.0/0", "255.255.255.255", "::", "::ffff:1.2.3.4/97", "fe80::1/64"],
    "cidr": ["0.0.0.0/0", "10.0.0.0/8", "::/0"],
    "macaddr": ["00:00:00:00:00:00", "ff-ff-ff-ff-ff-ff"],
    "bit": ["0", "1"], "varbit": ["", "101"],
    "tsvector": ["", "'a':1A 'b':2 'it''s':3"],
    "xml": ["<a/>", "text only", "<a b=\"&lt;\"><!-- c --></a>"],
    "point": ["(0,-0)", "(NaN,Infinity)"],
}  # fmt: skip


@dataclass(frozen=True)
class Type:
    kind: str
    name: str
    spelled: str
    element: int | None
    base: int
    labels: Sequence[str]
    fields: Sequence[int]
    of_range: int | None
    modifier: int


@dataclass(frozen=True)
class Column:
    name: str
    type: int
    modifier: int
    not_null: bool
    computed: bool
    has_default: bool


@dataclass(frozen=True)
class Parent:
    written: str
    name: Name
    columns: Sequence[str]
    keys: Sequence[str]


@dataclass
class Filler:
    """``fill(40)`` puts up to so many rows into each table, parents first; ``row(table)`` is one INSERT."""

    conn: Connection
    tables: Sequence[Name]
    chance: random.Random
    made: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._types: dict[int, Type] = {}
        self._columns: dict[Name, list[Column]] = {}
        self._parents: dict[Name, list[Parent]] = {}
        for table in self.tables:
            written = sql.Identifier(*table).as_string(None)
            self._columns[table] = [Column(*row) for row in self.conn.execute(_COLUMNS, [written]).fetchall()]
            self._parents[table] = [
                Parent(shown, (schema, name), columns, keys)
                for shown, schema, name, columns, keys in self.conn.execute(_PARENTS, [written]).fetchall()
            ]
            for column in self._columns[table]:
                self._learn(column.type)

    def _learn(self, oid: int) -> None:
        if oid in self._types:
            return
        row = self.conn.execute(_TYPE, [oid]).fetchone()
        assert row is not None
        found = self._types[oid] = Type(*row)
        for other in (found.element, found.base, found.of_range, *found.fields):
            if other:
                self._learn(other)

    def in_order(self) -> list[Name]:
        """Parents first; of tables that refer to each other either may be."""
        done: list[Name] = []
        waiting = list(self.tables)
        while waiting:
            free = [t for t in waiting if all(p.name == t or p.name not in waiting for p in self._parents[t])]
            for table in free or waiting[:1]:
                done.append(table)
                waiting.remove(table)
        return done

    def with_(self, conn: Connection, chance: random.Random) -> Filler:
        """The same tables through another connection, by other chance."""
        other = copy(self)
        other.conn, other.chance = conn, chance
        return other

    def fill(self, rows: int) -> None:
        for table in self.in_order():
            for _ in range(4 * rows):
                if self.made[table[1]] == rows:
                    break
                try:
                    with self.conn.transaction():
                        self.row(table)
                except REFUSED as error:
                    self.refused[f"{table[1]}: {type(error).__name__}"] += 1
                else:
                    self.made[table[1]] += 1

    def row(self, table: Name) -> None:
        values: dict[str, sql.Composable] = {}
        for parent in self._parents[table]:
            if not any(column in values for column in parent.columns):
                values.update(self._of(parent))
        for column in self._columns[table]:
            if column.name in values or column.computed or (column.has_default and self.chance.random() < 0.3):
                continue
            if not column.not_null and self.chance.random() < 0.15:
                values[column.name] = sql.SQL("NULL")
            else:
                values[column.name] = self.value(column.type, column.modifier)
        if not values:
            self.conn.execute(sql.SQL("INSERT INTO {} DEFAULT VALUES").format(sql.Identifier(*table)))
            return
        self.conn.execute(
            sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
                sql.Identifier(*table),
                sql.SQL(", ").join(map(sql.Identifier, values)),
                sql.SQL(", ").join(values.values()),
            )
        )

    def change(self, table: Name) -> None:
        """A column of some row that is no foreign key's gets another value."""
        foreign = {column for parent in self._parents[table] for column in parent.columns}
        columns = [c for c in self._columns[table] if not (c.computed or c.name in foreign)]
        if columns:
            column = self.chance.choice(columns)
            self.conn.execute(
                sql.SQL("UPDATE {0} SET {1} = {2} WHERE ctid = (SELECT min(ctid) FROM {0})").format(
                    sql.Identifier(*table), sql.Identifier(column.name), self.value(column.type, column.modifier)
                )
            )

    def _of(self, parent: Parent) -> dict[str, sql.Composable]:
        """The key of some row of the parent; nulls where it has none."""
        keys = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(key)) for key in parent.keys)
        rows = self.conn.execute(
            sql.SQL("SELECT {} FROM {} ORDER BY 1 LIMIT 20").format(keys, sql.Identifier(*parent.name))
        ).fetchall()
        some = self.chance.choice(rows) if rows else None
        return {
            column: sql.SQL("NULL") if some is None else sql.Literal(value)
            for column, value in zip(parent.columns, some or parent.keys, strict=True)
        }

    def value(self, oid: int, modifier: int = -1) -> sql.Composable:
        kind = self._types[oid]
        if kind.kind == "d":
            return self.value(kind.base, kind.modifier)
        expression = self._expression(kind, modifier)
        return sql.SQL("({})::{}").format(expression, sql.SQL(kind.spelled))

    def _expression(self, kind: Type, modifier: int) -> sql.Composable:
        if kind.element:
            return self._array(kind.element)
        if kind.kind == "e":
            return sql.Literal(self.chance.choice(kind.labels))
        if kind.kind == "c":
            fields = [self._or_null(each) for each in kind.fields]
            return sql.SQL("ROW({})").format(sql.SQL(", ").join(fields))
        if kind.of_range is not None:
            return self._range(kind)
        if kind.name in ("text", "varchar", "bpchar", "name"):
            return sql.Literal(self._text(modifier - 4 if modifier > 4 else None))
        if kind.name == "bytea":
            return sql.Literal("\\x" + self.chance.choice([b"", b"\\", bytes(range(256)), b"\0" * 3000]).hex())
        if kind.name == "numeric" and modifier >= 0 and self.chance.random() < 0.8:
            return self._numeric(modifier - 4)
        if (made := _PLAIN.get(kind.name)) is not None and self.chance.random() < 0.6:
            return sql.Literal(made(self.chance))
        if kind.name not in _BY_TYPE:
            raise AssertionError(f"no values are known of {kind.spelled}")
        return sql.Literal(self.chance.choice(_BY_TYPE[kind.name]))

    def _numeric(self, modifier: int) -> sql.Composable:
        precision, scale = modifier >> 16 & 0xFFFF, modifier & 0x7FF
        whole = 10 ** max(precision - scale, 0) - 1
        return sql.Literal(self.chance.choice(["NaN", "0", str(whole), str(self.chance.randint(0, whole)), "1"]))

    def _text(self, length: int | None) -> str:
        if self.chance.random() < 0.4:
            text = "".join(self.chance.choices(string.ascii_uppercase + string.digits, k=self.chance.randint(1, 12)))
            if self.chance.random() < 0.5:  # checks ask for an address now and then
                text += "@x"
        else:
            text = self.chance.choice(TEXTS)
        return text if length is None else text[:length]

    def _array(self, element: int) -> sql.Composable:
        some = [self._or_null(element) for _ in range(self.chance.randint(0, 3))]
        if len(some) > 1 and self.chance.random() < 0.3:  # of two dimensions
            rows = sql.SQL(", ").join(sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(some)) for _ in range(2))
            return sql.SQL("ARRAY[{}]").format(rows)
        return sql.SQL("ARRAY[{}]::{}[]").format(sql.SQL(", ").join(some), sql.SQL(self._types[element].spelled))

    def _range(self, kind: Type) -> sql.Composable:
        assert kind.of_range is not None
        if self.chance.random() < 0.4:
            return sql.Literal(self.chance.choice(["empty", "(,)"]))
        ends = [self._or_null(kind.of_range), self._or_null(kind.of_range)]
        bounds = sql.Literal(self.chance.choice(["[]", "[)", "(]", "()"]))
        return sql.SQL("{}({}, {}, {})").format(sql.SQL(kind.spelled), *ends, bounds)

    def _or_null(self, oid: int) -> sql.Composable:
        return sql.SQL("NULL") if self.chance.random() < 0.2 else self.value(oid)


# What many rows need so that keys are not all the same few.
_PLAIN: dict[str, Callable[[random.Random], str]] = {
    "int2": lambda chance: str(chance.randint(-30_000, 30_000)),
    "int4": lambda chance: str(chance.randint(-(10**9), 10**9)),
    "int8": lambda chance: str(chance.randint(-(10**17), 10**17)),
    "numeric": lambda chance: str(chance.randint(-(10**9), 10**9)) + "." + str(chance.randint(0, 10**9)),
    "float8": lambda chance: repr(chance.uniform(-1e9, 1e9)),
    "uuid": lambda chance: f"{chance.getrandbits(128):032x}",
    "date": lambda chance: f"{chance.randint(1900, 2100)}-01-{chance.randint(1, 28):02}",
    "timestamp": lambda chance: f"{chance.randint(1900, 2100)}-01-{chance.randint(1, 28):02} 12:00:00.1",
    "timestamptz": lambda chance: f"2026-{chance.randint(1, 4):02}-{chance.randint(1, 28):02} 12:00:00+00",
}
