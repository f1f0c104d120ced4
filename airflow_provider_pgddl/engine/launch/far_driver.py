"""A driver that a cluster runs elsewhere: how it is seen to be alive, says its outcome, and is stopped.

All of it goes through the database of the journal, and takes no journal there: setup may be refused before there is
one. The driver keeps a session that has its job's name for as long as it lives. Postgres ends that session with the
process, so no heartbeat can be old; whoever ends it stops the driver, which takes the right to; and what is said over
it (NOTIFY) bears its process number, which nobody else can. Every role of the database may listen, and sees what
sessions are called: the channels have names that only those who have the job know."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Literal, Self

import psycopg
from psycopg import Notify
from psycopg.sql import SQL, Identifier

from airflow_provider_pgddl.engine.errors import EXIT_BLOCKED, EXIT_DONE, PgddlError, Unreachable
from airflow_provider_pgddl.engine.job.executor_dsns import for_executors
from airflow_provider_pgddl.engine.job.file import End, Job, Outcome
from airflow_provider_pgddl.engine.journal.stage_runs import stage_result
from airflow_provider_pgddl.engine.parallel.executor_settings import Settings
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("drivers")

LOOK_EVERY = 1.0  # seconds
HEARD_WITHIN = 30.0  # seconds for which a driver says its outcome again and again, until somebody has heard it
SAY_AGAIN = 2.0
OUT_OF_SIGHT = 120.0  # seconds without an answer of the database after which nobody waits on
BEGUN = "begun"
PIECE = 7_000  # bytes; a notification holds less than 8,000

NEVER_SEEN = (
    "no driver has come as far as the journal's database; spark-submit has said why the application ended, or the "
    "driver's log has it, which is with the cluster"
)
VANISHED = (
    "the driver has ended without an outcome: it was killed, or its machine is lost; what it had committed stays, and "
    "the next run goes on from there"
)


def elsewhere(job: Job, found: Mapping[End, str]) -> Job:
    """The job as it travels to a driver elsewhere, known by what it is to do: whoever begins the same again finds that
    driver. UsageError for a connection string with a secret for which a password file has no place."""
    ends: dict[str, str] = {side: for_executors(job.pipeline, side, dsn) for side, dsn in found.items()}
    job = replace(job, watch=None, secrets={}, ends=ends)
    said = {key: value for key, value in job.to_json().items() if key not in ("id", "format", "ends")}
    if "setup" not in job.stages:  # which alone takes the file up; it may have changed since, or a package's defaults
        said["pipeline"] = job.pipeline.pipeline
    digest = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()
    return replace(job, known_as=digest)


def at_work(dsn: str, job: Job) -> Job | None:
    """The job of a driver that is alive and does what `job` is about, or what is left of it; None where there is
    none."""
    with connect(dsn, purpose="follow", pipeline=job.pipeline.pipeline) as conn:
        found = conn.execute(_Q["at_work"], [f"{_shown(job)}:"]).fetchone()
    if found is None:
        return None
    _, _, job_id, stages = found[1].split(":")
    return replace(job.without_first(len(job.stages) - int(stages)), id=job_id)


def _shown(job: Job) -> str:
    """What anybody may see of what it is to do."""
    return f"pgddl-driver:{str(job.known_as)[:12]}"


def _name(job: Job) -> str:
    return f"{_shown(job)}:{job.id}:{len(job.stages)}"


def channel(job: Job, what: Literal["outcome", "heard"]) -> str:
    """On which it is said."""
    return "pgddl_" + hashlib.sha256(f"{job.known_as}:{job.id}:{what}".encode()).hexdigest()[:32]


def _listen(conn: Session, name: str) -> None:
    conn.execute(SQL("LISTEN {}").format(Identifier(name)))


def begin_at_once(pipeline: Pipeline, master: str | None, say: Callable[[str], None]) -> None:
    """Starts Spark where the cluster ends an application that has not done so within 100 s, as YARN does
    (spark.yarn.am.waitTime), or that ends without having done so. Executors are not waited for."""
    if master is None or not master.startswith("yarn"):
        return
    from airflow_provider_pgddl.engine.parallel.spark import begin

    told = pipeline.spark
    begin(f"pgddl {pipeline.pipeline}", pipeline.backfill.workers, Settings(told.wait, told.needs, say))


class Announced:
    """Of the driver: its session, whose end ends it."""

    def __init__(self, job: Job) -> None:
        self._outcome, self._heard = channel(job, "outcome"), channel(job, "heard")
        self._conn = connect(job.conninfo("target"), purpose="driver", pipeline=job.pipeline.pipeline)
        _listen(self._conn, self._heard)
        self._conn.execute(_Q["announce"], [_name(job)])
        self._conn.execute(_Q["say"], [self._outcome, BEGUN])  # or one that dies at once would seem never to have been
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pgddl-driver", daemon=True)
        self._thread.start()

    def end(self, outcome: Outcome) -> None:
        """Says it until somebody has heard it, or nobody seems to be there."""
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        text = json.dumps(outcome.to_json())
        pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
        deadline = time.monotonic() + HEARD_WITHIN
        with suppress(psycopg.Error), self._conn:
            while time.monotonic() < deadline:
                for number, piece in enumerate(pieces):
                    self._conn.execute(_Q["say"], [self._outcome, f"{number}/{len(pieces)}:{piece}"])
                if list(self._conn.notifies(timeout=SAY_AGAIN, stop_after=1)):
                    return

    def _watch(self) -> None:
        while not self._over.wait(LOOK_EVERY):
            try:
                self._conn.execute("SELECT 1")
            except psycopg.Error:
                break
        else:
            return
        os.kill(os.getpid(), signal.SIGTERM)


class Followed:
    """Of who has it done: hears the driver of a job out, from before it is submitted."""

    def __init__(self, dsn: str, job: Job) -> None:
        self._dsn, self._job = dsn, job
        self.outcome: Outcome | None = None
        self.seen = False
        self._alive = False
        self._pieces = dict[int, dict[int, str]]()
        self._looks, self._looked_at = 0, time.monotonic()
        self._over = threading.Event()
        self._conn: Session | None = self._listening()
        self._thread = threading.Thread(target=self._follow, name="pgddl-follow", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._conn is not None:
            self._conn.close()

    def settle(self) -> Outcome | None:
        """The outcome, once the driver has said it or is gone, in which case the journal may still know it; None where
        it came to none. Unreachable where the database has not answered for too long: the driver may be alive."""
        begun = self._looks
        while self.outcome is None:
            if self._looks > begun + 1 and not self._alive:
                return self._recorded()
            if time.monotonic() - self._looked_at > OUT_OF_SIGHT:
                raise Unreachable(
                    f"the journal's database has not answered for {OUT_OF_SIGHT:.0f} s, and whether the driver is "
                    "alive is not known",
                    todo="run the stage again: it finds the driver, if it is",
                )
            self._over.wait(LOOK_EVERY / 5)
        return self.outcome

    def stop(self) -> None:
        """Ends the driver, if it has begun: its session ends at once, and it follows as if it had got SIGTERM."""
        with suppress(psycopg.Error, PgddlError), connect(self._dsn, purpose="follow") as conn:
            conn.execute(_Q["stop"], [_name(self._job)])

    def _listening(self) -> Session:
        conn = connect(self._dsn, purpose="follow", pipeline=self._job.pipeline.pipeline)
        conn.add_notify_handler(self._take)
        _listen(conn, channel(self._job, "outcome"))
        return conn

    def _follow(self) -> None:
        while not self._over.wait(LOOK_EVERY):
            try:
                self._conn = self._conn or self._listening()
                self._look(self._conn)
            except (psycopg.Error, PgddlError):  # the driver says it again, so another session will do
                if self._conn is not None:
                    self._conn.close()
                self._conn = None

    def _look(self, conn: Session) -> None:
        alive = [pid for pid, _ in conn.execute(_Q["at_work"], [_name(self._job)])]
        for pid in alive:
            pieces = self._pieces.get(pid, {})
            if pieces and len(pieces) == pieces_of(pieces):
                content = json.loads("".join(pieces[number].partition(":")[2] for number in sorted(pieces)))
                self.outcome = Outcome(content["exit_code"], content["result"], content["error"])
                conn.execute(_Q["say"], [channel(self._job, "heard"), ""])
        self.seen = self.seen or bool(alive)
        self._alive = bool(alive)
        self._looks, self._looked_at = self._looks + 1, time.monotonic()

    def _take(self, told: Notify) -> None:
        self.seen = True
        number, _, _ = told.payload.partition("/")
        if number.isdigit():
            self._pieces.setdefault(told.pid, {})[int(number)] = told.payload

    def _recorded(self) -> Outcome | None:
        """What the journal has of each of its stages, where it has all."""
        if self.outcome is not None:
            return self.outcome
        with connect(self._dsn, purpose="follow", pipeline=self._job.pipeline.pipeline) as conn:
            known = conn.execute("SELECT pg_catalog.to_regclass('pgddl.stage_runs') IS NOT NULL").fetchone()
            if known != (True,):
                return None
            found = [stage_result(conn, one.id) for one in self._job.each()]
        results = [result for result in found if result is not None]
        if len(results) < len(found):
            return None
        several = {"pipeline": self._job.pipeline.pipeline, "stages": results}
        blocked = bool(results[-1]["blocked"])
        return Outcome(EXIT_BLOCKED if blocked else EXIT_DONE, several if self._job.then else results[0], None)


def pieces_of(pieces: dict[int, str]) -> int:
    """How many there are in all, as each of them says."""
    return int(next(iter(pieces.values())).partition(":")[0].partition("/")[2])
