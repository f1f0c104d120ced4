"""A shop that is rewritten in place under its applications, whose audit accounts for every row."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_pgddl.demo.compare import compare
from airflow_provider_pgddl.demo.traffic import Connection, Operation, Traffic
from tests.integration.lifecycle import execute

SCHEMA = Path(__file__).with_name("rewrite.sql")
FLOOR = "Shop Floor"
SMALL = {"backfill": {"chunk_bytes": "32kB", "workers": 1}, "replay": {"window_rows": 300}}

REWRITE = {
    f'"{FLOOR}"."Orders"': {
        "alter": [
            "ALTER COLUMN id TYPE bigint",
            "ALTER COLUMN parent TYPE bigint",
            "ALTER COLUMN amount TYPE bigint USING (amount * 100)::bigint",
            "ALTER COLUMN note SET STORAGE EXTERNAL",
            "DROP COLUMN legacy",
            "DROP COLUMN legacy_no, DROP COLUMN legacy_region",
            "SET (fillfactor = 80)",
        ]
    },
    f'"{FLOOR}".lines': {"alter": ["ALTER COLUMN order_id TYPE bigint, ALTER COLUMN line TYPE numeric"]},
    "public.tickets": {"alter": ["ALTER COLUMN id TYPE bigint"]},
    "public.badges": {"alter": ["ALTER COLUMN id TYPE bigint"]},
    "public.tokens": {},
    "public.words": {"alter": ["ALTER COLUMN word TYPE text"]},
    "public.pairs": {"alter": ["ALTER COLUMN weight TYPE numeric(20,6)"]},
}
OTHERS = [("public", name) for name in ("tickets", "badges", "tokens", "words", "pairs")]
SHOP = [(FLOOR, "Orders"), (FLOOR, "lines"), (FLOOR, "payments"), (FLOOR, "regions")]

BALANCE = """
WITH cut AS (SELECT coalesce(max(no), 0) AS no FROM audit.changes WHERE tab = %(tab)s AND op = 'TRUNCATE'),
images (relation, image, n) AS (
    SELECT relation, image, 1 FROM audit.initial, cut WHERE tab = %(tab)s AND cut.no = 0
    UNION ALL SELECT relation, new, 1 FROM audit.changes c, cut WHERE tab = %(tab)s AND c.no > cut.no AND new <> 'null'
    UNION ALL SELECT relation, old, -1 FROM audit.changes c, cut WHERE tab = %(tab)s AND c.no > cut.no AND old <> 'null'
    UNION ALL SELECT %(tab)s::regclass::oid, to_jsonb(t), -1 FROM {table} t)
SELECT audit.as_rewritten(relation, image), sum(n) FROM images GROUP BY 1 HAVING sum(n) <> 0 LIMIT 5
"""


def unaccounted(dsn: str) -> list[tuple[Any, ...]]:
    """Rows (with +n: recorded, but not there; -n: there, but not recorded) by which a table and its audit differ."""
    with psycopg.connect(dsn) as conn:
        tables = conn.execute("SELECT DISTINCT tab FROM audit.initial ORDER BY 1").fetchall()
        found: list[tuple[Any, ...]] = []
        for (tab,) in tables:
            query = sql.SQL(BALANCE).format(table=sql.SQL(tab))
            found += [(tab, *row) for row in conn.execute(query, {"tab": tab})]
        return found


class Shop(Traffic):
    """Orders with lines and payments. It locks what it refers to and draws new values from a huge range, so every
    violation of a constraint that it meets is somebody else's making."""

    def prepare(self, conn: Connection) -> list[Operation]:
        weights = {
            self.new_order: 8, self.change_order: 8, self.rekey_order: 3, self.delete_order: 3, self.swap_slots: 4,
            self.swap_places: 3, self.change_lines: 6, self.rekey_line: 2, self.pay: 4, self.rename_region: 1,
            self.start_over: 0.4,
        }  # fmt: skip
        return [Operation(run.__name__, weight, run) for run, weight in weights.items()]

    def _ids(self, conn: Connection, lock: str, limit: int = 1) -> list[int]:
        query = 'SELECT id FROM "Orders" WHERE id IN (SELECT id FROM "Orders" ORDER BY random() LIMIT %s) ORDER BY id'
        self._home(conn)
        return [row[0] for row in conn.execute(f"{query} FOR {lock}".encode(), [limit])]

    def _home(self, conn: Connection) -> None:
        conn.execute(sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(FLOOR)))

    def new_order(self, conn: Connection, chance: random.Random) -> None:
        parents = self._ids(conn, "KEY SHARE")
        region = conn.execute("SELECT code FROM regions ORDER BY random() LIMIT 1 FOR KEY SHARE").fetchone()
        order = conn.execute(
            'INSERT INTO "Orders" (parent, region, slot, place, note, amount) VALUES (%s, %s, %s, %s, %s, %s)'
            " RETURNING id",
            [*(parents or [None]), region and region[0], chance.getrandbits(62), chance.getrandbits(62),
             chance.choice([None, "", "x" * 3000, "it's; \\ \t"]), chance.randint(0, 99999)],
        ).fetchone()  # fmt: skip
        assert order is not None
        for line in range(chance.randint(0, 3)):
            conn.execute("INSERT INTO lines VALUES (%s, %s, %s)", [order[0], line, f"line {line}"])

    def change_order(self, conn: Connection, chance: random.Random) -> None:
        for order in self._ids(conn, "NO KEY UPDATE"):
            amount = chance.randint(0, 99999)
            conn.execute('UPDATE "Orders" SET amount = %s, version = version + 1 WHERE id = %s', [amount, order])

    def rekey_order(self, conn: Connection, chance: random.Random) -> None:
        """Its lines, payments and children follow by the foreign keys."""
        for order in self._ids(conn, "UPDATE"):
            conn.execute('UPDATE "Orders" SET id = %s WHERE id = %s', [chance.randint(10**6, 2**31 - 1), order])

    def delete_order(self, conn: Connection, chance: random.Random) -> None:
        for order in self._ids(conn, "UPDATE"):
            conn.execute('DELETE FROM "Orders" WHERE id = %s', [order])

    def swap_slots(self, conn: Connection, chance: random.Random) -> None:
        orders = self._ids(conn, "UPDATE", 2)
        if len(orders) == 2:
            set_slot, get = 'UPDATE "Orders" SET slot = %s WHERE id = %s', 'SELECT slot FROM "Orders" WHERE id = %s'
            one, other = (conn.execute(get, [order]).fetchone()[0] for order in orders)  # type: ignore[index]
            for slot, order in ((-chance.getrandbits(62), orders[0]), (one, orders[1]), (other, orders[0])):
                conn.execute(set_slot, [slot, order])

    def swap_places(self, conn: Connection, chance: random.Random) -> None:
        """Twice in one transaction, in one statement each: this constraint is checked at the statement's end."""
        orders = self._ids(conn, "UPDATE", 2)
        for _ in range(2):
            conn.execute(
                'UPDATE "Orders" o SET place = p.place FROM "Orders" p'
                " WHERE o.id = ANY (%(ids)s) AND p.id = ANY (%(ids)s) AND o.id <> p.id",
                {"ids": orders},
            )

    def change_lines(self, conn: Connection, chance: random.Random) -> None:
        for order in self._ids(conn, "KEY SHARE"):
            what = chance.randint(0, 2)
            if what == 0:
                conn.execute("DELETE FROM lines WHERE order_id = %s", [order])
            elif what == 1:
                conn.execute("UPDATE lines SET what = %s WHERE order_id = %s", [str(chance.random()), order])
            conn.execute("INSERT INTO lines VALUES (%s, %s, 'late')", [order, chance.randint(100, 2**31 - 1)])

    def rekey_line(self, conn: Connection, chance: random.Random) -> None:
        for order in self._ids(conn, "KEY SHARE"):
            conn.execute("UPDATE lines SET line = line + %s WHERE order_id = %s AND line < 100",
                         [chance.randint(10**6, 10**9), order])  # fmt: skip

    def pay(self, conn: Connection, chance: random.Random) -> None:
        for order in self._ids(conn, "KEY SHARE"):
            conn.execute("INSERT INTO payments (order_id, sum) VALUES (%s, %s)", [order, chance.randint(1, 100)])

    def rename_region(self, conn: Connection, chance: random.Random) -> None:
        self._home(conn)
        query = "UPDATE regions SET code = %s WHERE code = (SELECT code FROM regions ORDER BY random() LIMIT 1)"
        conn.execute(query, [f"R{chance.getrandbits(62)}"])

    def start_over(self, conn: Connection, chance: random.Random) -> None:
        """TRUNCATE, and most of what was there is inserted again in the same transaction."""
        self._home(conn)
        conn.execute('LOCK TABLE "Orders", lines, payments')
        columns = "id, parent, region, slot, place, note, amount, version"
        conn.execute(
            "CREATE TEMPORARY TABLE kept ON COMMIT DROP AS"
            f' SELECT {columns} FROM "Orders" WHERE random() > 0.1'.encode()
        )
        conn.execute("UPDATE kept SET parent = NULL WHERE parent NOT IN (SELECT id FROM kept)")
        conn.execute(
            "CREATE TEMPORARY TABLE kept_lines ON COMMIT DROP AS"
            " SELECT * FROM lines WHERE order_id IN (SELECT id FROM kept)"
        )
        conn.execute('TRUNCATE "Orders", lines, payments')
        conn.execute(f'INSERT INTO "Orders" ({columns}) SELECT {columns} FROM kept'.encode())
        if chance.random() < 0.8:
            conn.execute("INSERT INTO lines SELECT * FROM kept_lines")


def load(dsn: str) -> None:
    execute(dsn, SCHEMA.read_text(encoding="utf-8"))


def copies(dsn: str) -> list[Any]:
    """Live tables compared with their copies, but for what the rewrite computes or leaves out."""
    tables = [SHOP[0], SHOP[1], *OTHERS]
    renamed = {(schema, name): (f"pgddl_copy_{schema}", name) for schema, name in tables}
    computed = {SHOP[0]: ["amount", "legacy", "legacy_no", "legacy_region"], ("public", "pairs"): ["weight"]}
    return compare(dsn, dsn, tables, renamed=renamed, ignore_columns=computed)
