"""Every kind of action that rewrite.alter takes: what becomes of the table, also where a dump says otherwise of it."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.partitions import rows_of

pytestmark = pytest.mark.timeout(900)

SMALL = {"backfill": {"chunk_bytes": "32kB", "workers": 1}, "replay": {"window_rows": 300}}

TABLE = """
CREATE SEQUENCE numbers;
CREATE TABLE t (
    id serial PRIMARY KEY, a integer NOT NULL DEFAULT nextval('numbers'), b text DEFAULT 'x', c text,
    d integer DEFAULT 4
) WITH (fillfactor = 90, autovacuum_enabled = false);
ALTER TABLE t ALTER COLUMN b SET STORAGE EXTERNAL, ALTER COLUMN b SET STATISTICS 70,
    ALTER COLUMN a SET (n_distinct = 5), ALTER COLUMN c SET COMPRESSION pglz;
INSERT INTO t (b, c, d) SELECT repeat('b', n), repeat('c', 5 * n), n FROM generate_series(1, 300) n;
"""
COLUMN = """SELECT concat_ws(' ', format_type(atttypid, atttypmod), attnotnull, attstorage, nullif(attstattarget, -1),
    nullif(attcompression::text, ''), attoptions, pg_get_expr(adbin, adrelid)) FROM pg_attribute
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE attrelid = 't'::regclass AND attname = '{}'"""
OPTIONS = """SELECT c.reloptions::text || t.reloptions::text FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid
    WHERE c.oid = 't'::regclass"""
TABLESPACE = """SELECT spcname FROM pg_class c JOIN pg_tablespace s ON s.oid = reltablespace
    WHERE c.oid = 't'::regclass"""

# Actions, what the catalog is asked afterwards, and what it answers.
ACTIONS: dict[str, tuple[list[str], str, object]] = {
    "type": (["ALTER COLUMN d TYPE numeric(9,1)"], COLUMN.format("d"), "numeric(9,1) f m 4"),
    "set not null": (["ALTER COLUMN c SET NOT NULL"], COLUMN.format("c"), "text t x p"),
    "drop not null": (["ALTER COLUMN a DROP NOT NULL"], COLUMN.format("a"),
                      "integer f p {n_distinct=5} nextval('numbers'::regclass)"),
    "set default": (["ALTER COLUMN b SET DEFAULT 'new'"], COLUMN.format("b"), "text f e 70 'new'::text"),
    "set another default": (["ALTER COLUMN a SET DEFAULT 7"], COLUMN.format("a"), "integer t p {n_distinct=5} 7"),
    "drop default": (["ALTER COLUMN d DROP DEFAULT"], COLUMN.format("d"), "integer f p"),
    "drop a sequence's default": (["ALTER COLUMN a DROP DEFAULT"], COLUMN.format("a"), "integer t p {n_distinct=5}"),
    "statistics": (["ALTER COLUMN b SET STATISTICS 500"], COLUMN.format("b"), "text f e 500 'x'::text"),
    "storage": (["ALTER COLUMN b SET STORAGE MAIN"], COLUMN.format("b"), "text f m 70 'x'::text"),
    "compression": (["ALTER COLUMN b SET COMPRESSION pglz"], COLUMN.format("b"), "text f e 70 p 'x'::text"),
    "no compression": (["ALTER COLUMN c SET COMPRESSION default"], COLUMN.format("c"), "text f x"),
    "column options": (["ALTER COLUMN a SET (n_distinct = 9)"], COLUMN.format("a"),
                       "integer t p {n_distinct=9} nextval('numbers'::regclass)"),
    "no column options": (["ALTER COLUMN a RESET (n_distinct)"], COLUMN.format("a"),
                          "integer t p nextval('numbers'::regclass)"),
    "options": (["SET (fillfactor = 50, toast.autovacuum_enabled = false)"],
                OPTIONS, "{autovacuum_enabled=false,fillfactor=50}{autovacuum_enabled=false}"),
    "no options": (["RESET (fillfactor)"], "SELECT reloptions::text FROM pg_class WHERE oid = 't'::regclass",
                   "{autovacuum_enabled=false}"),
    "tablespace": (["SET TABLESPACE elsewhere"], TABLESPACE, "elsewhere"),
    "drop column": (["DROP COLUMN c"],
                    "SELECT count(*) FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'c'", 0),
}  # fmt: skip


@pytest.fixture(params=matrix(16, 18))
def server(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(f"pg{request.param}")
    return cluster


@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_every_action_is_done(
    server: Cluster, database: Callable[..., str], lifecycle: Callable[..., Lifecycle], partitioned: bool
) -> None:
    """One table an action, all in one pipeline."""
    dsn = database(server)
    make_tablespace(dsn)
    rewrite, rows = {}, {}
    for number, (kind, (actions, _, _)) in enumerate(ACTIONS.items()):
        name = f"t{number}"
        table = TABLE.replace("numbers", f"numbers_{name}")
        execute(dsn, table.replace("TABLE t ", f"TABLE {name} ").replace("INTO t ", f"INTO {name} "))
        rewrite[f"public.{name}"] = {"alter": actions}
        if partitioned:
            rewrite[f"public.{name}"] |= {"partition_by": {"column": "id", "range": 100}}
        rows[name] = f"SELECT id, a, b, {'d' if kind == 'drop column' else 'c'}, d::integer FROM {name} ORDER BY 1"
    before = {name: rows_of(dsn, query) for name, query in rows.items()}
    lifecycle(dsn, rewrite=rewrite, **SMALL).run_all()
    found = {}
    for number, (kind, (_, query, _)) in enumerate(ACTIONS.items()):
        place = f"'t{number}_p100'::regclass" if partitioned else f"'t{number}'::regclass"
        (answer,) = rows_of(dsn, query.replace("'t'::regclass", place))
        found[kind] = answer.replace(f"numbers_t{number}", "numbers") if isinstance(answer, str) else answer
    assert found == {kind: expected for kind, (_, _, expected) in ACTIONS.items()}
    assert {name: rows_of(dsn, query) for name, query in rows.items()} == before


@pytest.mark.parametrize("while_", ["blocks are copied", "keys are replayed"])
def test_a_row_that_gets_too_large_for_a_page_stops_its_table_alone(
    source_dsn: str, lifecycle: Callable[..., Lifecycle], while_: str
) -> None:
    dsn = source_dsn
    execute(
        dsn,
        "CREATE TABLE t (id int PRIMARY KEY, a int, x text); CREATE TABLE other (id int PRIMARY KEY);"
        "ALTER TABLE t ALTER x SET STORAGE PLAIN; INSERT INTO t VALUES (1); INSERT INTO other VALUES (1)",
    )
    grow = (
        "UPDATE t SET a = 1, x = (SELECT left(string_agg(md5(n::text), ''), 8120) FROM generate_series(1, 300) n);"
        "INSERT INTO other VALUES (2)"
    )
    wider = {"alter": ["ALTER id TYPE bigint", "ALTER a TYPE bigint"]}
    move = lifecycle(dsn, rewrite={"public.t": wider, "public.other": {}}, **SMALL)
    move.run_all(until="snapshot")
    if while_ == "blocks are copied":
        execute(dsn, grow)
        (blocked,) = move.run("backfill").blocked
    else:
        move.run_all(after="snapshot", until="schema_sync")
        execute(dsn, grow)
        (blocked,) = move.run("replay").blocked
    assert blocked["table"] == "public.t"
    assert "the copy refused a row of the source (row is too big: size 8168, maximum size 8160" in blocked["reason"]
    if while_ != "blocks are copied":
        assert rows_of(dsn, "SELECT count(*) FROM pgddl_copy_public.other") == [2]


def make_tablespace(dsn: str) -> None:
    """One a cluster, within its data directory; it goes with the cluster."""
    if not rows_of(dsn, "SELECT spcname FROM pg_tablespace WHERE spcname = 'elsewhere'"):
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("SET allow_in_place_tablespaces = on")
            conn.execute("CREATE TABLESPACE elsewhere LOCATION ''")
