"""Threads of the driver begin at once; Spark takes over what is left of a stage where that is worth its start.

Both work through the same ledger, so whoever begins next finds what is not done yet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.parallel.part_results import Threads

R = TypeVar("R")

START = 6.0  # seconds that a SparkSession and its workers take
STARTS = 3  # such times, from which on what is left is worth one
MEASURED = 2.0  # seconds from which on a rate is believed
LOOK_EVERY = 2.0


def pays(context: Context, seconds_left: float) -> bool:
    """Whether Spark is to do what the driver would be done with in so many seconds."""
    return context.pipeline.spark.begin == "at_once" or seconds_left > STARTS * START


def time_left(done: float, seconds: float, to_do: float) -> float:
    """The seconds that `to_do` takes at the rate at which as much as `done` took `seconds`; 0 while that is not known:
    something that has not come to a first result is known to take longer than it did so far."""
    if seconds < MEASURED or to_do <= 0:
        return 0.0
    return to_do * seconds / done if done else seconds


def take_over(
    context: Context,
    app: str,
    workers: int,
    begin: Callable[[threading.Event], Threads[Any, R]],
    seconds_left: Callable[[], float],
) -> tuple[Threads[Any, R] | None, int]:
    """Threads that have ended, and how many parts Spark can take beside each other now; 0 where they have done it all.

    `begin` starts threads that take no more of the work once the event is set; `seconds_left` says what they are still
    going to take, by the rate so far. The threads go on while Spark starts. None where the driver is to do nothing."""
    if context.pipeline.spark.begin == "at_once":
        return None, start_spark(context, app, workers)
    stop, slots = threading.Event(), 0
    threads = begin(stop)
    while not threads.over(LOOK_EVERY):
        if not slots and seconds_left() > STARTS * START:
            try:
                slots = start_spark(context, app, workers, needed=lambda: not threads.over(0))
            except PgddlError:
                stop.set()
                threads.over()
                raise
            stop.set()
    return threads, slots


def start_spark(context: Context, app: str, workers: int, needed: Callable[[], bool] = lambda: True) -> int:
    """How many parts can run beside each other there, at most `workers`; 0 where it is not `needed` any more."""
    from airflow_provider_pgddl.engine.parallel.spark import NotNeeded, start

    if app not in context.said_to_wait:
        context.said_to_wait.add(app)
        context.say("waiting for Spark's workers")
    try:
        return start(app, workers=workers, settings=context.spark, needed=needed)
    except NotNeeded:
        return 0
