"""revert: what people changed of a table since its swap, and what stands on it, goes back with it or stops it."""

from __future__ import annotations

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.errors import EXIT_BLOCKED, EXIT_DONE, PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.stages import revert
from airflow_provider_pgddl.engine.swapping.follow_ups import FollowedUp
from tests.conftest import Database
from tests.failpoints import At, once
from tests.integration.lifecycle import execute
from tests.integration.reverts import Make, one, rewrite_of_items, type_of_id
from tests.integration.rewrites import SMALL
from tests.integration.sessions import Underway, in_transaction, wait_for, waits


@pytest.fixture
def rewrite(pg18: Cluster, database: Database, lifecycle: Make) -> Make:
    return rewrite_of_items(database(pg18), lifecycle)


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
