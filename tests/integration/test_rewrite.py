"""Rewriting in place under writers: nothing that was acknowledged is lost, and no application notices more than a wait.

The oracle is a trigger of the application's own. It writes every change, with the row before and after, into an audit
table in the same transaction; initial rows plus audit must equal the table at the end, each row as often as it occurs.
That needs no order of changes except around TRUNCATE, whose lock gives one.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, compare, diff_catalogs
from airflow_provider_pgddl.demo.traffic import Connection, Operation, Traffic
from airflow_provider_pgddl.engine.errors import PgddlError
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle, execute, left_behind, wait_until
from tests.table_writers import TableWriters

pytestmark = pytest.mark.timeout(900)

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

# What the rewrite changes in the structure beside taking away what is called legacy, and nothing else.
CHANGED = """
- "Shop Floor"."Orders" column amount: numeric(12,2) not null default 0
- "Shop Floor"."Orders" column id: integer not null default nextval('"Shop Floor"."Orders_id_seq"'::regclass)
- "Shop Floor"."Orders" column note: text default 'to go'::text
- "Shop Floor"."Orders" column parent: integer
- "Shop Floor"."Orders" table: persistence p owner postgres replica identity f
- "Shop Floor"."Orders_id_seq" sequence: integer start 1 min 1 max 2147483647 increment 1 cache 1 owned by "Shop Floor"."Orders".id
- "Shop Floor".lines column line: integer not null
- "Shop Floor".lines column order_id: integer not null
- public.badges column id: integer not null identity by default
- public.badges_id_seq sequence: integer start 1000 min 1 max 2147483647 increment 7 cache 5 owned by public.badges.id
- public.pairs column weight: numeric(10,3)
- public.tickets column id: integer not null identity always
- public.tickets_id_seq sequence: integer start 1 min 1 max 2147483647 increment 1 cache 1 owned by public.tickets.id
- public.words column word: character varying(40) not null
+ "Shop Floor"."Orders" column amount: bigint not null default 0
+ "Shop Floor"."Orders" column id: bigint not null default nextval('"Shop Floor"."Orders_id_seq"'::regclass)
+ "Shop Floor"."Orders" column note: text default 'to go'::text storage e
+ "Shop Floor"."Orders" column parent: bigint
+ "Shop Floor"."Orders" table: persistence p owner postgres options {fillfactor=80} replica identity f
+ "Shop Floor"."Orders_id_seq" sequence: bigint start 1 min 1 max 9223372036854775807 increment 1 cache 1 owned by "Shop Floor"."Orders".id
+ "Shop Floor".lines column line: numeric not null
+ "Shop Floor".lines column order_id: bigint not null
+ public.badges column id: bigint not null identity by default
+ public.badges_id_seq sequence: bigint start 1000 min 1 max 9223372036854775807 increment 7 cache 5 owned by public.badges.id
+ public.pairs column weight: numeric(20,6)
+ public.tickets column id: bigint not null identity always
+ public.tickets_id_seq sequence: bigint start 1 min 1 max 9223372036854775807 increment 1 cache 1 owned by public.tickets.id
+ public.words column word: text not null
""".strip().splitlines()  # noqa: E501

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


def test_tables_are_rewritten_under_writers_and_rewritten_again(
    server: Cluster, database: Callable[..., str], lifecycle: Callable[..., Lifecycle]
) -> None:
    dsn = database(server)
    load(dsn)
    before = catalog_lines(dsn)
    move = lifecycle(dsn, rewrite=REWRITE, **SMALL)
    shop = Shop([dsn], threads=3, rate=90)
    others = TableWriters([dsn], OTHERS, truncate=[("public", "tokens"), ("public", "pairs")], threads=2, rate=60)
    print(f"seeds {shop.seed} {others.seed}")

    def some_traffic() -> None:
        for writers in (shop, others):
            seen = writers.notes.committed.total()
            wait_until(lambda w=writers, n=seen: w.notes.committed.total() > n + 15)

    with shop, others:
        some_traffic()
        for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay"):
            assert not move.run(stage).blocked
            some_traffic()
        with shop.quiet(), others.quiet():
            move.run("replay")
            move.run("verify")
            assert [d for d in copies(dsn) if d.differs] == []
            assert unaccounted(dsn) == []
        move.run("verify")
        some_traffic()
        begin = time.time()
        figures = move.run("swap").figures
        print(figures, "longest write", max(w.notes.longest(begin, time.time()) for w in (shop, others)))
        some_traffic()
        move.run("cleanup")
        assert left_behind(dsn) == ["schema pgddl"]
        some_traffic()
        between = catalog_lines(dsn)
        again = {key: {} for key in REWRITE}
        for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap", "cleanup"):
            assert not move.run(stage, rewrite=again, again=stage == "setup").blocked
        some_traffic()
    for writers in (shop, others):
        print(writers.notes.committed, writers.notes.refused, writers.notes.retried)
        assert writers.notes.failures == []
        assert not writers.notes.refused
    assert unaccounted(dsn) == []
    assert diff_catalogs(between, catalog_lines(dsn)) == []
    positions = re.compile(r"(?<= column )\d+ ")  # a dropped column moves those behind it
    structures = ([positions.sub("", line) for line in lines] for lines in (before, between))
    changed = diff_catalogs(*structures)
    assert sorted(line for line in changed if "legacy" not in line) == sorted(CHANGED)
    assert [line for line in between if "legacy" in line and not line.startswith("function")] == []
    assert move.journal("SELECT FROM pg_constraint WHERE NOT convalidated") == []


def copies(dsn: str) -> list[Any]:
    """Live tables compared with their copies, but for what the rewrite computes or leaves out."""
    tables = [SHOP[0], SHOP[1], *OTHERS]
    renamed = {(schema, name): (f"pgddl_copy_{schema}", name) for schema, name in tables}
    computed = {SHOP[0]: ["amount", "legacy", "legacy_no", "legacy_region"], ("public", "pairs"): ["weight"]}
    return compare(dsn, dsn, tables, renamed=renamed, ignore_columns=computed)


HOLDS_THE_LOCK = """
SELECT a.pid FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid AND l.granted AND l.mode = 'AccessExclusiveLock'
 WHERE a.application_name LIKE %s AND a.datname = %s AND l.relation = %s::regclass"""


class Killer(threading.Thread):
    """Once the swap holds a relation's lock, waits a random moment and strikes."""

    def __init__(
        self, move: Lifecycle, strike: Callable[[int], object], seconds: float, relation: str = f'"{FLOOR}"."Orders"'
    ) -> None:
        super().__init__(name="killer", daemon=True)
        self._dsn, self._strike, self._seconds = move.source, strike, seconds
        self._pattern = f"pgddl:{move.name}:%:swap"
        self._relation = relation
        self._over = threading.Event()

    def run(self) -> None:
        name = conninfo_to_dict(self._dsn)["dbname"]
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            while not self._over.is_set():
                found = conn.execute(HOLDS_THE_LOCK, [self._pattern, name, self._relation]).fetchone()
                if found:
                    time.sleep(self._seconds)  # chance decides how far it gets
                    self._strike(found[0])
                    return

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def test_a_swap_that_is_killed_anywhere_is_done_by_a_retry(
    pg16: Cluster, source_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    load(source_dsn)
    tables = dict(list(REWRITE.items())[:2])
    move = lifecycle(source_dsn, rewrite=tables, **SMALL)
    shop = Shop([source_dsn], threads=4, rate=120, tolerate_lost=True)
    chance, errors = random.Random(shop.seed), list[PgddlError]()
    print(f"seed {shop.seed}")

    def terminate(pid: int) -> None:
        with psycopg.connect(source_dsn, autocommit=True) as conn:
            conn.execute("SELECT pg_terminate_backend(%s)", [pid])

    def crash(_: int) -> None:
        pg16.restart("immediate")

    with shop:
        move.run_all(until="verify")
        for n, strike in enumerate((terminate, crash, terminate, crash, terminate)):
            with Killer(move, strike, chance.uniform(0, 0.02 * n)):
                try:
                    done = move.run("swap").state
                except PgddlError as error:
                    errors.append(error)
                    print("killed:", error.what)
                else:
                    print("not killed:", done)
        move.run("swap")
        assert errors
        assert all(error.retryable for error in errors), errors
        seen = shop.notes.committed.total()
        wait_until(lambda: shop.notes.committed.total() > seen + 30)
        assert move.run("swap").state == "nothing_to_do"
        move.run("cleanup")
    print(shop.notes.committed, shop.notes.retried)
    assert shop.notes.failures == []
    assert unaccounted(source_dsn) == []
    assert move.journal("SELECT FROM pg_constraint WHERE NOT convalidated") == []
    assert left_behind(source_dsn) == ["schema pgddl"]
    execute(source_dsn, f'SET session_replication_role = replica; DELETE FROM "{FLOOR}".lines WHERE line % 2 = 0')
    assert unaccounted(source_dsn), "the oracle does not see lost rows"


def test_a_number_drawn_from_an_identity_during_the_swap_stays_its_own(
    source_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    columns = ", ".join(f"c{n} integer" for n in range(150))
    execute(source_dsn, f"CREATE TABLE t (id integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, {columns})")
    for n in range(150):  # much to do behind the moment at which the sequence's position is read
        execute(source_dsn, f"COMMENT ON COLUMN t.c{n} IS 'x'")
    move = lifecycle(source_dsn, rewrite={"public.t": {"alter": ["ALTER COLUMN id TYPE bigint"]}}, **SMALL)
    move.run_all(until="verify")
    drawn: list[int] = []

    def draw(_: int) -> None:
        with psycopg.connect(source_dsn, autocommit=True) as conn:
            began = time.monotonic()
            row = conn.execute("SELECT nextval('t_id_seq')").fetchone()
            print("waited", time.monotonic() - began)
            drawn.extend(row or ())

    with Killer(move, draw, 0, relation="t_id_seq"):
        move.run("swap")
    assert drawn
    execute(source_dsn, "INSERT INTO t DEFAULT VALUES; INSERT INTO t DEFAULT VALUES")
    execute(source_dsn, f"INSERT INTO t (id) VALUES ({drawn[0]})")


@pytest.fixture(params=matrix(16, 18))
def server(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(f"pg{request.param}")
    return cluster
