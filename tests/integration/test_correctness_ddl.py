"""Rules for DDL under way, each named after its number."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.compare import compare_catalogs, differences
from airflow_provider_pgddl.engine.apply import dump_events
from airflow_provider_pgddl.engine.capture import ddl_log
from airflow_provider_pgddl.engine.following import copies_ddl
from airflow_provider_pgddl.engine.server.connect import connect
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import Underway, do, one, wait_for

Pipelines = Callable[..., Lifecycle]

ORDERS = """
CREATE TABLE public.orders (id int PRIMARY KEY, note text, at timestamp);
INSERT INTO public.orders SELECT i, repeat('n', 200), '2024-03-31 02:30' FROM generate_series(1, 3000) i;
"""


def migrating(lifecycle: Pipelines, source: str, target: str, until: str, **pipeline: object) -> Lifecycle:
    execute(source, ORDERS)
    made = lifecycle(source, target, tables={"include": ["public.*"]}, **pipeline)
    made.run_all(until=until)
    return made


def test_c06_a_default_that_was_evaluated_once_shows_the_same_value(
    lifecycle: Pipelines, source_dsn: str, target_dsn: str
) -> None:
    """ADD COLUMN … DEFAULT now() rewrites nothing and fires no row trigger: the target gets the value, not the call."""
    pipeline = migrating(lifecycle, source_dsn, target_dsn, "replay")
    do(source_dsn, "ALTER TABLE public.orders ADD made timestamptz NOT NULL DEFAULT now()")
    filenode = one(source_dsn, "SELECT pg_relation_filenode('public.orders')")
    do(source_dsn, "INSERT INTO public.orders VALUES (9001)")
    assert filenode == one(source_dsn, "SELECT pg_relation_filenode('public.orders')")
    pipeline.run("replay")
    assert differences(source_dsn, target_dsn) == []
    assert compare_catalogs(source_dsn, target_dsn, ["public"]) == []
    assert one(target_dsn, "SELECT count(DISTINCT made) FROM public.orders") == 2


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_c06_a_change_of_type_means_what_it_meant_in_the_clients_time_zone(
    lifecycle: Pipelines, source_dsn: str, target_dsn: str, zone: str
) -> None:
    """Under UTC the source rewrites nothing for it and no event says that it did."""
    pipeline = migrating(lifecycle, source_dsn, target_dsn, "replay")
    do(source_dsn, f"SET TimeZone = '{zone}'", "ALTER TABLE public.orders ALTER at TYPE timestamptz")
    pipeline.run("replay")
    assert differences(source_dsn, target_dsn) == []
    assert one(target_dsn, "SELECT count(*) FROM public.orders") == 3000


def test_c08_ddl_for_a_copy_that_would_act_on_the_live_table_is_rolled_back(
    lifecycle: Pipelines, source_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are rewritten in the tree; should that ever miss one, the locks of our own backend tell."""
    execute(source_dsn, ORDERS)
    pipeline = lifecycle(source_dsn, rewrite={"public.orders": {}})
    pipeline.run_all(until="replay")
    monkeypatch.setattr(copies_ddl, "relocate", lambda statement, _: statement)
    do(source_dsn, "ALTER TABLE public.orders ADD seen int")
    before = one(source_dsn, "SELECT xmin::text FROM pg_class WHERE oid = 'public.orders'::regclass")
    assert pipeline.run("replay").blocked
    status, note = pipeline.journal("SELECT status, note FROM pgddl.ddl_events WHERE captured_id IS NOT NULL")[-1]
    assert (status, "already exists" in note or "live relation" in note) == ("failed", True)
    assert before == one(source_dsn, "SELECT xmin::text FROM pg_class WHERE oid = 'public.orders'::regclass")
    monkeypatch.undo()


def test_c08_the_locks_tell_whatever_the_text_says(lifecycle: Pipelines, source_dsn: str) -> None:
    execute(source_dsn, ORDERS)
    with connect(source_dsn, purpose="test") as conn, conn.transaction(force_rollback=True):
        conn.execute("COMMENT ON TABLE public.orders IS 'hit'")
        with pytest.raises(Exception, match="live relation"):
            dump_events.refuse_locks_outside(conn, "COMMENT ON TABLE public.orders IS 'hit'")


def test_c09_writes_while_triggers_were_off_are_read_again(
    lifecycle: Pipelines, source_dsn: str, target_dsn: str
) -> None:
    pipeline = migrating(lifecycle, source_dsn, target_dsn, "replay")
    execute(
        source_dsn,
        "ALTER TABLE public.orders DISABLE TRIGGER ALL; UPDATE public.orders SET note = 'unseen' WHERE id % 3 = 0;"
        "DELETE FROM public.orders WHERE id % 5 = 0; ALTER TABLE public.orders ENABLE TRIGGER ALL",
    )
    assert not pipeline.run("replay").blocked
    assert differences(source_dsn, target_dsn) == []


def test_c09_a_change_of_the_parent_says_what_became_of_its_descendants(
    source_dsn: str, lifecycle: Pipelines, target_dsn: str
) -> None:
    """ALTER TABLE on a parent reports only the parent."""
    execute(
        source_dsn,
        "CREATE TABLE public.parent (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE public.child PARTITION OF public.parent FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id);"
        "CREATE TABLE public.grandchild PARTITION OF public.child FOR VALUES FROM (0) TO (5);",
    )
    pipeline = migrating(lifecycle, source_dsn, target_dsn, "snapshot")
    do(source_dsn, "ALTER TABLE public.parent ADD added int DEFAULT 5")
    with connect(source_dsn, purpose="test") as source, connect(source_dsn, purpose="test") as other:
        with source.transaction():
            source.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            (event,) = ddl_log.read(source, lambda: other, pipeline.name, "queue", None).events
    described = {t["name"]: [c["name"] for c in t["columns"]] for t in event["tables"].values()}
    assert described == {name: ["id", "added"] for name in ("parent", "child", "grandchild")}


def test_c19_our_publication_breaks_no_client(lifecycle: Pipelines, source_dsn: str, target_dsn: str) -> None:
    """It holds no table at all: replica identity, dropped columns and keys, SET UNLOGGED are the application's own."""
    pipeline = migrating(lifecycle, source_dsn, target_dsn, "snapshot", capture={"ddl": "wal"})
    execute(source_dsn, "CREATE TABLE public.t (id int PRIMARY KEY, a int); INSERT INTO public.t VALUES (1, 1)")
    do(
        source_dsn,
        "ALTER TABLE public.t REPLICA IDENTITY FULL",
        "UPDATE public.t SET a = 2",
        "ALTER TABLE public.t DROP COLUMN a",
        "ALTER TABLE public.t DROP CONSTRAINT t_pkey",
        "UPDATE public.t SET id = 3",
        "ALTER TABLE public.t SET UNLOGGED",
    )
    assert one(source_dsn, "SELECT count(*) FROM pg_publication_tables WHERE pubname LIKE 'pgddl%'") == 0
    assert one(source_dsn, "SELECT count(*) FROM pg_publication WHERE pubname = %s", f"pgddl_{pipeline.name}") == 1


def test_c25_the_events_role_is_the_clients_and_not_the_functions_owner(
    lifecycle: Pipelines, source_dsn: str, target_dsn: str
) -> None:
    """Also where the client has no right on our schema, and where it has taken another role."""
    pipeline = migrating(lifecycle, source_dsn, target_dsn, "snapshot", ddl={"missing_role": "ignore"})
    role = sql.Identifier(f"dev_{pipeline.name}")
    with psycopg.connect(source_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE ROLE {}").format(role))
        try:
            conn.execute(sql.SQL("GRANT CREATE ON SCHEMA public TO {}").format(role))
            conn.execute("REVOKE ALL ON SCHEMA pgddl FROM PUBLIC")
            conn.execute(sql.SQL("SET ROLE {}").format(role))
            conn.execute("SET search_path = public")
            conn.execute("CREATE TABLE mine (id int PRIMARY KEY)")
            conn.execute("RESET ROLE")
            found = conn.execute(
                "SELECT event ->> 'role', event -> 'path', event ->> 'tag' FROM pgddl.ddl_queue ORDER BY id"
            ).fetchall()
            assert found[-1] == (f"dev_{pipeline.name}", ["pg_catalog", "public"], "CREATE TABLE")
            assert conn.execute("SELECT count(*) FROM pgddl.exceptions").fetchone() == (0,)
        finally:
            conn.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role).as_string(conn).encode())


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ("ALTER TABLE public.orders ADD seen text DEFAULT 'no'", False),
        ("ALTER TABLE public.orders RENAME note TO remark", False),
        ("ALTER TABLE public.orders ADD seen uuid DEFAULT gen_random_uuid()", True),
        # Needs what was written just before it.
        ("UPDATE public.orders SET note = id; ALTER TABLE public.orders ADD CHECK (note ~ '^[0-9]+$')", False),
    ],
)
def test_c26_a_backfill_goes_on_behind_ddl_and_a_rewrite_starts_it_again(
    lifecycle: Pipelines, source_dsn: str, target_dsn: str, change: str, again: bool
) -> None:
    """Applied at a chunk barrier: some chunks are done by then, others are not."""
    pipeline = migrating(lifecycle, source_dsn, target_dsn, "snapshot", backfill={"chunk_bytes": "16kB", "workers": 1})
    done = "SELECT count(*) FILTER (WHERE done_at IS NOT NULL), count(*) FROM pgddl.chunks"
    with psycopg.connect(target_dsn) as holder:
        # The copy cannot be written to until the change is there: the first chunks are under way, none beyond them.
        with Underway(lambda: pipeline.run("backfill")) as backfill:
            wait_for(lambda: pipeline.journal(done)[0][0] > 3, backfill)
            holder.execute("LOCK TABLE public.orders IN SHARE MODE")
            did, of = pipeline.journal(done)[0]
            do(source_dsn, *change.split("; "), "UPDATE public.orders SET id = id + 10000 WHERE id % 7 = 0")
            holder.commit()
            result = backfill.finish()
    assert did < of
    assert not result.blocked
    copied = result.figures["rows_now"]
    assert (copied > 3000) == again
    pipeline.run_all(after="backfill", until="verify")
    assert differences(source_dsn, target_dsn) == []
    assert compare_catalogs(source_dsn, target_dsn, ["public"]) == []


def test_c26_a_label_that_came_with_a_row_is_there_before_the_row(
    lifecycle: Pipelines, source_dsn: str, target_dsn: str
) -> None:
    """Enum labels print as of now, so a window can meet one that its snapshot has no event of."""
    execute(
        source_dsn, "CREATE TYPE public.mood AS ENUM ('a'); CREATE TABLE public.m (id int PRIMARY KEY, m public.mood)"
    )
    pipeline = migrating(lifecycle, source_dsn, target_dsn, "replay")
    do(source_dsn, "ALTER TYPE public.mood ADD VALUE 'b'", "INSERT INTO public.m VALUES (1, 'b')")
    assert not pipeline.run("replay").blocked
    assert differences(source_dsn, target_dsn) == []


def test_c26_a_table_that_was_put_right_by_hand_goes_on(lifecycle: Pipelines, source_dsn: str, target_dsn: str) -> None:
    """Its copy lacked a partition; nothing but the target has changed since, and the next replay finds that itself."""
    execute(
        source_dsn,
        "CREATE TABLE public.e (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE public.e_1 PARTITION OF public.e FOR VALUES FROM (0) TO (9)",
    )
    pipeline = migrating(
        lifecycle, source_dsn, target_dsn, "replay", ddl={"scope": "replicated_tables"}, backfill={"workers": 1}
    )
    do(
        source_dsn,
        "CREATE TABLE public.e_2 PARTITION OF public.e FOR VALUES FROM (9) TO (99)",
        "INSERT INTO public.e VALUES (50)",
    )
    assert "Source has partition public.e_2" in str(pipeline.run("replay").blocked)
    assert "Source has partition public.e_2" in str(pipeline.run("replay").blocked)
    do(target_dsn, "CREATE TABLE public.e_2 PARTITION OF public.e FOR VALUES FROM (9) TO (99)")
    assert not pipeline.run("replay").blocked
    assert differences(source_dsn, target_dsn) == []


def test_c11_a_target_restored_to_an_older_state_does_not_go_on_without_the_ddl_between(
    lifecycle: Pipelines, source_dsn: str, target_dsn: str
) -> None:
    """The queue holds it no longer, and a view shows in no table's structure."""
    pipeline = migrating(lifecycle, source_dsn, target_dsn, "replay")
    ((then, lsn),) = pipeline.journal("SELECT ddl_position, ddl_lsn::text FROM pgddl.pipelines")
    do(source_dsn, "CREATE VIEW public.v AS SELECT 1 AS one")
    pipeline.run("replay")
    assert one(target_dsn, "SELECT one FROM public.v") == 1
    with psycopg.connect(target_dsn) as conn:
        conn.execute("DROP VIEW public.v")
        conn.execute("DELETE FROM pgddl.ddl_events WHERE captured_id IS NOT NULL")
        conn.execute("UPDATE pgddl.pipelines SET ddl_position = %s, ddl_lsn = %s::pg_lsn", [then, lsn])
    assert "failed over to an older state" in str(pipeline.refused("replay"))


@pytest.mark.parametrize("until", matrix("snapshot", "backfill", "schema_sync", "replay"))
@pytest.mark.parametrize(
    "changes",
    [
        ["ADD x int", "UPDATE public.orders SET x = id", "ALTER x SET NOT NULL", "ADD UNIQUE (x)"],
        ["ADD x int", "UPDATE public.orders SET x = 7", "ADD CHECK (x = 7)", "RENAME x TO y"],
        ["RENAME note TO body", "UPDATE public.orders SET body = id", "ALTER body TYPE int USING body::int"],
        ["RENAME id TO number", "UPDATE public.orders SET note = number", "ADD UNIQUE (note)", "RENAME TO purchases"],
    ],
    ids=["not null", "check", "retype", "renamed"],
)
def test_c26_ddl_that_needs_rows_written_just_before_it(
    lifecycle: Pipelines, source_dsn: str, target_dsn: str, changes: list[str], until: str
) -> None:
    """The usual migration: add a column, fill it, make it strict. The copy has not seen the rows in between."""
    pipeline = migrating(lifecycle, source_dsn, target_dsn, until)
    for change in changes:
        do(source_dsn, change if change.startswith("UPDATE") else f"ALTER TABLE public.orders {change}")
    pipeline.run_all(after=until, until="verify")
    assert differences(source_dsn, target_dsn) == []
    pipeline.run("swap")
    assert compare_catalogs(source_dsn, target_dsn, ["public"]) == []
