"""A source that an older package has set up, and a newer one takes over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import Retry, UsageError
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.journal.migrations import Migration
from airflow_provider_pgddl.engine.pipeline.tags import CREATE_TAGS, DROP_TAGS
from airflow_provider_pgddl.engine.server.connect import connect
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.ddl_source import Source
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits

Make = Callable[..., Lifecycle]
UNDER_LOCK = 9  # of core: replaces what version 5 takes tables out of publications with
CLIENT_SETTINGS = 10  # of core: replaces what versions 2 and 9 leave in settings for each other
HOLD = 11  # of core: DDL can be kept from starting while a dump is taken
WAY_BACK = 13  # of core: what comes back passes a fence
GRANTED = 14  # of core: a pipeline's role need not own it
FIT_TO_PUBLISH = 15  # of core: what has become a partition leaves a publication that its identity does not fit
WHOLE_KEY = 16  # of core: what has an identity that is less than the key leaves a publication, too
NO_POLICIES = 17  # of core: no policy of a table's owner runs as the owner of the functions
CLIENTS_RIGHTS = 18  # of core: nor does anything else of it, and what a client waits for is locked with its own rights
GENERATED = 19  # of core: what has a generated column in its identity leaves a publication, from Postgres 18 on
VIRTUAL = 20  # of core: what has a virtual column computed otherwise leaves a publication before, from 18 on
SINCE = [
    UNDER_LOCK, CLIENT_SETTINGS, HOLD, WAY_BACK, GRANTED, FIT_TO_PUBLISH, WHOLE_KEY, NO_POLICIES, CLIENTS_RIGHTS,
    GENERATED, VIRTUAL,
]  # fmt: skip
CHANGED = {
    UNDER_LOCK: {"unpublish", "named_in_alter", "is_published", "leave_publications"},
    CLIENT_SETTINGS: {
        "client_ddl", "record_command", "leave_publications", "stash", "stash_key", "take_stash", "signature",
        "outer_context", "emit_command", "follow_log", "follow_publications",
    },
    HOLD: {"hold"},
    WAY_BACK: {"fence", "pass_fences", "return_passes"},
    GRANTED: {"follow_capture", "record_exception"},
    FIT_TO_PUBLISH: {"follow_publications"},
    WHOLE_KEY: {"follow_publications"},
    NO_POLICIES: {"follow_triggers"},
    CLIENTS_RIGHTS: {"follow_log", "leave_publications", "lock_altered", "leave_altered"},
    GENERATED: {"follow_publications"},
    VIRTUAL: {"named_in_alter", "leave_publications"},
}  # fmt: skip
NEW_TRIGGERS = {
    HOLD: {"pgddl_00_hold"},
    CLIENTS_RIGHTS: {"pgddl_0_publications_lock", "pgddl_0_publications_locked"},
}
KEY_RANGES = 11  # of journal: ranges of verify are over the whole key

FUNCTIONS = """
    SELECT p.oid::regprocedure::text, pg_get_functiondef(p.oid), p.proowner::regrole::text, p.proacl::text
    FROM pg_proc p WHERE p.pronamespace = 'pgddl'::regnamespace ORDER BY 1
"""
EVENT_TRIGGERS = """
    SELECT evtname, evtevent, evtfoid::regproc::text, evttags::text, evtenabled::text FROM pg_event_trigger ORDER BY 1
"""


@contextmanager
def package_before(version: int) -> Iterator[None]:
    """The package as far as it was before this version of core."""
    every = migrations.migrations

    def older(set_name: str) -> tuple[Migration, ...]:
        return tuple(m for m in every(set_name) if set_name != "core" or m.version < version)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "migrations", older)
        yield


def journal_before(dsn: str, version: int) -> None:
    """A journal taken back to what it was before this version."""
    with psycopg.connect(dsn) as conn:
        where = "set_name = 'journal' AND version >= %s"
        downs = conn.execute(
            f"SELECT down FROM pgddl.migrations WHERE {where} ORDER BY version DESC".encode(), [version]
        )
        for (down,) in downs.fetchall():
            conn.execute(down)
        conn.execute(f"DELETE FROM pgddl.migrations WHERE {where}".encode(), [version])


def upgrade(dsn: str) -> list[int]:
    with connect(dsn, purpose="test") as session:
        return migrations.apply(session, "core")


def made(dsn: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(FUNCTIONS.encode()).fetchall() + conn.execute(EVENT_TRIGGERS.encode()).fetchall()


@pytest.fixture(params=matrix(16, 18))
def fresh(request: pytest.FixtureRequest, database: Database) -> Callable[[], str]:
    return lambda: database(request.getfixturevalue(f"pg{request.param}"))


@pytest.mark.parametrize("captures_ddl", [True, False])
@pytest.mark.parametrize("version", CHANGED)
def test_up_and_down_give_what_a_package_of_that_version_makes(
    fresh: Callable[[], str], version: int, captures_ddl: bool
) -> None:
    """Also where event triggers are in use, whose functions have got a setting since they were made."""

    def set_up(source: Source) -> None:
        if captures_ddl:
            source.start()
        else:
            upgrade(source.dsn)

    old, new = Source(fresh(), "queue"), Source(fresh(), "queue")
    with package_before(version):
        set_up(old)
    with package_before(version + 1):
        set_up(new)
    landed, newest = made(old.dsn), made(new.dsn)
    assert captures_ddl == any("lc_messages" in str(row) for row in landed)
    changed = {row[0].split("(")[0] for row in set(landed) ^ set(newest)}
    triggers = NEW_TRIGGERS.get(version, set()) if captures_ddl else set()
    assert changed == {f"pgddl.{name}" for name in CHANGED[version]} | triggers
    for _ in range(2):
        with old.session() as session:
            assert migrations.state(session, "core")["changed"] == []
        with package_before(version + 1):
            assert upgrade(old.dsn) == [version]
        assert made(old.dsn) == newest
        with old.session() as session:
            where = "set_name = 'core' AND version = %s"
            (down,) = session.execute(f"SELECT down FROM pgddl.migrations WHERE {where}".encode(), [version]).fetchone()
            session.execute(down.encode())
            session.execute(f"DELETE FROM pgddl.migrations WHERE {where}".encode(), [version])
        assert made(old.dsn) == landed


SHOP = """
    CREATE TABLE items (id bigint PRIMARY KEY, code text UNIQUE, body text);
    CREATE TABLE pairs (a int, b text, body text, PRIMARY KEY (a, b));
    INSERT INTO items SELECT n, 'c' || n, 'x' FROM generate_series(1, 200) n;
    INSERT INTO pairs SELECT n, 'b' || n, 'x' FROM generate_series(1, 50) n;
"""
RETYPE = "ALTER TABLE items ALTER id TYPE numeric"
PUBLISHED = "SELECT array_agg(prrelid::regclass::text ORDER BY prrelid::regclass::text) FROM pg_publication_rel"


@pytest.fixture
def landed(fresh: Callable[[], str], target_dsn: str, lifecycle: Make) -> Lifecycle:
    """A pipeline under way whose source the older package has set up."""
    source = fresh()
    do(source, SHOP)
    shop = lifecycle(source, target_dsn, tables={"include": ["public.*"]}, capture={"rows": "wal"})
    with package_before(UNDER_LOCK):
        shop.run_all(until="replay")
    return shop


def test_c19_a_pipeline_that_was_set_up_before_goes_on(landed: Lifecycle) -> None:
    """With clients that have been connected all the while, and have run the functions as they were."""
    with psycopg.connect(landed.source) as client:
        client.execute("ALTER TABLE pairs ALTER a TYPE bigint")
        assert client.execute(PUBLISHED.encode()).fetchone() == (["items"],)
        client.rollback()
        client.execute("UPDATE items SET body = 'before', id = id + 5000 WHERE id < 9")
        client.commit()
        assert upgrade(landed.source) == SINCE
        client.execute(RETYPE.encode())
        assert client.execute(PUBLISHED.encode()).fetchone() == (["pairs"],)
        client.execute("UPDATE items SET body = 'after' WHERE code > 'c5'")
        client.commit()
        do(landed.source, "UPDATE pairs SET body = 'z'")
        assert not landed.run("replay").blocked
        assert one(landed.source, PUBLISHED) == ["items", "pairs"]
        assert differences(landed.source, landed.target) == []
    landed.run("setup")
    do(landed.source, "UPDATE items SET body = 'last' WHERE code = 'c1'", "ALTER TABLE pairs ALTER a TYPE numeric")
    landed.run_all(after="setup")
    assert differences(landed.source, landed.target) == []
    assert one(landed.source, "SELECT to_regnamespace('pgddl')::text") is None


def test_c19_what_the_older_functions_could_not_do_is_done_after_it(landed: Lifecycle) -> None:
    publication = one(landed.source, "SELECT pubname FROM pg_publication WHERE pubname LIKE 'pgddl_rows%'")

    @contextmanager
    def captured_meanwhile() -> Iterator[Underway[None]]:
        """DDL on the key of a table that is captured while it waits for its lock."""
        do(landed.source, RETYPE)
        assert one(landed.source, PUBLISHED) == ["pairs"]
        with (
            in_transaction(landed.source, "LOCK items IN SHARE ROW EXCLUSIVE MODE") as capture,
            Underway(lambda: do(landed.source, "ALTER TABLE items ALTER id TYPE bigint")) as alter,
        ):
            wait_for(lambda: waits(landed.source, "AccessExclusiveLock", "items"), alter)
            capture.execute(f"ALTER PUBLICATION {publication} ADD TABLE ONLY items (id)".encode())
            capture.commit()
            yield alter

    with captured_meanwhile() as alter:
        alter.fails(psycopg.errors.FeatureNotSupported)
    assert upgrade(landed.source) == SINCE
    with captured_meanwhile() as alter:
        alter.finish()
    assert one(landed.source, PUBLISHED) == ["pairs"]


def test_c19_an_upgrade_waits_for_no_client_and_fails_none(landed: Lifecycle) -> None:
    """One that is in the function that is replaced finds its table published no more, as it would have."""
    with (
        in_transaction(landed.source, "UPDATE items SET body = 'w'") as writer,
        Underway(lambda: do(landed.source, RETYPE)) as alter,
    ):
        wait_for(lambda: waits(landed.source, "AccessExclusiveLock", "items"), alter)
        with Underway(lambda: upgrade(landed.source)) as upgraded:
            assert upgraded.finish() == SINCE
        assert not alter.over
        writer.commit()
        alter.finish()
    assert one(landed.source, PUBLISHED) == ["pairs"]
    assert one(landed.source, "SELECT count(*) FROM pgddl.exceptions") == 0
    assert not landed.run("replay").blocked
    assert differences(landed.source, landed.target) == []


def test_a_command_that_rewrites_a_table_meanwhile_is_recorded_whole(fresh: Callable[[], str]) -> None:
    """The older functions had left for its end that it does."""
    source = Source(fresh(), "queue")
    with package_before(CLIENT_SETTINGS):
        source.start()
    do(
        source.dsn,
        "CREATE TABLE t (id int)",
        "INSERT INTO t VALUES (1)",
        "CREATE FUNCTION slowly(id int) RETURNS bigint LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN id; END'",
    )
    source.events()
    with (
        in_transaction(source.dsn, "SELECT pg_advisory_xact_lock(1)") as holder,
        Underway(lambda: do(source.dsn, "ALTER TABLE t ALTER id TYPE bigint USING slowly(id)")) as alter,
    ):
        wait_for(lambda: one(source.dsn, "SELECT count(*) FROM pg_locks WHERE NOT granted"), alter)
        assert upgrade(source.dsn)[0] == CLIENT_SETTINGS
        holder.commit()
        alter.finish()
    (event,) = source.events()
    assert len(event["rewritten"]) == 1
    source.stop()


def test_a_journal_of_an_older_package_wants_a_setup(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    do(source_dsn, SHOP)
    shop = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    shop.run_all(until="replay")
    journal_before(target_dsn, KEY_RANGES)
    error = shop.refused("verify", UsageError)
    assert (error.what, error.todo) == (
        "the journal is an older version's",
        "run stage setup, which brings it up to date",
    )
    do(source_dsn, "UPDATE items SET body = 'later' WHERE id = 7")
    shop.run("setup")
    assert shop.journal("SELECT acknowledged = window_no FROM pgddl.pipelines") == [(True,)]
    oid = one(source_dsn, "SELECT oid FROM pg_database WHERE datname = current_database()")
    assert shop.journal("SELECT source_database FROM pgddl.pipelines") == [(oid,)]
    shop.run_all(after="replay")
    assert differences(source_dsn, target_dsn) == []


def test_an_upgrade_keeps_nobody_waiting_for_long(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    """What it alters is read by every DDL of clients, or by others' chunks, to the end of a transaction."""
    do(source_dsn, SHOP)
    tries = {"retries": 2, "lock_timeout": "50ms"}
    shop = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, swap=tries)
    shop.run("setup")
    journal_before(target_dsn, KEY_RANGES)
    with in_transaction(target_dsn, "SELECT FROM pgddl.verifications"):
        error = shop.refused("setup", Retry)
    assert error.what.startswith("bringing set journal up to date: not possible in 2 tries of 50 ms")
    shop.run_all()


def test_ranges_of_an_older_package_stay_what_they_are(target_dsn: str, source_dsn: str, lifecycle: Make) -> None:
    do(source_dsn, SHOP)
    shop = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    shop.run("setup")
    journal_before(target_dsn, KEY_RANGES)
    ranges = "SELECT array_agg(row(range_no, low, high)::text ORDER BY table_id, range_no) FROM pgddl.verifications"
    do(
        target_dsn,
        "INSERT INTO pgddl.verifications (table_id, job_id, range_no, low, high)"
        " SELECT t.id, 'old', v.* FROM pgddl.tables t, (VALUES (0, NULL, '5'), (1, '5', NULL)) v",
    )
    old = one(target_dsn, ranges)
    shop.run("setup")
    assert one(target_dsn, ranges) == [text.replace("5", "{5}") for text in old]
    down = one(target_dsn, f"SELECT down FROM pgddl.migrations WHERE set_name = 'journal' AND version = {KEY_RANGES}")
    with psycopg.connect(target_dsn) as conn:
        conn.execute(down)
        assert conn.execute(ranges.encode()).fetchone() == (old,)
        conn.rollback()
        conn.execute(
            "UPDATE pgddl.verifications SET low = '{5,6}' WHERE range_no = 1 AND table_id = "
            "(SELECT min(id) FROM pgddl.tables)"
        )
        conn.execute(down)  # such a table has not been verified
        assert conn.execute("SELECT count(*), count(DISTINCT table_id) FROM pgddl.verifications").fetchone() == (2, 1)


def test_a_run_keeps_the_tags_that_were_the_default_when_it_was_set_up(
    lifecycle: Make, source_dsn: str, target_dsn: str
) -> None:
    do(source_dsn, "CREATE TABLE t (id int PRIMARY KEY)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]})
    move.run_all(until="schema_sync")
    before = {"create_tags": list(CREATE_TAGS), "drop_tags": list(DROP_TAGS)}
    do(
        target_dsn,
        "UPDATE pgddl.pipelines SET config = jsonb_set(config #- '{ddl,tags}' #- '{$origin,given}', '{ddl}',"
        f" (config #- '{{ddl,tags}}') -> 'ddl' || '{json.dumps(before)}')",
    )
    do(source_dsn, "CREATE DOMAIN d AS int; INSERT INTO t VALUES (1)")
    for stage in ("setup", "replay"):  # setup records the file anew
        move.run(stage)
    told = move.journal("SELECT status, rule FROM pgddl.ddl_events WHERE captured_id IS NOT NULL")
    assert told == [("skipped", "tag CREATE DOMAIN is not in create_tags")]
    assert differences(source_dsn, target_dsn) == []
    asked = move.refused("replay", UsageError, ddl={"tags": "all"})
    assert "ddl.tags changed since setup" in str(asked)
    move.run("replay", ddl={"tags": "pgl_ddl_deploy"})
