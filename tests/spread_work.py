"""What stages spread over Spark's workers: a pipeline that comes to each of these functions, and the end of a worker
right behind a commit. A module of its own, because workers import it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from airflow_provider_pgddl.engine.apply.index_build import build
from airflow_provider_pgddl.engine.rows.chunks import copy_chunks
from airflow_provider_pgddl.engine.rows.fill import fill_part
from airflow_provider_pgddl.engine.rows.timed_comparison import compare_part
from tests.integration.lifecycle import Lifecycle, execute

# Two tables that are large beside a chunk, and one that is not.
TABLES = """
CREATE TABLE public.a (id int PRIMARY KEY, n int NOT NULL, v text);
CREATE TABLE public.b (id int PRIMARY KEY, n int NOT NULL, v text);
CREATE TABLE public.c (id int PRIMARY KEY, n int UNIQUE);
INSERT INTO public.a SELECT i, i, repeat('a', 100) FROM generate_series(1, 9000) i;
INSERT INTO public.b SELECT i, i, repeat('b', 100) FROM generate_series(1, 9000) i;
INSERT INTO public.c SELECT i, i FROM generate_series(1, 9) i;
CREATE UNIQUE INDEX a_n ON public.a (n);
CREATE INDEX b_n ON public.b (n);
ALTER TABLE public.b ADD CONSTRAINT positive CHECK (n > 0);
"""
NAMES = [("public", name) for name in "abc"]
SETTINGS: dict[str, Any] = {
    "tables": {"include": ["public.*"]},
    "replay": {"window_rows": 2000},
    "spark": {"begin": "at_once"},
}


@dataclass(frozen=True, slots=True)
class Spread:
    """`purpose` is that of the session in which the function's work is; `progress`, on the target, counts what it has
    committed, of which there are `least` after its first commit; `state` is what a second call must leave alone."""

    work: Callable[[Any], Any]
    stage: str
    before: str
    purpose: str
    progress: str
    least: int
    state: str


_APPLIED = "FROM pgddl.ddl_events WHERE phase = 'index' AND status = 'applied'"
SPREAD = [
    Spread(
        copy_chunks, "backfill", "snapshot", "copy", "SELECT count(done_at) FROM pgddl.chunks", 1,
        "SELECT array_agg(ROW(id, rows, done_at, xmin) ORDER BY id)::text FROM pgddl.chunks",
    ),
    Spread(
        build, "schema_sync", "backfill", "build", f"SELECT count(*) {_APPLIED}", 1,
        f"SELECT array_agg(ROW(id, xmin) ORDER BY id)::text {_APPLIED}"
    ),
    # Each key is pending, or its row is there: never both, never neither.
    Spread(
        fill_part, "replay", "schema_sync", "fill", "SELECT count(*) FROM public.a", 1,
        "SELECT count(*)::text FROM (SELECT id FROM public.a UNION ALL SELECT k1 FROM {pending}) x",
    ),
    Spread(compare_part, "verify", "replay", "verify", "SELECT 1", 1, "SELECT sum(n)::text FROM public.a"),
]  # fmt: skip


def come_to(move: Lifecycle, spread: Spread) -> None:
    """Up to the stage that spreads it, with as much to do as makes it spread; without Spark so far."""
    execute(move.source, TABLES)
    workers = {"chunk_bytes": "64kB", "workers": 1}
    move.content.update(SETTINGS, backfill=workers)
    move.run_all(until="snapshot")
    if spread.before != "snapshot":
        move.run("backfill")
        execute(move.source, "UPDATE public.a SET n = -n; UPDATE public.c SET n = n + 100")
    if spread.before in ("schema_sync", "replay"):
        move.run("schema_sync")
    if spread.before == "replay":
        move.run("replay")
    workers["workers"] = 2


def finish(move: Lifecycle) -> None:
    """The other stages, without Spark."""
    move.content["backfill"]["workers"] = 1
    for stage in ("backfill", "schema_sync", "replay", "verify"):
        assert not move.run(stage).blocked


def state_of(move: Lifecycle, spread: Spread) -> str:
    query = "SELECT 'pgddl.pending_' || id FROM pgddl.tables WHERE table_name = 'a'"
    ((pending,),) = move.journal(query)
    ((state,),) = move.journal(spread.state.replace("{pending}", pending))
    return str(state)


@dataclass(frozen=True, slots=True)
class Killed:
    """Once: kill -9 of the process that was the first to commit in a session with this purpose. `mark` is a file that
    keeps what it had committed by then."""

    purpose: str
    progress: str
    dsn: str
    mark: str

    def strike(self) -> None:
        try:
            mark = Path(self.mark).open("x")  # noqa: SIM115 - nobody closes it
        except FileExistsError:
            return
        with psycopg.connect(self.dsn) as conn:
            found = conn.execute(self.progress.encode()).fetchone()
        mark.write(str(found[0] if found else None))
        mark.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def killed_after_commit(work: Callable[[Any], Any], killed: Killed, part: Any) -> Any:
    """`work` of a part, in a process that does not live on behind its first commit."""
    leave = psycopg.Transaction.__exit__

    def leave_and_die(self: Any, kind: Any, error: Any, trace: Any) -> Any:
        over = leave(self, kind, error, trace)
        info = self.connection.info
        at_work = (info.parameter_status("application_name") or "").endswith(f":{killed.purpose}")
        if kind is None and at_work and info.transaction_status == TransactionStatus.IDLE:
            killed.strike()
        return over

    psycopg.Transaction.__exit__ = leave_and_die  # type: ignore[method-assign]
    try:
        return work(part)
    finally:
        psycopg.Transaction.__exit__ = leave  # type: ignore[method-assign]
