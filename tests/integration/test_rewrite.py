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
from typing import Self

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs
from airflow_provider_pgddl.engine.errors import PgddlError
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle, execute, left_behind, wait_until
from tests.integration.rewrites import FLOOR, OTHERS, REWRITE, SMALL, Shop, copies, load, unaccounted
from tests.table_writers import TableWriters

pytestmark = pytest.mark.timeout(900)

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
