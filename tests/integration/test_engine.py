"""The engine's ground on real servers: sessions, migrations, leases, COPY from one server to another."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest
from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.errors import Fenced, LockHeld, PgddlError, StageFailed, Unreachable
from airflow_provider_pgddl.engine.journal import lease as leases
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.rows.transfer import copy_between, read_statement, write_statement
from airflow_provider_pgddl.engine.server.connect import PINNED, connect


def test_every_setting_is_pinned_whatever_role_and_database_say(source_dsn: str) -> None:
    with connect(source_dsn, purpose="test") as conn:
        database = conn.execute("SELECT current_database()").fetchone()[0]
        alter = sql.SQL("ALTER DATABASE {} SET {} TO {}")
        for name, value in {"DateStyle": "German, DMY", "TimeZone": "Asia/Tokyo", "search_path": "public",
                            "IntervalStyle": "iso_8601", "default_transaction_read_only": "on"}.items():  # fmt: skip
            conn.execute(alter.format(sql.Identifier(database), sql.SQL(name), sql.Literal(value)))
    with connect(source_dsn, purpose="test") as conn:
        for name, value in PINNED.items():
            assert conn.execute("SELECT current_setting(%s)", [name]).fetchone()[0] == value, name


def test_a_dead_port_is_worth_a_retry_and_a_wrong_password_is_not(source_dsn: str) -> None:
    with pytest.raises(Unreachable, match="does not answer"):
        connect("host=127.0.0.1 port=1 dbname=x", purpose="test")
    wrong = psycopg.conninfo.make_conninfo(source_dsn, password="not-the-one")
    with pytest.raises(PgddlError, match="password") as refused:
        connect(wrong, purpose="test")
    assert not refused.value.retryable
    assert "not-the-one" not in str(refused.value)


def test_sets_go_up_and_down_and_leave_nothing(target_dsn: str) -> None:
    with connect(target_dsn, purpose="test") as conn:
        for name in migrations.SETS:
            assert migrations.state(conn, name)["pending"] == [m.version for m in migrations.migrations(name)]
            assert migrations.apply(conn, name)
            assert migrations.apply(conn, name) == []
            assert migrations.state(conn, name)["pending"] == []
        for name in migrations.SETS:
            migrations.revert(conn, name)
        assert conn.execute("SELECT to_regnamespace('pgddl')").fetchone()[0] is None


def test_a_changed_migration_is_refused(target_dsn: str) -> None:
    with connect(target_dsn, purpose="test") as conn:
        migrations.apply(conn, "journal")
        conn.execute("UPDATE pgddl.migrations SET checksum = 'other' WHERE set_name = 'journal'")
        with pytest.raises(StageFailed, match="differ from this package"):
            migrations.apply(conn, "journal")
        assert migrations.state(conn, "journal")["changed"] == [m.version for m in migrations.migrations("journal")]


@pytest.fixture
def journal_dsn(target_dsn: str) -> str:
    with connect(target_dsn, purpose="test") as conn:
        migrations.apply(conn, "journal")
    return target_dsn


def test_two_runs_at_once_are_refused_and_tables_beside_each_other_are_not(
    journal_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "TAKEOVER_WAIT", 0.3)
    with Lease(journal_dsn, "shop", "replay", None) as whole:
        whole.take()
        with pytest.raises(LockHeld, match="another run of pipeline 'shop' is alive: replay on"):
            Lease(journal_dsn, "shop", "replay", None).__enter__()
        with pytest.raises(LockHeld):
            Lease(journal_dsn, "shop", "backfill", ["shop.a"]).__enter__()
        with Lease(journal_dsn, "other", "replay", None):
            pass
    with (
        Lease(journal_dsn, "shop", "backfill", ["shop.a"]) as a,
        Lease(journal_dsn, "shop", "backfill", ["shop.b"]) as b,
    ):
        a.take(), b.take()
        with connect(journal_dsn, purpose="test") as conn:
            for held, table in ((a, "shop.a"), (b, "shop.b")):
                with leases.fenced(conn, held.fence_for(table), "a test's"):
                    pass
        with pytest.raises(LockHeld):
            Lease(journal_dsn, "shop", "backfill", ["shop.b", "shop.c"]).__enter__()


def test_an_older_token_cannot_commit_and_a_takeover_waits_for_a_commit_under_way(journal_dsn: str) -> None:
    with Lease(journal_dsn, "shop", "backfill", None) as held, connect(journal_dsn, purpose="test") as zombie:
        held.take()
        zombie.execute("CREATE TABLE public.work (n int)")
        old = held.fence
        taken = threading.Event()

        def take_over() -> None:
            held.take()
            taken.set()

        with zombie.transaction():
            zombie.execute("INSERT INTO public.work VALUES (1)")
            leases.check(zombie, old)
            thread = threading.Thread(target=take_over)
            thread.start()
            _until_waiting(journal_dsn)
            assert not taken.is_set()
        thread.join(10)
        assert taken.is_set()
        with pytest.raises(Fenced), leases.fenced(zombie, old, "a test's"):
            zombie.execute("INSERT INTO public.work VALUES (2)")
        assert zombie.execute("SELECT array_agg(n) FROM public.work").fetchone()[0] == [1]


def test_runs_over_all_and_over_some_tables_take_over_from_each_other(journal_dsn: str) -> None:
    """Whose sessions are ended with that. A reset forgets all tokens, so none of them is valid behind it."""
    taken = []
    with connect(journal_dsn, purpose="test") as conn:
        for tables in (["shop.a"], None, ["shop.b"], None):
            with Lease(journal_dsn, "shop", "backfill", tables) as held:
                held.take()
                leases.check(conn, held.fence)
                taken.append(held.fence)
                for older in taken[:-1]:
                    with pytest.raises(Fenced):
                        leases.check(conn, older)
                zombies = [connect(journal_dsn, purpose="t", pipeline="shop", token=f.token) for f in taken]
                assert held.terminate_stale(conn) == len(taken) - 1
                assert zombies[-1].execute("SELECT 1").fetchone() == (1,)
                for zombie in zombies:
                    zombie.close()
        conn.execute("DELETE FROM pgddl.leases")
        for fence in taken:
            with pytest.raises(Fenced):
                leases.check(conn, fence)


def _until_waiting(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as look:
        deadline = time.monotonic() + 10
        while not look.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
            assert time.monotonic() < deadline


COPY_ALL = sql.SQL("SELECT * FROM public.t")
INTO_T = (sql.Identifier("public", "t"), sql.SQL("id, body"))


@pytest.mark.parametrize("binary", [True, False])
def test_bytes_go_from_server_to_server(source_dsn: str, target_dsn: str, binary: bool) -> None:
    with connect(source_dsn, purpose="test") as source, connect(target_dsn, purpose="test") as target:
        for conn in (source, target):
            conn.execute("CREATE TABLE public.t (id int PRIMARY KEY, body text)")
        source.execute(
            "INSERT INTO public.t SELECT i, repeat(chr(955) || E'\\t\\\\\\n', i % 3000) FROM generate_series(1, 4000) i"
        )
        source.execute("INSERT INTO public.t VALUES (0, NULL), (-1, ''), (-2, repeat('x', 5000000))")
        with source.transaction(), target.transaction():
            copied = copy_between(source, target, read_statement(COPY_ALL, binary), write_statement(*INTO_T, binary))
        query = "SELECT count(*), sum(hashtextextended(t::text, 0)::numeric) FROM public.t"
        assert source.execute(query).fetchone() == target.execute(query).fetchone()
        assert copied.rows == 4003
        assert copied.bytes > 10_000_000


def test_an_error_of_either_side_leaves_both_sessions_usable(source_dsn: str, target_dsn: str) -> None:
    with connect(source_dsn, purpose="test") as source, connect(target_dsn, purpose="test") as target:
        for conn in (source, target):
            conn.execute("CREATE TABLE public.t (id int, body text)")
        source.execute("INSERT INTO public.t SELECT i, repeat('x', 100) FROM generate_series(1, 100000) i")
        write = write_statement(*INTO_T, True)
        fails_late = sql.SQL("SELECT 1 / (90000 - id), body FROM public.t")
        with pytest.raises(pg.DivisionByZero), target.transaction(), source.transaction():
            copy_between(source, target, read_statement(fails_late, True), write)
        assert target.execute("SELECT count(*) FROM public.t").fetchone()[0] == 0
        target.execute("ALTER TABLE public.t ADD CHECK (id < 50000)")
        with pytest.raises(pg.CheckViolation), target.transaction(), source.transaction():
            copy_between(source, target, read_statement(COPY_ALL, True), write)
        with pytest.raises(pg.UndefinedTable), target.transaction(), source.transaction():
            copy_between(source, target, read_statement(sql.SQL("SELECT * FROM public.nowhere"), True), write)
        target.execute("ALTER TABLE public.t DROP CONSTRAINT t_id_check")
        with target.transaction(), source.transaction():
            assert copy_between(source, target, read_statement(COPY_ALL, True), write).rows == 100000


def test_what_is_too_large_for_copy_is_said_of_a_row(source_dsn: str, target_dsn: str) -> None:
    """A bytea of half a gigabyte is one of a whole one as text."""
    with connect(source_dsn, purpose="test") as source, connect(target_dsn, purpose="test") as target:
        for conn in (source, target):
            conn.execute("CREATE TABLE public.t (id int, body text)")
        large = sql.SQL("SELECT 1, pg_catalog.convert_to(pg_catalog.repeat('0123456789', 54000000), 'UTF8')")
        with pytest.raises(pg.ProgramLimitExceeded, match="takes more than 1 GB"), target.transaction():
            copy_between(source, target, read_statement(large, False), write_statement(*INTO_T, False))


def test_a_lost_target_ends_the_copy_with_an_error(source_dsn: str, target_dsn: str) -> None:
    with connect(source_dsn, purpose="test") as source, connect(target_dsn, purpose="test") as target:
        target.execute("CREATE TABLE public.t (id int, body text)")
        endless = sql.SQL("SELECT generate_series(1, 100000000), repeat('x', 1000)")

        def end_it() -> None:
            with psycopg.connect(target_dsn, autocommit=True) as other:
                while not other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_progress_copy WHERE tuples_processed > 10000"
                ).fetchone():
                    pass

        thread = threading.Thread(target=end_it)
        thread.start()
        with pytest.raises(psycopg.OperationalError):
            copy_between(source, target, read_statement(endless, True), write_statement(*INTO_T, True))
        thread.join()
        assert source.execute("SELECT 1").fetchone() == (1,)
