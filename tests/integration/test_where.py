"""tables.where: only some rows of a table are on the target."""

from __future__ import annotations

import random
from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgddl.engine.commands.check import check
from airflow_provider_pgddl.engine.commands.plan import lines, plan
from airflow_provider_pgddl.engine.commands.reset import reset
from airflow_provider_pgddl.engine.errors import PipelineFileError, PreflightRefused, StageFailed, UsageError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.combinations import matrix
from tests.failpoints import At
from tests.integration.conditions import SHOP, TABLES, WHERE, assert_only_the_fence, change, rows, writing
from tests.integration.lifecycle import Lifecycle, execute, left_behind

Make = Callable[..., Lifecycle]


def assert_same(move: Lifecycle, *, without: tuple[str, ...] = ()) -> None:
    """Each table of the target has exactly the rows that fulfil its condition, as they are."""
    for table in ("s.orders", "s.lines", "s.events", "s.whole", "s.notes"):
        if table not in without:
            wanted = rows(move.source, table, WHERE.get(table, "true"))
            assert rows(move.target, table) == wanted, table
            assert wanted or table == "s.events"


@pytest.mark.parametrize("capture", matrix("change_log", "wal"))
def test_rows_come_and_go_with_the_condition(
    source_dsn: str, target_dsn: str, lifecycle: Make, at: At, capture: str
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    execute(source_dsn, SHOP)
    move = lifecycle(
        source_dsn, target_dsn, tables=TABLES, capture={"rows": capture}, swap={"fence": "read_only"},
        backfill={"chunk_bytes": "32kB", "workers": 2}, replay={"until_lag": "10s"},
    )  # fmt: skip
    chance = random.Random(seed)
    with writing(source_dsn, seed):
        move.run_all(until="snapshot")
        with at("backfill.before_chunk_commit") as passes:
            passes.act = lambda n: passes.lose() if n == 3 else None
            move.refused("backfill")
        move.run_all(after="snapshot", until="schema_sync")
        with at("replay.before_target_commit") as passes:
            passes.act = lambda n: passes.lose() if n == 1 else None
            move.refused("replay")
        move.run_all(after="schema_sync", until="verify")
    with psycopg.connect(source_dsn, autocommit=True) as conn:
        for _ in range(60):
            change(conn, chance, "TRUNCATE s.events_1")
    done = move.run_all(after="schema_sync", until="swap")
    assert_same(move)
    counted = {name: found["rows"] for name, found in done["verify"].tables.items() if name != "s.notes"}
    assert counted == {name: len(rows(move.target, name)) for name in counted}
    move.run("cleanup")
    assert_only_the_fence(source_dsn)
    with psycopg.connect(target_dsn) as conn:
        unproven = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND NOT convalidated"
        assert conn.execute(unproven).fetchone() == (0,)


def test_each_way_of_a_row_and_what_verify_finds(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables=TABLES, swap={"fence": "read_only"})
    move.run_all(until="replay")
    assert_same(move, without=("s.notes",))
    in_, out, key, cleared = 1, 2, 6, 10  # of tenants 6, 7, 7, 7
    execute(
        source_dsn,
        f"""
        UPDATE s.orders SET tenant = 7 WHERE id = {in_};
        UPDATE s.orders SET tenant = 8 WHERE id = {out};
        UPDATE s.orders SET id = 9000 WHERE id = {key};
        DELETE FROM s.lines WHERE order_id = {cleared};
        UPDATE s.orders SET tenant = NULL WHERE id = {cleared};
        """,
    )
    move.run("replay")
    assert_same(move, without=("s.notes",))
    there = {text for (text,) in move.journal("SELECT id::text FROM s.orders")}
    assert {str(in_), "9000"} <= there and not {str(out), str(key), str(cleared)} & there
    # A row that the source has and the condition leaves out is one too many; one that is in it is missing.
    execute(target_dsn, "INSERT INTO s.orders VALUES (3, 8, 'c3', 'x'); DELETE FROM s.orders WHERE id = 1")
    assert "s.orders: 2 rows differ" in str(move.refused("verify", StageFailed))
    mended = move.run("verify", mend=True)
    assert not mended.blocked
    assert_same(move, without=("s.notes",))
    execute(source_dsn, "TRUNCATE s.orders CASCADE; INSERT INTO s.orders VALUES (1, 7, 'a', 'b'), (2, 8, 'b', 'b')")
    execute(source_dsn, "INSERT INTO s.lines VALUES (7, 1, 1, 'x')")
    move.run_all(after="schema_sync", until="verify")
    assert rows(target_dsn, "s.orders") == rows(source_dsn, "s.orders", "tenant = 7")
    dry = move.dry_run("swap")
    assert dry.state != "failed"
    move.run_all(after="verify")
    assert_same(move)


def test_ddl_never_changes_what_a_condition_means(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    execute(source_dsn, SHOP + "ALTER TABLE s.orders ADD COLUMN other int DEFAULT 7")
    move = lifecycle(source_dsn, target_dsn, tables=TABLES, swap={"fence": "read_only"})
    move.run_all(until="replay")
    before = rows(target_dsn, "s.orders", made="t.id")

    def stops(statements: str, back: str, words: str) -> None:
        execute(source_dsn, statements)
        execute(source_dsn, "UPDATE s.whole SET tenant = tenant + 1")
        stopped = move.run("replay")
        reasons = {blocked["table"]: blocked["reason"] for blocked in stopped.blocked}
        assert set(reasons) == {"s.orders"}, reasons
        assert words in reasons["s.orders"], reasons
        assert rows(target_dsn, "s.whole") == rows(source_dsn, "s.whole")
        assert rows(target_dsn, move.journal(COPY_OF_ORDERS)[0][0], made="t.id") == before
        execute(source_dsn, back)
        assert not move.run("replay").blocked
        assert len(rows(target_dsn, "s.orders")) == len(rows(source_dsn, "s.orders", WHERE["s.orders"]))

    rename = "ALTER TABLE s.orders RENAME COLUMN {} TO {}"
    stops(rename.format("tenant", "owner"), rename.format("owner", "tenant"), "is gone from the source")
    stops(
        ";".join(rename.format(*names) for names in (("tenant", "was"), ("other", "tenant"))),
        ";".join(rename.format(*names) for names in (("tenant", "other"), ("was", "tenant"))),
        "is another column than it was",
    )
    stops("ALTER TABLE s.orders RENAME TO purchases", "ALTER TABLE s.purchases RENAME TO orders", "is called")
    # What the condition has nothing to do with goes on.
    execute(source_dsn, "ALTER TABLE s.orders ADD COLUMN more text DEFAULT 'm', ALTER body TYPE varchar(90)")
    assert not move.run("replay").blocked
    assert rows(target_dsn, "s.orders") == rows(source_dsn, "s.orders", WHERE["s.orders"])
    # A table of that name that comes later is not taken for this one.
    execute(source_dsn, "DROP TABLE s.events; CREATE TABLE s.events (id int PRIMARY KEY, kind text)")
    execute(source_dsn, "INSERT INTO s.events VALUES (1, 'sound')")
    move.run("replay")
    assert "came after setup" in blocked(move)["s.events"]
    assert rows(target_dsn, "s.events") == []


def test_columns_that_change_places_before_the_snapshot(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    execute(source_dsn, SHOP + "ALTER TABLE s.orders ADD COLUMN other int DEFAULT 7")
    move = lifecycle(source_dsn, target_dsn, tables=TABLES, swap={"fence": "read_only"})
    move.run("setup")
    rename = "ALTER TABLE s.orders RENAME COLUMN {} TO {}; "
    execute(source_dsn, rename.format("tenant", "was") + rename.format("other", "tenant"))
    for stage in ("snapshot", "backfill", "schema_sync", "replay"):
        stopped = {table["table"]: table["reason"] for table in move.run(stage).blocked}
        assert stage == "snapshot" or "is another column than it was" in stopped["s.orders"], (stage, stopped)
    assert move.journal("SELECT to_regclass('s.orders')") == [(None,)]
    assert "is another column" in blocked(move)["s.orders"]
    execute(source_dsn, rename.format("tenant", "other") + rename.format("was", "tenant"))
    move.run_all(until="swap")
    assert_same(move)


def blocked(move: Lifecycle) -> dict[str, str]:
    """What closes the gate and keeps the swap from happening."""
    return dict(
        move.journal(
            "SELECT schema_name || '.' || table_name, findings::text FROM pgddl.schema_status WHERE status = 'mismatch'"
        )
    )


COPY_OF_ORDERS = "SELECT oid::regclass::text FROM pg_class WHERE relname IN ('orders', 'purchases') AND relkind = 'r'"


def test_parts_that_come_and_go_do_not_bring_what_is_left_out(
    source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables=TABLES, swap={"fence": "read_only"})
    move.run_all(until="replay")
    execute(source_dsn, "ALTER TABLE s.events DETACH PARTITION s.events_1")
    move.run("replay")
    assert "was a partition of a table of which" in blocked(move)["s.events_1"]
    kept = rows(target_dsn, "s.events_1")
    assert kept and len(kept) < len(rows(source_dsn, "s.events_1"))
    execute(source_dsn, "ALTER TABLE s.events ATTACH PARTITION s.events_1 FOR VALUES FROM (100) TO (200)")
    assert not move.run("replay").blocked
    assert_same(move, without=("s.notes",))


def test_preflight_takes_what_is_immutable_and_trusted(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    execute(
        source_dsn,
        SHOP
        + """
        CREATE TABLE s.t (id int PRIMARY KEY, at timestamptz, day date, said text, tenant int);
        CREATE SCHEMA mine; CREATE SCHEMA shared;
        CREATE FUNCTION mine.seven(i int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT i = 7';
        CREATE FUNCTION mine.changing(i int) RETURNS boolean LANGUAGE plpgsql STABLE AS 'BEGIN RETURN i = 7; END';
        CREATE FUNCTION shared.seven(i int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT i = 7';
        GRANT CREATE, USAGE ON SCHEMA shared TO PUBLIC; GRANT USAGE ON SCHEMA mine TO PUBLIC;
        CREATE ROLE rows_stranger;
        CREATE FUNCTION mine.hers(t text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE
            AS $$ BEGIN RAISE EXCEPTION 'it has run'; END $$;
        CREATE DOMAIN mine.checked AS text CHECK (mine.hers(VALUE));
        CREATE FUNCTION mine.compare(i int, j int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
        CREATE OPERATOR mine.=== (FUNCTION = mine.compare, LEFTARG = int, RIGHTARG = int);
        ALTER FUNCTION mine.hers OWNER TO rows_stranger; ALTER DOMAIN mine.checked OWNER TO rows_stranger;
        ALTER OPERATOR mine.=== (int, int) OWNER TO rows_stranger;
        ALTER FUNCTION mine.compare OWNER TO rows_stranger;
        """,
    )

    def refused(condition: str) -> str:
        move = lifecycle(source_dsn, target_dsn, tables={"include": ["s.t"], "where": {"s.t": condition}})
        try:
            move.run("setup")
        except PreflightRefused as error:
            assert left_behind(source_dsn) == []
            return str(error)
        reset(load_pipeline(move.content), move.source, move.target)
        return ""

    for condition in (
        "tenant = 7", "mine.seven(tenant)", "said = 'today' AND day < '2024-01-01'", "lower(said) LIKE 'a%'",
        "at >= '2024-01-01 00:00:00+00'", "CASE WHEN tenant > 1 THEN true END", "(id, tenant) < (4, 7) OR said IS NULL",
    ):  # fmt: skip
        assert refused(condition) == "", condition
    for condition, why in {
        "at < now()": "is not immutable",
        "at::date > '2024-01-01'": "is not immutable",
        "day < 'today'": "another moment each time",
        "at < 'tomorrow'": "another moment each time",
        "mine.changing(tenant)": "is not immutable",
        "random() < 0.5": "is not immutable",
        "shared.seven(tenant)": "everybody may make another",
        "tenant": "must be type boolean",
        "tenant = 'seven'": "invalid input syntax",
        "mine.nobody(tenant)": "does not exist",
        "mine.hers('x')": "calls function mine.hers(text) of role rows_stranger",
        "tenant OPERATOR(mine.===) 7": "calls function mine.compare(integer,integer) of role rows_stranger",
        "said::mine.checked IS NULL": "of role rows_stranger",
        "'{a}'::mine.checked[] IS NULL": "runs domain mine.checked of role rows_stranger",
        "sum(tenant) > 1": "aggregate functions are not allowed",
        "generate_series(1, tenant) > 1": "set-returning functions are not allowed",
    }.items():
        said = refused(condition)
        assert why in said and "tables.where.s.t" in said, (condition, said)
        assert "it has run" not in said
    execute(source_dsn, "DROP OWNED BY rows_stranger; DROP ROLE rows_stranger")
    with pytest.raises(PipelineFileError, match=r"tables.where.s.t: s.t has no column tennant; did you mean tenant"):
        lifecycle(source_dsn, target_dsn, tables={"include": ["s.t"], "where": {"s.t": "tennant = 7"}}).run("setup")


def test_check_and_plan_name_it_and_a_run_keeps_it(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables={**TABLES, "where": {"s.orders": "tenant = 7"}},
                     swap={"fence": "read_only"})  # fmt: skip
    pipeline = load_pipeline(move.content)
    found = check(pipeline, source_dsn, target_dsn)["findings"]
    told = {(finding["table"], finding["code"]): finding for finding in found}
    assert told["s.orders", "part_of_rows"]["what"] == "on the target: only rows where tenant = 7"
    key = told["s.lines", "foreign_key"]
    assert key["severity"] == "warning" and key["fix"] == 'tables: {where: {s.lines: "tenant = 7"}}'
    assert "s.orders: only rows where tenant = 7" in "\n".join(lines(plan(pipeline, source_dsn, target_dsn)))
    by_code = lifecycle(source_dsn, target_dsn, tables={**TABLES, "where": {"s.orders": "code < 'c5'"}},
                        swap={"fence": "read_only"})  # fmt: skip
    found = check(load_pipeline(by_code.content), source_dsn, target_dsn)["findings"]
    (key,) = [finding for finding in found if finding["code"] == "foreign_key"]
    assert "no condition over s.lines says the same" in key["fix"]
    move.run_all(until="snapshot")
    given = move.content["tables"]
    move.content["tables"] = {**given, "where": {"s.orders": "tenant = 8"}}
    assert "tables.where.s.orders" in str(move.refused("backfill", UsageError))
    move.content["tables"] = given
    # Rows that point nowhere leave their key NOT VALID, and nothing behind: the swap says which.
    for stage in ("backfill", "schema_sync", "replay", "verify"):
        assert not move.run(stage).blocked
    swapped = move.run("swap")
    assert [blocked["table"] for blocked in swapped.blocked] == ["s.lines"]
    assert "stays NOT VALID" in swapped.blocked[0]["reason"]
    assert rows(target_dsn, "s.orders") == rows(source_dsn, "s.orders", "tenant = 7")
    assert rows(target_dsn, "s.lines") == rows(source_dsn, "s.lines")
