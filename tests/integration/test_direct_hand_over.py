"""capture.rows: direct_trigger. The hand-over to the copy's own writers, what it waits for, who dies at it, and DDL
that takes it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.capture import direct_function
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.following import direct_trigger
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.server.connect import Session
from tests.integration.faults import Faults, until_done
from tests.integration.handed_over import ALTER, ITEMS, UNTAKEN, brings_it, differing, handed_over, logged, mode
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.sessions import Underway, in_transaction, one, wait_for
from tests.table_writers import TableWriters

DDL = {
    "a new column": "ALTER TABLE public.items ADD COLUMN extra int DEFAULT 3",
    "names that change places": "ALTER TABLE public.items RENAME u TO was; ALTER TABLE public.items RENAME no TO u;"
    "ALTER TABLE public.items RENAME was TO no",
    "another type": "ALTER TABLE public.items ALTER COLUMN wide TYPE bigint",
    "nothing of the columns": "ALTER TABLE public.items SET (fillfactor = 90)",
}


@pytest.mark.parametrize("what", DDL)
def test_ddl_switches_back_in_the_same_transaction(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, what: str
) -> None:
    move = handed_over(lifecycle, source_dsn)
    execute(source_dsn, f"{DDL[what]}; UPDATE public.items SET note = 'behind' WHERE id = 1")
    assert mode(move) == "left"
    assert len(logged(move)) == 1
    execute(source_dsn, "UPDATE public.items SET note = 'later' WHERE id = 2")
    assert len(logged(move)) == 2
    with in_transaction(source_dsn, "ALTER TABLE public.items ADD COLUMN gone int") as conn:
        conn.rollback()
    assert not move.run("replay").blocked
    assert mode(move) == "direct"
    execute(source_dsn, "UPDATE public.items SET note = 'direct' WHERE id = 3")
    assert logged(move) == []
    move.run_all(after="replay", until="swap")
    assert one(source_dsn, "SELECT string_agg(note, ' ' ORDER BY id) FROM public.items WHERE id <= 3") == (
        "BEHIND LATER DIRECT"
    )


def test_ddl_that_is_rolled_back_leaves_the_trigger_direct(
    lifecycle: Callable[..., Lifecycle], source_dsn: str
) -> None:
    move = handed_over(lifecycle, source_dsn)
    with in_transaction(source_dsn, "ALTER TABLE public.items ADD COLUMN gone int") as conn:
        conn.rollback()
    execute(source_dsn, "UPDATE public.items SET note = 'x' WHERE id = 1")
    assert (mode(move), logged(move), differing(move)) == ("direct", [], [])


@pytest.mark.parametrize("skipped", [True, False], ids=["skipped", "off"])
def test_ddl_that_nobody_captures_is_noticed_by_the_trigger_itself(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, skipped: bool
) -> None:
    """Names that changed places would put each value into the other's column."""
    move = handed_over(lifecycle, source_dsn, **({} if skipped else {"capture": {"ddl": "off"}}))
    places = DDL["names that change places"]
    execute(source_dsn, ("SET LOCAL pgddl.skip = on;" if skipped else "") + places)
    assert mode(move) == "direct"
    execute(
        source_dsn,
        "UPDATE public.items SET note = 'x' WHERE id = 1; INSERT INTO public.items (id, no) VALUES (101, 101)",
    )
    assert len(logged(move)) == 2
    assert differing(move, "SELECT 100", "SELECT count(*)::int FROM pgddl_copy_public.items") == []


def test_the_hand_over_waits_for_every_writer(lifecycle: Callable[..., Lifecycle], source_dsn: str) -> None:
    """One that began before it has written to the log, whose last rows are drained under the lock."""
    execute(source_dsn, ITEMS)
    move = lifecycle(
        source_dsn, rewrite={"public.items": {"alter": ALTER}}, capture={"rows": "direct_trigger"},
        swap={"retries": 2000},
    )  # fmt: skip
    move.run_all(until="backfill")
    tried = "SELECT state <> 'idle' FROM pg_stat_activity WHERE query LIKE 'LOCK TABLE%%SHARE ROW EXCLUSIVE%%'"
    with in_transaction(
        source_dsn, "UPDATE public.items SET u = u + 1000", "DELETE FROM public.items WHERE id = 1"
    ) as conn, Underway(lambda: move.run("schema_sync")) as stage:  # fmt: skip
        wait_for(lambda: move.on_source(tried), stage)
        assert mode(move) == "log"
        conn.commit()
        stage.finish()
    assert (mode(move), logged(move), differing(move)) == ("direct", [], [])


def test_a_run_that_dies_while_it_hands_over_has_lost_nothing(
    lifecycle: Callable[..., Lifecycle], source_dsn: str
) -> None:
    execute(source_dsn, ITEMS)
    move = lifecycle(source_dsn, rewrite={"public.items": {"alter": ALTER}}, capture={"rows": "direct_trigger"},
                     swap={"retries": 2000})  # fmt: skip
    move.run_all(until="backfill")
    killed = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE query LIKE 'LOCK TABLE%%SHARE ROW EXCLUSIVE%%' AND application_name LIKE 'pgddl:%%'"
        " AND datname = current_database() AND pid <> pg_backend_pid()"
    )
    with in_transaction(source_dsn, "UPDATE public.items SET u = u + 1000") as conn:
        with Underway(lambda: move.run("schema_sync")) as stage:
            wait_for(lambda: move.on_source(killed))
            assert stage.fails(PgddlError).retryable
        conn.commit()
    assert mode(move) == "log"
    brings_it(move)


@pytest.mark.parametrize("moment", ["before its commit", "behind its commit", "taken back"])
def test_a_server_that_crashes_at_the_hand_over_has_lost_nothing(
    pg16: Cluster, lifecycle: Callable[..., Lifecycle], source_dsn: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    execute(source_dsn, ITEMS)
    move = lifecycle(source_dsn, rewrite={"public.items": {"alter": ALTER}}, capture={"rows": "direct_trigger"},
                     swap={"retries": 500})  # fmt: skip
    move.run_all(until="schema_sync" if moment == "taken back" else "backfill")
    crashes: list[str] = []

    def crashing(work: Callable[..., None]) -> Callable[..., None]:
        def crash(*args: Any) -> None:
            work(*args)
            if not crashes:
                crashes.append(moment)
                pg16.restart("immediate")

        return crash

    module, name = {
        "before its commit": (direct_function, "write_to_copy"),
        "behind its commit": (direct_trigger, "_hand_over"),
        "taken back": (direct_function, "write_to_log"),
    }[moment]
    monkeypatch.setattr(module, name, crashing(getattr(module, name)))
    writers = TableWriters([source_dsn], [("public", "items")], truncate=[("public", "items")], rate=60, threads=2,
                           tolerate_lost=True)  # fmt: skip
    print(f"seed {writers.seed}")
    stage = "replay" if moment == "taken back" else "schema_sync"
    with writers:
        wait_until(lambda: writers.notes.committed.total() > 20)
        if moment == "taken back":
            execute(source_dsn, UNTAKEN["more rows than go"].replace("200, 300", "900000, 900100"))
        until_done(move, stage, Faults(0, one_in=float("inf")))
        before = writers.notes.committed.total()
        wait_until(lambda: crashes and writers.notes.committed.total() > before + 20)
    assert writers.notes.failures == []
    brings_it(move)
    move.run_all(after="replay", until="swap")


def test_a_table_that_never_has_a_quiet_moment_keeps_its_log(
    lifecycle: Callable[..., Lifecycle], source_dsn: str
) -> None:
    execute(source_dsn, ITEMS)
    move = lifecycle(source_dsn, rewrite={"public.items": {"alter": ALTER}}, capture={"rows": "direct_trigger"},
                     swap={"retries": 2, "lock_timeout": "10ms"})  # fmt: skip
    move.run_all(until="backfill")
    with in_transaction(source_dsn, "UPDATE public.items SET u = u + 1000") as conn:
        assert not move.run("schema_sync").blocked
        assert mode(move) == "log"
        conn.commit()
    brings_it(move)


def test_a_table_whose_keys_still_wait_keeps_its_log(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of a key is one row of the log and two keys. A writer may bring a row of one that waits to the copy."""
    keep_out, tables = direct_trigger._keep_writers_out, list[str]()

    def at_the_first(context: Context, conn: Session, table: TableRow) -> None:
        if not tables:
            execute(source_dsn, "UPDATE public.items SET id = id - 1000 WHERE id <= 10")
        tables.append(table.qualified)
        keep_out(context, conn, table)

    monkeypatch.setattr(direct_trigger, "_keep_writers_out", at_the_first)
    execute(source_dsn, ITEMS)
    capture, replay = {"rows": "direct_trigger"}, {"window_rows": 10}
    move = lifecycle(source_dsn, rewrite={"public.items": {"alter": ALTER}}, capture=capture, replay=replay)
    move.run_all(until="schema_sync")
    assert tables
    execute(source_dsn, "INSERT INTO public.items (id, u) SELECT i, i + 5000 FROM generate_series(1, 10) i")
    brings_it(move)


def test_constraints_that_are_checked_late_keep_the_log(lifecycle: Callable[..., Lifecycle], source_dsn: str) -> None:
    execute(source_dsn, ITEMS + "ALTER TABLE public.items ADD UNIQUE (no) DEFERRABLE INITIALLY DEFERRED")
    move = lifecycle(source_dsn, rewrite={"public.items": {"alter": ALTER}}, capture={"rows": "direct_trigger"})
    move.run_all(until="replay")
    assert mode(move) == "log"
    execute(source_dsn, "UPDATE public.items SET note = 'x'")
    move.run_all(after="replay")
