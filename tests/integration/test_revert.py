"""revert: a swap in place is taken back, and nothing that was written in between is lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import EXIT_BLOCKED, EXIT_DONE, PreflightRefused, StageFailed, UsageError
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.server.giving_way import Watch
from airflow_provider_pgddl.engine.stages import revert
from airflow_provider_pgddl.engine.swapping import refused_rows
from airflow_provider_pgddl.engine.swapping.follow_ups import FollowedUp
from tests.combinations import matrix
from tests.conftest import Database
from tests.failpoints import At, once
from tests.integration.faults import Faults, until_done
from tests.integration.lifecycle import Lifecycle, execute, left_behind, wait_until
from tests.integration.resets import reset, rows_of, structure
from tests.integration.rewrites import OTHERS, REWRITE, Shop, load, unaccounted
from tests.integration.sessions import Underway, in_transaction, wait_for, waits
from tests.table_writers import TableWriters

Make = Callable[..., Lifecycle]
SMALL: dict[str, Any] = {"backfill": {"chunk_bytes": "32kB", "workers": 1}, "replay": {"window_rows": 300}}

ITEMS = """
CREATE TABLE kinds (code text PRIMARY KEY);
INSERT INTO kinds VALUES ('a'), ('b'), ('c');
CREATE TABLE items (
    id serial PRIMARY KEY, legacy text DEFAULT 'was', kind text REFERENCES kinds ON UPDATE CASCADE,
    code text NOT NULL UNIQUE, n integer NOT NULL DEFAULT 0 CHECK (n >= 0), note varchar(20),
    size integer GENERATED ALWAYS AS (length(note)) STORED);
CREATE TABLE parts (
    item integer REFERENCES items ON DELETE CASCADE ON UPDATE CASCADE, part integer, PRIMARY KEY (item, part));
CREATE TABLE seen (what text, id bigint);
CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.seen VALUES (TG_OP, coalesce(NEW.id, OLD.id));
    RETURN NULL;
END $$;
CREATE TRIGGER seen AFTER INSERT OR UPDATE OR DELETE ON items FOR EACH ROW EXECUTE FUNCTION seen();
CREATE TRIGGER always AFTER INSERT ON items FOR EACH ROW EXECUTE FUNCTION seen();
ALTER TABLE items ENABLE ALWAYS TRIGGER always;
CREATE TRIGGER off AFTER INSERT ON items FOR EACH ROW EXECUTE FUNCTION seen();
ALTER TABLE items DISABLE TRIGGER off;
CREATE STATISTICS many ON kind, n FROM items;
CREATE POLICY everybody ON items USING (n >= 0);
GRANT SELECT ON items TO PUBLIC;
GRANT UPDATE (note) ON items TO PUBLIC;
COMMENT ON TABLE items IS 'things';
COMMENT ON COLUMN items.note IS 'a note';
COMMENT ON CONSTRAINT items_kind_fkey ON items IS 'its kind';
INSERT INTO items (kind, code, n, note, legacy)
SELECT (ARRAY['a', 'b', 'c'])[1 + i % 3], 'c' || i, i, 'note ' || i, 'legacy ' || i FROM generate_series(1, 500) i;
INSERT INTO parts SELECT i, 1 FROM generate_series(1, 500) i;
"""
WIDER = {
    "public.items": {"alter": ["ALTER COLUMN id TYPE bigint", "ALTER COLUMN n TYPE bigint", "DROP COLUMN legacy"]},
    "public.parts": {"alter": ["ALTER COLUMN item TYPE bigint"]},
}
SHOWN = "id, kind, code, n, note, size"

# Names that Postgres gives by number, and what of ours is there until the end.
MADE_ANEW = ["RI_ConstraintTrigger", "pgddl"]


@pytest.fixture(params=matrix(16, 18))
def server(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(f"pg{request.param}")
    return cluster


@pytest.fixture
def rewrite(pg18: Cluster, database: Database, lifecycle: Make) -> Make:
    """A rewrite of items on 18; what is given is the pipeline's."""
    dsn = database(pg18)
    execute(dsn, ITEMS)

    def make(**pipeline: Any) -> Lifecycle:
        return lifecycle(dsn, **({"rewrite": WIDER} | SMALL | pipeline))

    return make


def one(move: Lifecycle, query: str) -> Any:
    return move.journal(query)[0][0]


def rows(move: Lifecycle, columns: str = "t.*", table: str = "items") -> list[str]:
    return [row[0] for row in move.journal(f"SELECT ROW({columns})::text FROM {table} t ORDER BY 1")]


def type_of_id(move: Lifecycle) -> str:
    return str(one(move, "SELECT format_type(atttypid, NULL) FROM pg_attribute"
                         " WHERE attrelid = 'items'::regclass AND attname = 'id'"))  # fmt: skip


WRITES = """
INSERT INTO items (kind, code) VALUES ('a', 'new');
UPDATE items SET note = 'other', n = n + 1 WHERE id < 50;
DELETE FROM items WHERE id BETWEEN 60 AND 70;
UPDATE items SET id = id + 10000 WHERE id BETWEEN 80 AND 90;
UPDATE items SET code = 'x' WHERE code = 'c100';
UPDATE items SET code = 'c100' WHERE code = 'c101';
UPDATE items SET code = 'c101' WHERE code = 'x';
UPDATE items SET id = 0 WHERE id = 200;
UPDATE items SET id = 200 WHERE id = 201;
UPDATE items SET id = 201 WHERE id = 0
"""


def test_a_swap_goes_back_and_forth_again(server: Cluster, database: Database, lifecycle: Make) -> None:
    dsn = database(server)
    execute(dsn, ITEMS)
    move = lifecycle(dsn, rewrite=WIDER, **SMALL)
    before = structure(dsn)
    move.run_all(until="verify")
    assert "nothing has been swapped" in move.refused("revert", UsageError).what
    move.run("swap")
    assert type_of_id(move) == "bigint"
    execute(dsn, WRITES)
    seen = one(move, "SELECT count(*) FROM seen")
    there, parts = rows(move, SHOWN), rows(move, table="parts")
    print(move.run("revert").figures)
    assert type_of_id(move) == "integer"
    assert (rows(move, SHOWN), rows(move, table="parts")) == (there, parts)
    assert one(move, "SELECT count(*) FROM seen") == seen, "windows set off the old table's triggers"
    assert one(move, "SELECT legacy FROM items WHERE id = 10085") == "legacy 85"
    kept = dict(move.journal("SELECT id, legacy FROM items WHERE id IN (5, 200, 201)"))
    assert kept == {5: "legacy 5", 200: "legacy 201", 201: "legacy 200"}
    assert one(move, "SELECT legacy FROM items WHERE code = 'new'") == "was"
    assert diff_catalogs(before, structure(dsn), ignore=MADE_ANEW) == []
    assert stages.status(load_pipeline(move.content), dsn, dsn)["state"] == "reverted"
    assert move.run("revert").state == "nothing_to_do"
    assert "the swap has not been done" in move.refused("cleanup", UsageError).what

    execute(dsn, "INSERT INTO items (kind, code) VALUES ('b', 'newer'); DELETE FROM items WHERE id = 5")
    execute(dsn, "REVOKE UPDATE (note) ON items FROM PUBLIC")  # what was carried once does not come back
    there, parts = rows(move, SHOWN), rows(move, table="parts")
    move.run_all(until="swap", after="schema_sync")
    assert type_of_id(move) == "bigint"
    assert (rows(move, SHOWN), rows(move, table="parts")) == (there, parts)
    assert [line for line in catalog_lines(dsn) if line.startswith("grant UPDATE (note)")] == []
    execute(dsn, "INSERT INTO items (kind, code) VALUES ('b', 'newest'); TRUNCATE parts")
    there = rows(move, SHOWN)
    move.run("revert")
    assert (rows(move, SHOWN), rows(move, table="parts")) == (there, [])
    move.run_all(until="cleanup", after="schema_sync")
    assert (rows(move, SHOWN), rows(move, table="parts")) == (there, [])
    assert left_behind(dsn) == ["schema pgddl"]
    assert "finished" in move.refused("revert", UsageError).what
    reset(move)
    assert left_behind(dsn) == []


def test_reset_after_a_revert_leaves_the_source_as_it_was(rewrite: Make) -> None:
    move = rewrite()
    before, there = structure(move.source), rows_of(move.source)
    move.run_all(until="swap")
    with pytest.raises(UsageError) as caught:
        reset(move)
    assert "run stage revert, then reset" in str(caught.value.todo)
    move.run("revert")
    reset(move)
    assert diff_catalogs(before, structure(move.source), ignore=MADE_ANEW[:1]) == []
    assert rows_of(move.source) == there
    assert left_behind(move.source) == []


def test_a_truncated_table_goes_back(rewrite: Make) -> None:
    move = rewrite()
    move.run_all(until="swap")
    execute(move.source, "UPDATE items SET note = 'x' WHERE id < 9; TRUNCATE items, parts")
    execute(
        move.source, "INSERT INTO items (id, kind, code, note) VALUES (7, 'a', 'c7', 'anew'), (900, 'b', 'c9', 'z')"
    )
    there = rows(move, SHOWN)
    move.run("revert")
    assert rows(move, SHOWN) == there
    assert one(move, "SELECT string_agg(DISTINCT legacy, ',') FROM items") == "was", "rows of before are gone"
    assert rows(move, table="parts") == []


def test_stages_that_are_run_again_after_the_swap_leave_the_way_back(rewrite: Make) -> None:
    """As when all tasks of a DAG's run are cleared: the tables that are live now are nothing that setup captures."""
    move = rewrite()
    move.run_all(until="swap")
    execute(move.source, WRITES)
    stages = ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap")
    assert {stage: move.run(stage).state for stage in stages} == dict.fromkeys(stages, "nothing_to_do")
    execute(move.source, "UPDATE items SET note = 'later' WHERE id = 300")
    there = rows(move, SHOWN)
    move.run("revert")
    assert rows(move, SHOWN) == there
    assert type_of_id(move) == "integer"


BEYOND = {
    "a_key": ("INSERT INTO items (id, kind, code) VALUES (3000000000, 'a', 'far'), (4000000000, 'b', 'farther')",
              ["(3000000000): ", "(4000000000): ", "(column id)", "out of range"],
              "UPDATE items SET id = CASE code WHEN 'far' THEN 9001 ELSE 9002 END WHERE code LIKE 'far%'"),
    "a_value": ("UPDATE items SET n = 3000000000 WHERE id = 17", ["(17): ", "(column n)"],
                "UPDATE items SET n = 3 WHERE id = 17"),
}  # fmt: skip


@pytest.mark.parametrize("what", BEYOND)
def test_values_beyond_the_old_type_are_refused_by_name(rewrite: Make, what: str) -> None:
    write, said, undo = BEYOND[what]
    move = rewrite()
    move.run_all(until="swap")
    execute(move.source, WRITES + ";" + write)
    there = rows(move, SHOWN)
    for _ in range(2):
        error = move.refused("revert", StageFailed)
        assert error.table == "public.items"
        assert [part for part in said if part not in error.what] == [], error.what
    assert type_of_id(move) == "bigint"
    assert rows(move, SHOWN) == there
    execute(move.source, undo)
    there = rows(move, SHOWN)
    move.run("revert")
    assert type_of_id(move) == "integer"
    assert rows(move, SHOWN) == there


def test_a_refused_row_is_told_where_nobody_can_look_for_it(rewrite: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    move = rewrite()
    move.run_all(until="swap")
    execute(move.source, "UPDATE items SET n = 3000000000 WHERE id = 17")

    def slow(conn: psycopg.Connection[Any], *_: object) -> None:
        conn.execute("SELECT pg_sleep(60)")

    def unwatched(conn: Any, watcher: Any) -> Watch:
        """Its session is lost, so nobody sees who waits, and the look is ended."""
        watcher.close()
        return Watch(conn, watcher)

    monkeypatch.setattr(refused_rows, "drain", slow)
    monkeypatch.setattr(refused_rows, "Watch", unwatched)
    error = move.refused("revert", StageFailed)
    assert error.table == "public.items"
    assert "out of range" in error.what and "could not be seen" in error.what, error.what


NARROW = """
CREATE TABLE t (id integer PRIMARY KEY, amount numeric(10,2), word varchar(5), cents integer, gone text NOT NULL,
                at timestamp, real real);
INSERT INTO t SELECT i, i / 4.0, 'w' || i, i, 'g' || i, now(), i FROM generate_series(1, 90) i
"""
COMPUTED = {"public.t": {"alter": [
    "ALTER COLUMN amount TYPE numeric(20,6)", "ALTER COLUMN word TYPE text", "ALTER COLUMN at TYPE timestamptz",
    "ALTER COLUMN real TYPE double precision", "ALTER COLUMN cents TYPE bigint USING (cents * 100)::bigint",
    "DROP COLUMN gone"]}}  # fmt: skip


@pytest.mark.parametrize(
    ("write", "said"),
    [
        ("UPDATE t SET amount = 1.234567 WHERE id = 3", ["(3)", "amount"]),
        ("UPDATE t SET word = 'longer than five' WHERE id = 4", ["(4)", "word"]),
        ("UPDATE t SET real = 0.1 WHERE id = 5", ["(5)", "real"]),
        ("UPDATE t SET cents = 777 WHERE id = 6", ["(6)", "cents"]),
        ("INSERT INTO t (id) VALUES (1000)", ["(1000)", '"gone"', "not-null"]),
    ],
)
def test_what_would_change_on_its_way_back_is_refused(
    pg18: Cluster, database: Database, lifecycle: Make, write: str, said: list[str]
) -> None:
    dsn = database(pg18)
    execute(dsn, NARROW)
    move = lifecycle(dsn, rewrite=COMPUTED, **SMALL)
    move.run_all(until="swap")
    execute(dsn, "UPDATE t SET amount = 7.5, word = 'five5', at = now(), real = 2.5 WHERE id < 20")
    execute(dsn, write)
    there = rows(move, table="t")
    error = move.refused("revert", StageFailed)
    assert [part for part in said if part not in error.what] == [], error.what
    assert rows(move, table="t") == there
    execute(dsn, "DELETE FROM t WHERE id IN (3, 4, 5, 6, 1000)")
    shown = "id, amount::numeric(20,6), word, at::timestamptz, real::double precision"
    there = rows(move, shown, table="t")
    move.run("revert")
    assert rows(move, shown, table="t") == there
    assert one(move, "SELECT count(*) FROM t WHERE cents = id AND gone = 'g' || id") == 86


CHANGES = {
    "a grant": ("GRANT DELETE ON items TO PUBLIC", "REVOKE DELETE ON items FROM PUBLIC", "GRANT DELETE"),
    "an index": ("CREATE INDEX quick ON items (n)", "DROP INDEX quick", "+ CREATE INDEX quick"),
    "a column": ("ALTER TABLE items ADD extra integer", None, "+ column extra integer"),
    "a trigger": ("ALTER TABLE items DISABLE TRIGGER seen", "ALTER TABLE items ENABLE TRIGGER seen", "TRIGGER seen"),
    "a comment": ("COMMENT ON COLUMN items.kind IS 'x'", "COMMENT ON COLUMN items.kind IS NULL", ".kind: x"),
    "a publication": ("CREATE PUBLICATION p FOR TABLE items", "DROP PUBLICATION p", "publication p"),
    "capture": ("ALTER TABLE items DISABLE TRIGGER {0}; ALTER TABLE items ENABLE ALWAYS TRIGGER {0}", None, "missed"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_people_changed_since_the_swap_is_not_lost_in_silence(rewrite: Make, at: At, what: str) -> None:
    """Nor what they change behind the first look at it."""
    change, undo, said = CHANGES[what]
    move = rewrite()
    move.run_all(until="swap")
    if what == "a grant":
        at("revert.before_lock", once(lambda: execute(move.source, change)))
    else:
        execute(move.source, change.format(f"pgddl_row_{move.name}"))
    with pytest.raises((PreflightRefused, StageFailed)) as caught:
        move.run("revert")
    assert said in str(caught.value)
    assert type_of_id(move) == "bigint"
    if undo is not None:
        execute(move.source, undo)
        move.run("revert")
        assert type_of_id(move) == "integer"
        move.run_all(until="cleanup", after="schema_sync")


# What changes no row and no column: how it is done, how it is undone, what is said of it.
QUIET = [
    ("ALTER TABLE items RENAME CONSTRAINT items_code_not_null TO named",
     "ALTER TABLE items RENAME CONSTRAINT named TO items_code_not_null", "+ NOT NULL CONSTRAINT named NOT NULL code"),
    ("ALTER TABLE items ALTER CONSTRAINT items_code_not_null NO INHERIT",
     "ALTER TABLE items ALTER CONSTRAINT items_code_not_null INHERIT", "NOT NULL code NO INHERIT"),
    ("CREATE TABLE above (code text NOT NULL); ALTER TABLE items INHERIT above", "ALTER TABLE items NO INHERIT above",
     "INHERITS public.above"),
    ("ALTER TABLE items SET (toast.autovacuum_enabled = off)", "ALTER TABLE items RESET (toast.autovacuum_enabled)",
     "TOAST options {autovacuum_enabled=off}"),
    ("ALTER STATISTICS many SET STATISTICS 7", "ALTER STATISTICS many SET STATISTICS -1", "+ STATISTICS many TARGET 7"),
]  # fmt: skip


def test_what_people_changed_of_more_than_columns_is_not_lost_in_silence(rewrite: Make) -> None:
    move = rewrite()
    move.run_all(until="swap")
    for change, undo, said in QUIET:
        execute(move.source, change)
        with pytest.raises(PreflightRefused) as caught:
            move.run("revert")
        assert said in str(caught.value)
        execute(move.source, undo)
    # As the swap of an older version has noted it.
    newer = "fact ~ '^(ACCESS METHOD|NOT NULL CONSTRAINT) '"
    was = f"SELECT jsonb_agg(fact) FROM jsonb_array_elements_text(facts) fact WHERE NOT {newer}"
    execute(move.source, f"UPDATE pgddl.reverses SET facts = ({was})")
    move.run("revert")
    assert type_of_id(move) == "integer"


def test_what_stands_on_the_table_goes_back_with_the_name(rewrite: Make) -> None:
    """Also what was made since the swap; a view of the column that gets another type is made again, with its grants."""
    move = rewrite()
    execute(
        move.source,
        "CREATE VIEW codes AS SELECT code FROM items; CREATE VIEW ids AS SELECT id FROM items;"
        "GRANT SELECT ON ids TO PUBLIC;"
        "CREATE FUNCTION first(items) RETURNS text LANGUAGE sql AS 'SELECT $1.code';"
        "CREATE PUBLICATION of_items FOR TABLE items (id, code) WHERE (id > 5)",
    )
    published = (
        "SELECT pubname, tablename, attnames::text, rowfilter FROM pg_publication_tables WHERE pubname = 'of_items'"
    )
    before = move.on_source(published)
    move.run_all(until="swap")
    execute(move.source, "CREATE VIEW later AS SELECT id, n FROM items WHERE n > 0")
    for _ in range(2):
        move.run("revert")
        execute(move.source, "UPDATE items SET code = 'new' WHERE id = 7")
        assert one(move, "SELECT code FROM codes WHERE code = 'new'") == "new"
        assert one(move, "SELECT first(items) FROM items WHERE id = 7") == "new"
        assert one(move, "SELECT count(*) FROM later") == one(move, "SELECT count(*) FROM items WHERE n > 0")
        assert one(move, "SELECT pg_typeof(id)::text FROM ids LIMIT 1") == type_of_id(move) == "integer"
        assert one(move, "SELECT has_table_privilege('public', 'ids', 'SELECT')")
        assert move.on_source(published) == before
        execute(move.source, "UPDATE items SET code = 'old' WHERE id = 7")
        move.run_all(until="swap", after="schema_sync")
        assert one(move, "SELECT pg_typeof(id)::text FROM ids LIMIT 1") == "bigint"
    move.run("cleanup")
    assert move.on_source(published) == before


def test_foreign_keys_made_since_the_swap_go_along(rewrite: Make) -> None:
    move = rewrite()
    move.run_all(until="swap")
    execute(move.source, "CREATE TABLE later (item bigint REFERENCES items); INSERT INTO later VALUES (1)")
    move.run("revert")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        execute(move.source, "INSERT INTO later VALUES (77777)")
    assert one(move, "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND NOT convalidated") == 0
    move.run_all(until="swap", after="schema_sync")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        execute(move.source, "INSERT INTO later VALUES (77777)")


def test_who_locks_both_tables_of_a_key_goes_through_while_it_is_validated(
    rewrite: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """We have the one and wait for the other, which the client has: it would be told of a deadlock, or we would."""
    move = rewrite()
    move.run_all(until="swap")
    validate, met = revert.follow_up, list[str]()

    def follow_up(context: Context) -> FollowedUp:
        with (
            in_transaction(move.source, "LOCK TABLE kinds") as client,
            Underway(lambda: validate(context)) as validating,
        ):
            wait_for(lambda: waits(move.source, "RowShareLock", "kinds"), validating)
            client.execute("LOCK TABLE items")
            client.commit()
            met.append("both")
            return validating.finish()

    monkeypatch.setattr(revert, "follow_up", follow_up)
    move.run("revert")
    assert met == ["both"]
    assert one(move, "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND NOT convalidated") == 0


def test_the_foreign_key_of_a_dropped_column_comes_back(rewrite: Make) -> None:
    """Not valid where its rows refer to what was deleted while nobody knew of them."""
    alter = {"public.items": {"alter": ["DROP COLUMN kind"]}}
    move = rewrite(rewrite=alter)
    for deleted in (False, True):
        move.run_all(until="swap", after="schema_sync" if deleted else None)
        execute(
            move.source, f"UPDATE items SET n = n + 1 WHERE id < 9; DELETE FROM kinds WHERE {deleted} AND code = 'b'"
        )
        reverted = move.run("revert")
        assert reverted.exit_code == (EXIT_BLOCKED if deleted else EXIT_DONE)
        key = (
            "SELECT convalidated FROM pg_constraint WHERE conname = 'items_kind_fkey' AND conrelid = 'items'::regclass"
        )
        assert one(move, key) == (not deleted)
        assert one(move, "SELECT obj_description(oid, 'pg_constraint') FROM pg_constraint"
                         " WHERE conname = 'items_kind_fkey'") == "its kind"  # fmt: skip
        assert one(move, "SELECT count(*) FROM items WHERE kind = (ARRAY['a', 'b', 'c'])[1 + id % 3]") == 500
        assert move.run("revert").state == "nothing_to_do"
        if not deleted:
            move.run("replay")


def test_a_sequence_beyond_the_old_type_is_refused(rewrite: Make) -> None:
    move = rewrite()
    execute(move.source, "ALTER SEQUENCE items_id_seq AS bigint")
    move.run_all(until="swap")
    execute(move.source, "SELECT setval('items_id_seq', 5000000000)")
    error = move.refused("revert", StageFailed)
    assert "public.items_id_seq stands at 5000000000" in error.what
    execute(move.source, "SELECT setval('items_id_seq', 5000)")
    move.run("revert")
    execute(move.source, "INSERT INTO items (kind, code) VALUES ('a', 'next')")
    assert one(move, "SELECT id FROM items WHERE code = 'next'") == 5001
    assert one(move, "SELECT data_type::text FROM pg_sequences WHERE sequencename = 'items_id_seq'") == "bigint"


def test_identities_go_on_both_ways(pg18: Cluster, database: Database, lifecycle: Make) -> None:
    dsn = database(pg18)
    execute(dsn, "CREATE TABLE items (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text)")
    move = lifecycle(dsn, rewrite={"public.items": {"alter": ["ALTER COLUMN id TYPE bigint"]}}, **SMALL)
    write = "INSERT INTO items (what) SELECT 'x' FROM generate_series(1, 9)"
    execute(dsn, write)
    move.run_all(until="swap")
    execute(dsn, write)
    move.run("revert")
    execute(dsn, write)
    move.run_all(until="swap", after="schema_sync")
    execute(dsn, write)
    assert one(move, "SELECT count(DISTINCT id) FROM items") == 36


def test_what_is_not_kept_does_not_go_back(rewrite: Make) -> None:
    move = rewrite(swap={"keep_old": False})
    move.run_all(until="swap")
    assert move.journal("SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
                        " WHERE nspname = 'pgddl_old_public'") == []  # fmt: skip
    assert move.journal("SELECT FROM pg_trigger WHERE tgname LIKE 'pgddl%'") == []
    assert "keep_old" in move.refused("revert", UsageError).what
    assert move.run("swap").state == "nothing_to_do"
    move.run("cleanup")
    assert left_behind(move.source) == ["schema pgddl"]


def test_a_cut_over_to_another_cluster_has_no_way_back(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    execute(source_dsn, "CREATE TABLE t (id integer PRIMARY KEY)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, **SMALL)
    move.run_all(until="swap")
    assert "has no way back" in move.refused("revert", UsageError).what


def test_the_old_table_is_watched_until_it_is_back(rewrite: Make) -> None:
    move = rewrite()
    move.run_all(until="swap")
    execute(move.source, "INSERT INTO pgddl_old_public.items (kind, code) VALUES ('a', 'stray')")
    assert "written to after the swap" in move.refused("revert", StageFailed).what
    assert type_of_id(move) == "bigint"
    log = one(move, "SELECT log_table FROM pgddl.tables WHERE table_name = 'items'")
    execute(move.source, f"DELETE FROM pgddl_old_public.items WHERE code = 'stray'; DELETE FROM pgddl.{log}")
    move.run("revert")
    assert type_of_id(move) == "integer"


def test_windows_of_a_direct_trigger_go_back_by_the_log(rewrite: Make) -> None:
    move = rewrite(capture={"rows": "direct_trigger"})
    move.run_all(until="swap")
    execute(move.source, WRITES)
    there = rows(move, SHOWN)
    move.run("revert")
    assert rows(move, SHOWN) == there
    move.run("replay")
    execute(move.source, "UPDATE items SET note = 'direct' WHERE id < 7")
    there = rows(move, SHOWN)
    move.run_all(until="swap", after="replay")
    assert (rows(move, SHOWN), type_of_id(move)) == (there, "bigint")


def test_connections_may_be_lost_anywhere_on_both_ways(server: Cluster, database: Database, lifecycle: Make) -> None:
    dsn = database(server)
    execute(dsn, ITEMS)
    before = structure(dsn)
    seed = random.SystemRandom().getrandbits(32)
    faults = Faults(seed, one_in=120)
    move = lifecycle(dsn, rewrite=WIDER, **SMALL)
    chance = random.Random(seed)
    move.run_all(until="verify")
    for _ in range(2):
        for stage in ("replay", "verify", "swap"):
            until_done(move, stage, faults)
        assert type_of_id(move) == "bigint"
        first = chance.randint(300, 400)
        execute(dsn, f"UPDATE items SET n = n + 1 WHERE id > {first}; DELETE FROM items WHERE id = {first}")
        execute(dsn, f"INSERT INTO items (kind, code) VALUES ('a', 'new {first} {chance.random()}')")
        there = rows(move, SHOWN)
        until_done(move, "revert", faults)
        assert rows(move, SHOWN) == there
        move.run("revert")
        assert one(move, "SELECT count(*) FROM items WHERE legacy = 'legacy ' || id OR legacy = 'was'") == len(there)
        assert diff_catalogs(before, structure(dsn), ignore=MADE_ANEW) == []
    print(f"seed {seed}: {dict(faults.lost)}")
    assert faults.lost
    until_done(move, "replay", faults)
    until_done(move, "swap", faults)
    assert rows(move, SHOWN) == there
    until_done(move, "cleanup", faults)
    assert left_behind(dsn) == ["schema pgddl"]


def test_writers_notice_neither_way(server: Cluster, database: Database, lifecycle: Make) -> None:
    """All of test_rewrite's tables there, back, and there again, under their writers and their audit."""
    dsn = database(server)
    load(dsn)
    execute(dsn, EITHER_WAY)
    before = catalog_lines(dsn)
    move = lifecycle(dsn, rewrite=REVERTIBLE, **SMALL | {"replay": {"window_rows": 2000}})
    shop = Shop([dsn], threads=2, rate=40)
    others = TableWriters([dsn], OTHERS, truncate=[("public", "tokens")], threads=2, rate=40)
    print(f"seeds {shop.seed} {others.seed}")

    def some_traffic() -> None:
        for writers in (shop, others):
            seen = writers.notes.committed.total()
            wait_until(lambda w=writers, n=seen: w.notes.committed.total() > n + 20)

    with shop, others:
        some_traffic()
        move.run_all(until="swap")
        for _ in range(2):
            some_traffic()
            print(move.run("revert").figures)
            with shop.quiet(), others.quiet():
                assert unaccounted(dsn) == []
                assert diff_catalogs(before, catalog_lines(dsn), ignore=["RI_ConstraintTrigger"]) == []
            some_traffic()
            for stage in ("replay", "verify", "swap"):
                assert not move.run(stage).blocked
        some_traffic()
        move.run("cleanup")
        some_traffic()
    for writers in (shop, others):
        print(writers.notes.committed, writers.notes.refused, writers.notes.retried)
        assert writers.notes.failures == []
        assert not writers.notes.refused
    assert unaccounted(dsn) == []
    assert move.journal("SELECT FROM pg_constraint WHERE NOT convalidated") == []
    assert left_behind(dsn) == ["schema pgddl"]


# What test_rewrite's audit compares: nothing of the columns that a row has on one of the ways only.
EITHER_WAY = """
CREATE OR REPLACE FUNCTION audit.as_rewritten(relation oid, image jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS
$$ SELECT image - 'legacy' - 'legacy_no' - 'legacy_region' $$
"""
# Without what can only be computed one way.
REVERTIBLE = {
    table: {"alter": [a for a in options.get("alter", []) if "USING" not in a]} for table, options in REWRITE.items()
}


@pytest.mark.parametrize("where", ["revert.before_schemas_commit", "revert.before_commit", "revert.after_commit"])
def test_a_revert_that_is_killed_is_done_by_a_retry(rewrite: Make, where: str, at: At) -> None:
    move = rewrite()
    before = structure(move.source)
    move.run_all(until="swap")
    execute(move.source, WRITES)
    there = rows(move, SHOWN)

    class Killed(BaseException):
        pass

    def die(_: int) -> None:
        raise Killed

    with at(where, die), pytest.raises(Killed):
        move.run("revert")
    done = where == "revert.after_commit"
    assert type_of_id(move) == ("integer" if done else "bigint")
    assert rows(move, SHOWN) == there
    if done:
        execute(move.source, "INSERT INTO items (kind, code) VALUES ('c', 'in between')")
        there = rows(move, SHOWN)
    assert move.run("revert").state == "done"
    assert (rows(move, SHOWN), type_of_id(move)) == (there, "integer")
    assert diff_catalogs(before, structure(move.source), ignore=MADE_ANEW) == []
    move.run_all(until="cleanup", after="schema_sync")
    assert rows(move, SHOWN) == there


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rewrite": {"public.plain": {"partition_by": {"column": "id", "hash": 2}}}}, "the new table is partitioned"),
        ({"rewrite": {"public.keyless": {}}, "tables": {"keyless": "copy_at_swap"}}, "it has no key"),
    ],
)
def test_a_table_that_cannot_go_back_says_so(
    pg18: Cluster, database: Database, lifecycle: Make, change: dict[str, Any], said: str
) -> None:
    dsn = database(pg18)
    execute(
        dsn, "CREATE TABLE plain (id int PRIMARY KEY); CREATE TABLE keyless (n int); INSERT INTO keyless VALUES (1)"
    )
    move = lifecycle(dsn, **change)
    move.run_all(until="swap")
    assert said in move.refused("revert", PreflightRefused).what
    move.run("cleanup")
    assert left_behind(dsn) == ["schema pgddl"]  # the journal
