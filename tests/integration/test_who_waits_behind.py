"""The question who waits behind a session (C17), which each worker asks five times a second on the source."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.sql import queries
from tests.integration.sessions import Underway, do, in_transaction, wait_for, waits

ASKED = queries("catalog")["waiting_behind"]


@pytest.fixture
def plain(pg16: Cluster, source_dsn: str) -> Iterator[str]:
    """A role that sees nothing of other roles' sessions."""
    name = f"plain_{os.getpid()}"
    do(source_dsn, f"CREATE ROLE {name} LOGIN PASSWORD '{pg16.password}'")
    yield make_conninfo(**{**conninfo_to_dict(source_dsn), "user": name})
    do(source_dsn, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_whoever_waits_is_seen_by_any_role_and_locks_are_read_only_where_somebody_does(
    source_dsn: str, plain: str
) -> None:
    do(source_dsn, "CREATE TABLE public.t (id int)", "GRANT SELECT ON public.t TO PUBLIC")
    with (
        in_transaction(plain, "LOCK TABLE public.t IN ACCESS SHARE MODE") as holder,
        connect(source_dsn, purpose="watch") as admin,
        connect(plain, purpose="watch") as watcher,
    ):
        me = [holder.info.backend_pid]
        assert [one.execute(ASKED, me).fetchone() for one in (admin, watcher)] == [None, None]
        assert not reads_locks(admin, me)
        alter = Underway(lambda: do(source_dsn, "ALTER TABLE public.t ADD COLUMN v text"))
        with alter:
            wait_for(lambda: waits(source_dsn, "AccessExclusiveLock", "public.t"), alter)
            for session in (admin, watcher):
                wait_for(lambda asking=session: asking.execute(ASKED, me).fetchone(), alter)  # type: ignore[misc]
            row = admin.execute(ASKED, me).fetchone()
            assert row is not None and row[2] == "ALTER TABLE public.t ADD COLUMN v text"
            assert reads_locks(admin, me)
            assert admin.execute(ASKED, [watcher.info.backend_pid]).fetchone() is None  # nobody waits for that one
            holder.rollback()


def reads_locks(conn: psycopg.Connection[object], args: list[int]) -> bool:
    """Whether the server copies its locks for the question."""
    with psycopg.ClientCursor(conn) as cursor:
        cursor.execute(b"EXPLAIN (ANALYZE, FORMAT json) " + ASKED.encode(), args)
        (plan,) = cursor.fetchone() or ("[]",)
    found = [n for n in nodes((plan if isinstance(plan, list) else json.loads(plan))[0]["Plan"])
             if n.get("Function Name") == "pg_lock_status"]  # fmt: skip
    assert len(found) == 1
    return bool(found[0]["Actual Loops"] > 0)


def nodes(plan: dict[str, object]) -> Iterator[dict[str, object]]:
    yield plan
    for child in plan.get("Plans", ()):  # type: ignore[attr-defined]
        yield from nodes(child)
