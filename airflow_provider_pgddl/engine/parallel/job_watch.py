"""Watches one job of Spark's: nobody else says of it that nothing goes on, or that it is in somebody's way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

from airflow_provider_pgddl.engine.parallel import executor_slots
from airflow_provider_pgddl.engine.parallel.executor_settings import Settings
from airflow_provider_pgddl.engine.parallel.spark_settings import is_local

LOOK_EVERY = 0.5  # seconds
# Seconds in which workers see by themselves that somebody waits, and bring what they have done.
ANSWER_WITHIN = 2.0
SAY_AFTER, SAY_AGAIN = 15.0, 30.0  # seconds without an executor after which it is said, and said again after


class JobWatch:
    """Watches the job that is started in the block. Cancels it where `spread` gives it up, and where there has been no
    executor for longer than the settings allow; says so before."""

    def __init__(
        self,
        context: Any,
        begin_within: float | None,
        settings: Settings,
        needed: Callable[[], bool],
        gives_way: Callable[[], bool],
        within: float | None,
    ):
        self._context, self._begin_within, self._settings = context, begin_within, settings
        self._needed, self._gives_way, self._within = needed, gives_way, within
        self._local = is_local(context.master)
        self._group = f"pgddl-{uuid4()}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="pgddl-spark", daemon=True)
        self.not_needed = False
        self.given_up = self.lost = ""

    def __enter__(self) -> None:
        self._context.setJobGroup(self._group, "")
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        with suppress(Exception):  # the JVM may be gone
            self._context.setLocalProperty("spark.jobGroup.id", None)

    def _look(self) -> None:
        with suppress(Exception):  # whatever becomes of the job, its own call says it
            began = there = time.monotonic()
            say_at, to_begin, since = SAY_AFTER, self._begin_within, None
            while not self._over.wait(LOOK_EVERY):
                now = time.monotonic()
                late = to_begin is not None and now - began >= to_begin
                if self._gives_way():
                    since = since or now
                if since is not None and now - since >= ANSWER_WITHIN:
                    self.given_up = "somebody waits for a table that Spark's workers read"
                elif late and not self._begun():
                    self.given_up = f"Spark had no core free within {to_begin:.0f} s"
                elif self._within is not None and now - began >= self._within:
                    self.given_up = f"Spark was not done within {self._within:.0f} s"
                if self.given_up:
                    self._context.cancelJobGroup(self._group)
                    return
                to_begin = None if late else to_begin
                if self._local:
                    continue
                if executor_slots.slots(self._context):
                    there, say_at = now, SAY_AFTER
                elif not self._needed():
                    self.not_needed = True
                    self._context.cancelJobGroup(self._group)
                    return
                elif now - there >= self._settings.wait:
                    self.lost = executor_slots.missing(self._context)
                    self._context.cancelJobGroup(self._group)
                    return
                elif now - there >= say_at:
                    say_at += SAY_AGAIN
                    what = "waiting for Spark's executors" if there == began else "Spark has lost its executors"
                    self._settings.say(f"{what}, {now - there:.0f} s so far: {executor_slots.missing(self._context)}")

    def _begun(self) -> bool:
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return any(s.numActiveTasks + s.numCompletedTasks + s.numFailedTasks > 0 for s in stages if s)
