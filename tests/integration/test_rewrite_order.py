"""rewrite.order_by: rows lie in an order on disk after the swap, and each of them is there once."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.traffic import Connection, Operation, Traffic
from airflow_provider_pgddl.engine.commands.check import check
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.combinations import matrix
from tests.integration.faults import Faults, until_done
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.partitions import AUDIT, AUDITED, STAGES, parts, rows_of, some_traffic, unaccounted
from tests.integration.sessions import Underway, in_transaction, one, wait_for, waits

SMALL: dict[str, Any] = {
    "backfill": {"chunk_bytes": "8kB", "workers": 1},
    "replay": {"window_rows": 3000, "until_lag": "30s"},
}


@pytest.fixture(params=matrix(16, 18))
def server(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(f"pg{request.param}")
    return cluster


@pytest.fixture
def dsn(server: Cluster, database: Callable[..., str]) -> str:
    return database(server)


def misplaced(dsn: str, relation: str, order: str, where: str = "true") -> int:
    """Rows that lie behind one that comes later by `order`."""
    (count,) = rows_of(
        dsn,
        "SELECT count(*) FROM (SELECT r, lag(r) OVER (ORDER BY at) AS before FROM"
        f" (SELECT ctid AS at, dense_rank() OVER (ORDER BY {order}) AS r FROM {relation} t WHERE {where}) ranked) s"
        " WHERE before > r",
    )
    return int(count)


class Rows(Traffic):
    """Rows that move from one range of the order to another all the time."""

    value = "nullif((random() * 60)::int, 7)"

    def prepare(self, conn: Connection) -> list[Operation]:
        weights = {self.insert: 6, self.move: 10, self.delete: 3, self.rekey: 2}
        return [Operation(run.__name__, weight, run) for run, weight in weights.items()]

    def _one(self) -> str:
        return "WHERE id = (SELECT id FROM t WHERE id > 2000 ORDER BY random() LIMIT 1)"

    def insert(self, conn: Connection, chance: random.Random) -> None:
        conn.execute(f"INSERT INTO t (customer, name) VALUES ({self.value}, 'new')".encode())

    def move(self, conn: Connection, chance: random.Random) -> None:
        conn.execute(f"UPDATE t SET customer = {self.value} {self._one()}".encode())

    def delete(self, conn: Connection, chance: random.Random) -> None:
        conn.execute(f"DELETE FROM t {self._one()}".encode())

    def rekey(self, conn: Connection, chance: random.Random) -> None:
        conn.execute(f"UPDATE t SET id = {2000 + chance.getrandbits(60)} {self._one()}".encode())


@pytest.mark.parametrize("indexed", [True, False])
def test_rows_lie_in_order_though_writers_move_them_and_connections_are_lost(
    dsn: str, lifecycle: Callable[..., Lifecycle], indexed: bool
) -> None:
    """Rows with ids up to 2000 are never written to: they must lie in order. All of them must be there once."""
    columns = "id bigserial PRIMARY KEY, customer integer, name text, what text"
    execute(dsn, f"CREATE TABLE t ({columns}) WITH (autovacuum_enabled = false);" + AUDIT)
    execute(
        dsn,
        "INSERT INTO t (customer, name, what) SELECT nullif((random() * 60)::int, 7), md5(n::text),"
        " repeat('y', 100) FROM generate_series(1, 4000) n;" + ("CREATE INDEX ON t (customer);" if indexed else ""),
    )
    execute(dsn, AUDITED.format(table="t"))
    move = lifecycle(dsn, rewrite={"public.t": {"order_by": ["customer", "name"]}}, **SMALL)
    writers = Rows([dsn], threads=2, rate=120)
    faults = Faults(writers.seed, one_in=250)
    print("seed", writers.seed)
    with writers:
        for stage in STAGES[:-1]:
            until_done(move, stage, faults)
            some_traffic(writers, 10)
            if stage == "backfill":
                done = "SELECT kind, count(*) FROM pgddl.chunks WHERE done_at IS NOT NULL GROUP BY 1"
                kinds = dict(move.journal(done))
        until_done(move, "cleanup", faults)
    print(writers.notes.committed, dict(faults.lost), kinds)
    assert kinds["values"] >= 20
    assert kinds["nulls"] == 1
    assert writers.notes.failures == []
    assert unaccounted(dsn, "t") == []
    assert rows_of(dsn, "SELECT count(*) FROM t WHERE id <= 2000") == [2000]
    # Where a transaction was lost or a row is shorter, a page has room for a later one.
    assert misplaced(dsn, "t", "customer, name", "id <= 2000") < 20
    execute(dsn, "ANALYZE t")
    print(rows_of(dsn, "SELECT attname, correlation FROM pg_stats WHERE tablename = 't'"))
    assert misplaced(dsn, "t", "id", "id <= 2000") > 500, "the measure does not see disorder"
    assert left_behind(dsn) == ["schema pgddl"]


# A type, and values of it as SQL over n, NULLs among them.
TYPES = {
    "text": ("text", "(ARRAY['a', 'B', 'ä', 'A', '', 'Z', 'z', NULL, 'it''s', 'a b'])[1 + n % 10]"),
    "C text": ('varchar(5) COLLATE "C"', "chr(32 + n % 90)"),
    "numeric": ("numeric", "(ARRAY['NaN', '-Infinity', 'Infinity', '1.0', '1.00', '-0.1', NULL])[1 + n % 7]::numeric"),
    "double": ("double precision", "(ARRAY['NaN', '-Infinity', '0', '-0', '0.1', '1e300', NULL])[1 + n % 7]::float8"),
    "timestamp": (
        "timestamptz",
        "CASE n % 9 WHEN 0 THEN 'infinity' WHEN 1 THEN '-infinity' ELSE now() + random() * 1e6 * interval '1 s' END",
    ),
    "enum": ("mood", "(ARRAY['sad', 'ok', 'happy', NULL])[1 + n % 4]::mood"),
    "boolean": ("boolean", "(ARRAY[true, false, NULL])[1 + n % 3]"),
    "domain": ("positive", "1 + n % 5"),
    "array": ("integer[]", "ARRAY[n % 3, NULL, n % 2]"),
    "row": ("pair", "ROW(n % 3, NULLIF(n % 2, 0))::pair"),
    "bytea": ("bytea", "decode(md5((n % 20)::text), 'hex')"),
    "all NULL": ("integer", "NULL::integer"),
    "one value": ("integer NOT NULL", "7"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_every_row_is_in_one_range_of_any_type(dsn: str, lifecycle: Callable[..., Lifecycle], kind: str) -> None:
    type_, value = TYPES[kind]
    execute(
        dsn,
        "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy'); CREATE DOMAIN positive AS integer CHECK (value > 0);"
        f"CREATE TYPE pair AS (a integer, b integer); CREATE TABLE t (id integer PRIMARY KEY, v {type_}, w text);"
        f"INSERT INTO t SELECT n, {value}, md5(n::text) FROM generate_series(1, 2000) n",
    )
    move = lifecycle(dsn, rewrite={"public.t": {"order_by": ["v", "w"]}}, **SMALL)
    move.run_all(until="backfill")
    assert rows_of(dsn, "SELECT count(*), count(DISTINCT id) FROM pgddl_copy_public.t") == [(2000, 2000)]
    assert misplaced(dsn, "pgddl_copy_public.t", "v, w") == 0
    assert misplaced(dsn, "t", "v, w") > 0
    assert move.journal("SELECT count(*) > 1 FROM pgddl.chunks") == [(True,)]


def test_rows_are_partitioned_and_in_order(dsn: str, lifecycle: Callable[..., Lifecycle]) -> None:
    execute(
        dsn,
        "CREATE TABLE t (id integer PRIMARY KEY, at date NOT NULL, who integer);"
        "INSERT INTO t SELECT n, '2026-01-01'::date + n % 90, (random() * 1000)::int FROM generate_series(1, 3000) n",
    )
    rewrite = {"order_by": ["who"], "partition_by": {"column": "at", "range": "month"}}
    move = lifecycle(dsn, rewrite={"public.t": rewrite}, **SMALL)
    move.run_all()
    first = [name for name in parts(dsn, "t") if name <= "t_p2026_03"]
    assert first == ["t_p2026_01", "t_p2026_02", "t_p2026_03"]
    assert [misplaced(dsn, name, "who") for name in first] == [0, 0, 0]
    assert sum(rows_of(dsn, f"SELECT count(*) FROM {name}")[0] for name in first) == 3000


def test_the_order_is_that_of_the_live_table_where_a_column_is_computed(
    dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    execute(
        dsn,
        "CREATE TABLE t (id integer PRIMARY KEY, v integer);"
        "INSERT INTO t SELECT n, (random() * 1000)::int FROM generate_series(1, 3000) n",
    )
    rewrite = {"order_by": ["v"], "alter": ["ALTER COLUMN v TYPE text USING (-v)::text"]}
    lifecycle(dsn, rewrite={"public.t": rewrite}, **SMALL).run_all()
    assert misplaced(dsn, "t", "v::int DESC") == 0


def test_columns_without_an_order_are_refused_and_an_index_is_asked_for(
    dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    execute(dsn, "CREATE TABLE t (id integer PRIMARY KEY, j json, v integer)")
    move = lifecycle(dsn, rewrite={"public.t": {"order_by": ["j"]}}, **SMALL)
    assert "these columns have no order" in move.refused("setup", PreflightRefused).what
    again = {"public.t": {"order_by": ["v", "j"]}}
    assert "these columns have no order" in move.refused("setup", PreflightRefused, rewrite=again).what

    def warnings() -> list[dict[str, Any]]:
        file = load_pipeline({**move.content, "rewrite": {"public.t": {"order_by": ["v"]}}})
        return [f for f in check(file, dsn, dsn)["findings"] if f["code"] == "order_by"]

    (warned,) = warnings()
    assert warned["severity"] == "warning"
    execute(dsn, warned["fix"].replace(" CONCURRENTLY", ""))
    assert warnings() == []


def test_while_one_table_is_sampled_no_other_is_locked(source_dsn: str, lifecycle: Callable[..., Lifecycle]) -> None:
    """A client that has locked the one may lock the other, too: it would wait for us, and we for it."""
    for name in ("a", "b"):
        execute(
            source_dsn, f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} SELECT generate_series(1, 9)"
        )
    tables = {"public.a": {"order_by": ["id"]}, "public.b": {"order_by": ["id"]}}
    move = lifecycle(source_dsn, rewrite=tables, capture={"ddl": "off"})
    move.run_all(until="snapshot")
    with (
        in_transaction(source_dsn, "LOCK TABLE b") as client,
        Underway(lambda: move.run("backfill")) as filling,
    ):
        wait_for(lambda: waits(source_dsn, "AccessShareLock", "b"), filling)
        assert one(source_dsn, "SELECT count(*) FROM pgddl.chunks") > 0  # a has been laid out, and that is committed
        client.execute("LOCK TABLE a NOWAIT")
        client.commit()
        filling.finish()


def test_nulls_from_before_not_null_are_in_a_range(
    pg18: Cluster, database: Callable[..., str], lifecycle: Callable[..., Lifecycle]
) -> None:
    dsn = database(pg18)
    execute(
        dsn,
        "CREATE TABLE t (id integer PRIMARY KEY, v integer); INSERT INTO t SELECT n, nullif(n % 5, 0)"
        " FROM generate_series(1, 200) n; ALTER TABLE t ADD CONSTRAINT has_v NOT NULL v NOT VALID",
    )
    move = lifecycle(dsn, rewrite={"public.t": {"order_by": ["v"]}}, **SMALL)
    move.run_all(until="swap")
    assert rows_of(dsn, "SELECT count(*), count(v) FROM t") == [(200, 160)]
    assert rows_of(
        dsn, "SELECT convalidated FROM pg_constraint WHERE conname = 'has_v' AND conrelid = 't'::regclass"
    ) == [False]
