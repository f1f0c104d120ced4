"""Random commands for random tables: most of them do something, some are refused by the server, and some do nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.captured_events import TableMeta

# Types and, for each, what can be its default: a constant, and something that has to be evaluated.
TYPES = {
    "int": ("7", "length('abc')"),
    "bigint": ("-9", "(extract(epoch from now()))::bigint"),
    "smallint": ("3", "(2 + 1)::smallint"),
    "text": ("'it''s; %s {}'", "current_user || random()"),
    'text COLLATE "C"': ("E'back\\\\slash'", "now()::text"),
    "varchar(10)": ("''", "lower('AB')"),
    "varchar(30)": ("'x'", "'y' || 'z'"),
    "char(3)": ("'ab'", "left('abc', 2)"),
    "numeric": ("1.50", "random()"),
    "numeric(8,2)": ("-1.5", "1 + 1"),
    "float8": ("'NaN'", "random()"),
    "date": ("'2024-02-29'", "current_date"),
    "timestamptz": ("'2024-02-29 12:00+02'", "now()"),
    "timestamp(3)": ("'infinity'", "localtimestamp"),
    "interval": ("'1 day'", "now() - now()"),
    "boolean": ("true", "now() > '2000-01-01'"),
    "uuid": ("'00000000-0000-0000-0000-000000000001'", "gen_random_uuid()"),
    "jsonb": ("""'{"a": 1}'""", "to_jsonb(now())"),
    "int[]": ("'{1,2}'", "ARRAY[1, 2] || 3"),
    "bytea": ("'\\x00ff'", "'a'::bytea"),
    "int4range": ("'[1,5)'", "int4range(1, 2)"),
    "other.mood": ("'Bad'", "'fine'::text::other.mood"),
    "other.dom": ("4", "1 + 1"),
    "other.pair": ("'(1,x)'", "ROW(1, 'y')::other.pair"),
}
NAMES = ["a", "b", "C c", 'd"d', "select", "ü", "e.f", "x%s", "n" * 63, "g;"]
SCHEMAS = ["public", "other", "Sh.op"]


class RandomDdl:
    """Commands for the tables as they are; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = 0

    def command(self, tables: list[TableMeta]) -> str:
        """One command for one of these tables, or CREATE TABLE."""
        one_of = self._random.choice
        if not tables or self._random.random() < 0.08:
            return self._create(tables)
        table = one_of(sorted(tables, key=lambda t: (t["schema"], t["name"])))
        return self.alter(table, tables) if self._random.random() < 0.95 else f"DROP TABLE {_name(table)} CASCADE"

    def alter(self, table: TableMeta, tables: list[TableMeta]) -> str:
        """One command that changes this table."""
        pick = self._random.choice
        whole = _name(table)
        ways: list[Callable[[TableMeta], str]] = [self._column] * 6 + [self._constraint] * 3 + [self._itself] * 2
        if pick(range(6)) == 0:
            return self._index(table)
        if pick(range(8)) == 0 and (parents := [t for t in tables if t["oid"] != table["oid"]]):
            return self._family(table, pick(sorted(parents, key=lambda t: t["oid"])))
        actions = [pick(ways)(table) for _ in range(pick([1, 1, 1, 2, 3]))]
        alone = [a for a in actions if a.startswith(("RENAME", "SET SCHEMA", "ATTACH", "DETACH", "INHERIT"))]
        return f"ALTER TABLE {pick(['', '', '', 'ONLY '])}{whole} {', '.join(alone[:1] or actions)}"

    def _column(self, table: TableMeta) -> str:
        pick = self._random.choice
        old = [c["name"] for c in table["columns"]]
        if not old or pick(range(4)) == 0:
            return f"ADD COLUMN {self._definition(self._new(old))}"
        at = _quote(pick(old))
        type_ = pick(list(TYPES))
        return pick(
            [
                f"DROP COLUMN {at}",
                f"RENAME COLUMN {at} TO {_quote(self._new(old))}",
                f"ALTER COLUMN {at} TYPE {type_} USING {at}::text::{type_.split(' COLLATE')[0]}",
                f"ALTER COLUMN {at} TYPE {type_} USING {at}::text::{type_.split(' COLLATE')[0]}",
                (
                    f"ALTER COLUMN {at} DROP DEFAULT, ALTER COLUMN {at} TYPE {type_} USING NULL, "
                    f"ALTER COLUMN {at} SET DEFAULT {pick(TYPES[type_])}"
                ),
                f"ALTER COLUMN {at} SET DEFAULT {pick(TYPES[pick(list(TYPES))])}",
                f"ALTER COLUMN {at} SET DEFAULT {pick(TYPES[pick(list(TYPES))])}",
                f"ALTER COLUMN {at} DROP DEFAULT",
                f"ALTER COLUMN {at} SET NOT NULL",
                # 18 keeps a child as strict as its parent, where older servers did not.
                f"ALTER COLUMN {at} {'SET' if table['parents'] else 'DROP'} NOT NULL",
                (
                    f"ALTER COLUMN {at} SET NOT NULL, ALTER COLUMN {at} DROP DEFAULT, "
                    f"ALTER COLUMN {at} ADD GENERATED {pick(['ALWAYS', 'BY DEFAULT'])} AS IDENTITY (START 3 CYCLE)"
                ),
                f"ALTER COLUMN {at} SET GENERATED {pick(['ALWAYS', 'BY DEFAULT'])}",
                f"ALTER COLUMN {at} DROP IDENTITY",
                f"ALTER COLUMN {at} DROP EXPRESSION",
            ]
        )

    def _constraint(self, table: TableMeta) -> str:
        pick = self._random.choice
        columns = [_quote(c["name"]) for c in table["columns"]] or ['"a"']
        here = [c["name"] for c in table["constraints"]]
        at, name = pick(columns), _quote(self._new(here))
        several = ", ".join(self._random.sample(columns, min(len(columns), pick([1, 1, 2]))))
        new = [
            f"ADD CONSTRAINT {name} CHECK ({at} IS NOT NULL)",
            f"ADD CHECK ({at}::text <> 'x;''y') NOT VALID",
            f"ADD CONSTRAINT {name} CHECK ({at} IS DISTINCT FROM {pick(columns)}) NO INHERIT",
            f"ADD UNIQUE ({several}) {pick(['', 'DEFERRABLE', 'DEFERRABLE INITIALLY DEFERRED'])}",
            f"ADD CONSTRAINT {name} PRIMARY KEY ({several})",
            f"ADD FOREIGN KEY ({at}) REFERENCES other.ref {pick(['', 'ON DELETE CASCADE', 'NOT VALID', 'DEFERRABLE'])}",
            f"ADD CONSTRAINT {name} FOREIGN KEY ({at}) REFERENCES other.ref ON UPDATE SET NULL INITIALLY DEFERRED",
            f"ADD EXCLUDE USING btree ({at} WITH =) WHERE ({at} IS NOT NULL)",
        ]
        if not here or pick(range(2)) == 0:
            return pick(new)
        one = _quote(pick(here))
        return pick(
            [
                f"DROP CONSTRAINT {one}",
                f"DROP CONSTRAINT {one}, {pick(new)}",
                f"RENAME CONSTRAINT {one} TO {name}",
                f"VALIDATE CONSTRAINT {one}",
                f"ALTER CONSTRAINT {one} {pick(['DEFERRABLE', 'NOT DEFERRABLE', 'DEFERRABLE INITIALLY DEFERRED'])}",
            ]
        )

    def _itself(self, table: TableMeta) -> str:
        pick = self._random.choice
        unique = [_quote(c["name"]) for c in table["constraints"] if c["type"] in "pu"] or ['"none"']
        return pick(
            [
                "REPLICA IDENTITY FULL",
                "REPLICA IDENTITY NOTHING",
                "REPLICA IDENTITY DEFAULT",
                f"REPLICA IDENTITY USING INDEX {pick(unique)}",
                f"REPLICA IDENTITY USING INDEX {pick(unique)}",
                "SET UNLOGGED",
                "SET LOGGED",
                f"SET (fillfactor = {pick([60, 70, 80])}, autovacuum_enabled = off)",
                "RESET (fillfactor)",
                f"RENAME TO {_quote(self._fresh())}",
                f"SET SCHEMA {_quote(pick(SCHEMAS))}",
                "OWNER TO random_ddl",
            ]
        )

    def _index(self, table: TableMeta) -> str:
        pick = self._random.choice
        columns = [_quote(c["name"]) for c in table["columns"]] or ['"a"']
        unique, at = pick(["", "UNIQUE "]), pick(columns)
        create = f"CREATE {unique}INDEX {_quote(self._fresh())} ON {pick(['', '', 'ONLY '])}{_name(table)}"
        here = [_quote(table["schema"]) + "." + _quote(i["name"]) for i in table["indexes"]]
        if not here or pick(range(2)) == 0:
            return pick(
                [
                    f"{create} ({at})",
                    f"{create} ({at} DESC NULLS LAST, {pick(columns)}) WITH (fillfactor = 50)",
                    f"{create} (({at}::text || 'x')) WHERE {pick(columns)} IS NOT NULL",
                    f"{create} USING hash ({at})",
                ]
            )
        return pick(
            [
                f"DROP INDEX {pick(here)}",
                f"ALTER INDEX {pick(here)} RENAME TO {_quote(self._fresh())}",
                f"ALTER INDEX {pick(here)} SET (fillfactor = 90)",
                f"ALTER INDEX {pick(here)} RESET (fillfactor)",
                f"ALTER TABLE {_name(table)} ADD UNIQUE USING INDEX {pick(here).partition('.')[2]}",
            ]
        )

    def _family(self, table: TableMeta, other: TableMeta) -> str:
        pick = self._random.choice
        low = pick(range(0, 100, 10))
        bound = pick([f"FOR VALUES FROM ({low}) TO ({low + 10})", "DEFAULT"])
        if table["kind"] == "p":
            parts = ["PARTITION OF " + _name(table)]
            new = f"CREATE TABLE {_quote(pick(SCHEMAS))}.{_quote(self._fresh())}"
            columns = (
                ""
                if pick([True, False]) or not table["columns"]
                else (f" ({_quote(pick(table['columns'])['name'])} {pick(['NOT NULL', 'DEFAULT NULL'])})")
            )
            attached = list(other["parents"])
            return (
                pick(
                    [
                        f"{new} {parts[0]}{columns} {bound}",
                        f"{new} {parts[0]} {bound}",
                        f"ALTER TABLE {_name(table)} ATTACH PARTITION {_name(other)} {bound}",
                        f"ALTER TABLE {_name(table)} DETACH PARTITION {_name(other)}",
                    ]
                )
                if attached != [] or pick(range(3))
                else (f"CREATE TABLE {_quote(self._fresh())} (LIKE {_name(table)} INCLUDING ALL)")
            )
        if table["parents"] and table["bound"] is None and pick(range(2)):
            return f"ALTER TABLE {_name(table)} NO INHERIT " + ".".join(map(_quote, table["parents"][0]))
        return pick(
            [
                f"ALTER TABLE {_name(table)} INHERIT {_name(other)}",
                f"CREATE TABLE {_quote(self._fresh())} ({self._definition('own')}) INHERITS ({_name(other)})",
                f"CREATE TABLE {_quote(self._fresh())} (LIKE {_name(other)} INCLUDING ALL)",
                f"CREATE TABLE {_quote(self._fresh())} AS TABLE {_name(other)}",
            ]
        )

    def _create(self, tables: list[TableMeta]) -> str:
        pick = self._random.choice
        names = self._random.sample(NAMES, pick([1, 2, 4, 6]))
        columns = [self._definition(name) for name in names]
        if pick(range(3)) == 0:
            columns[0] = f"{_quote(names[0])} {pick(['serial', 'bigserial', 'int'])} {pick(['', 'PRIMARY KEY'])}"
        kind, partitioned = pick(["", "", "", "UNLOGGED "]), ""
        if pick(range(3)) == 0:
            kind, columns[0] = "", f"{_quote(names[0])} int"
            partitioned = f" PARTITION BY RANGE ({_quote(names[0])})"
        name = f"{_quote(pick(SCHEMAS))}.{_quote(self._fresh())}"
        return f"CREATE {kind}TABLE {name} ({', '.join(columns)}){partitioned}"

    def _definition(self, name: str) -> str:
        pick = self._random.choice
        type_ = pick(list(TYPES))
        constant, evaluated = TYPES[type_]
        return f"{_quote(name)} {type_} " + pick(
            [
                "",
                "",
                "NOT NULL",
                "UNIQUE",
                f"DEFAULT {constant}",
                f"DEFAULT {constant} NOT NULL",
                f"DEFAULT {evaluated}",
                f"DEFAULT {evaluated} NOT NULL",
                f"GENERATED ALWAYS AS ({constant}) STORED",
                "REFERENCES other.ref",
                f"CHECK ({_quote(name)} IS NOT NULL)",
                "GENERATED ALWAYS AS IDENTITY",
            ]
        )

    def _new(self, taken: list[str]) -> str:
        return self._random.choice([n for n in NAMES if n not in taken] or [self._fresh()])

    def _fresh(self) -> str:
        self._number += 1
        return f"{self._random.choice(NAMES)[:50]} {self._number}"


def _quote(name: str) -> str:
    return sql.Identifier(name).as_string(None)


def _name(table: TableMeta) -> str:
    return sql.Identifier(table["schema"], table["name"]).as_string(None)
