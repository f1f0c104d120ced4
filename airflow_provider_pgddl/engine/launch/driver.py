"""An application's life: it runs the job of a file, can be stopped, and leaves its outcome."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol, TextIO

import psycopg

from airflow_provider_pgddl.engine.errors import (
    EXIT_BLOCKED,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_RETRY,
    PgddlError,
    Stopped,
    UsageError,
    from_postgres,
)
from airflow_provider_pgddl.engine.job.file import Job, Outcome, Watched, read, write_private
from airflow_provider_pgddl.engine.job.stage_names import CHANGES_LIVE_TABLES
from airflow_provider_pgddl.engine.launch.far_driver import Announced, begin_at_once
from airflow_provider_pgddl.engine.progress import say
from airflow_provider_pgddl.engine.secrets_in_text import without_secrets
from airflow_provider_pgddl.engine.server import credentials

# Once nobody waits for the result, this long for cancelling queries in an orderly way; then the process ends.
LAST_WORDS = 3.0
# Whoever was told to stop, and still runs after this long, is ended as by kill -9, which every stage stands.
STOPPED_WITHIN = 20.0


class Result(Protocol):
    """What a job leaves, such as a StageResult."""

    @property
    def exit_code(self) -> int: ...

    def to_json(self) -> dict[str, Any]: ...


def main(stage: str, argv: Sequence[str], work: Callable[[Job], Result] | None = None) -> int:
    """Run the job of the file that `argv` names, or do `work` with it; the exit code is that of `engine.errors`.

    A user's mistake or a server's error is a message; only a bug of ours shows a stack trace.
    """
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        # Behind spark-submit stdout is a pipe: without this, progress arrives when everything is over.
        reconfigure(line_buffering=True)
    if len(argv) != 1:
        print(f"usage: spark-submit {stage}.py JOBFILE", file=sys.stderr)
        return UsageError.exit_code
    try:
        job = read(argv[0])
        if job.stage != stage:
            raise UsageError(f"the job file is for the stage {job.stage}, not for {stage}")
    except PgddlError as error:
        print(f"pgddl: {error}", file=sys.stderr)
        return error.exit_code
    under_way = _UnderWay(job)
    try:
        with _stoppable(partial(_leave, under_way)) as told, _watching(job.watch):
            if job.known_as is not None:
                under_way.announced = Announced(job)
            outcome = _run_each(under_way, work, told)
    except KeyboardInterrupt:
        outcome = under_way.ended(_stopped(under_way.job))
    except PgddlError as error:  # of a driver that does not reach the journal's database, so that only its log has it
        outcome = _failed(job, error)
    under_way.record(outcome)
    return outcome.exit_code


class _UnderWay:
    """How far the stages of a job have come; `job` is the one that runs."""

    def __init__(self, all_of: Job) -> None:
        self.all_of = self.job = all_of
        self.results: list[Mapping[str, Any]] = []
        self.announced: Announced | None = None  # where whoever waits for the outcome sees no file of ours

    def ended(self, last: Outcome) -> Outcome:
        """The outcome of the whole with this one of its last stage."""
        if not self.all_of.then:
            return last
        ended_well = [] if last.result is None else [last.result]
        return replace(last, result={"pipeline": self.job.pipeline.pipeline, "stages": [*self.results, *ended_well]})

    def record(self, outcome: Outcome) -> None:
        path = self.all_of.result_path
        if path is not None and Path(path).parent.is_dir():
            write_private(Path(path), outcome.to_json())
        if self.announced is not None:
            self.announced.end(outcome)


def _stopped(job: Job) -> Outcome:
    return _failed(job, Stopped("stopped", todo="run the stage again: it goes on where it was"))


def _leave(under_way: _UnderWay) -> NoReturn:
    under_way.record(under_way.ended(_stopped(under_way.job)))
    os._exit(EXIT_RETRY)


def _run_each(under_way: _UnderWay, work: Callable[[Job], Result] | None, told: threading.Event) -> Outcome:
    """One stage after the other, each with a run and a result of its own, up to the first that fails. What goes live
    does not follow on a stage that left tables out."""
    outcome = Outcome(EXIT_DONE, None, None)
    for job in under_way.all_of.each():
        if outcome.exit_code == EXIT_BLOCKED and job.stage in CHANGES_LIVE_TABLES:
            _say(f"pgddl: {job.stage} was not begun: tables are blocked", sys.stdout)
            break
        if outcome.result is not None:
            under_way.results.append(outcome.result)
        under_way.job = job
        outcome = _run(job, work, told)
        if outcome.result is None:
            break
    return under_way.ended(outcome)


def _run(job: Job, work: Callable[[Job], Result] | None, told: threading.Event) -> Outcome:
    from airflow_provider_pgddl.engine import stages

    began = time.monotonic()
    try:
        if job.known_as is not None:
            begin_at_once(job.pipeline, job.master, partial(say, job.stage))
        result = stages.run(job) if work is None else work(job)
        content = result.to_json()
        _say(closing_line(content, time.monotonic() - began), sys.stdout)
        return Outcome(result.exit_code, content, None)
    except Exception as error:  # noqa: BLE001 - every error of a stage is recorded
        # Who was told to stop may come to any error on the way out.
        return _stopped(job) if told.is_set() else _ended_by(job, error)


def _ended_by(job: Job, error: Exception) -> Outcome:
    if isinstance(error, PgddlError):
        return _failed(job, error)
    if isinstance(error, psycopg.Error):
        return _failed(job, from_postgres(error, doing=f"running {job.stage} of {job.pipeline.pipeline}"))
    # A bug: shown with its trace, and recorded like any other end.
    _say(redact("".join(traceback.format_exception(error)), job))
    what = redact(f"{type(error).__name__}: {error}", job)
    details = {"error": "Bug", "what": what, "exit_code": EXIT_FAILED, "retryable": True}
    return Outcome(EXIT_FAILED, None, {**details, "todo": "this is a defect of pgddl; the trace is in the log"})


def _say(text: str, stream: TextIO | None = None) -> None:
    # Whoever read our output may be gone already; that must not replace the error being reported.
    with suppress(OSError):
        print(text, file=stream or sys.stderr, flush=True)


def _failed(job: Job, error: PgddlError) -> Outcome:
    from airflow_provider_pgddl.engine.launch.disk_full import NO_SPACE, located

    if NO_SPACE in error.what:
        error = located(job, error)
    _say(redact(f"pgddl: {job.stage} of {job.pipeline.pipeline}: {error}", job))
    details = {key: redact(v, job) if isinstance(v, str) else v for key, v in error.to_json().items()}
    return Outcome(error.exit_code, None, details)


def closing_line(result: Mapping[str, Any], seconds: float) -> str:
    """One line of what the stage did, and one line for each table that it had to leave."""
    state = "nothing to do" if result["state"] == "nothing_to_do" else str(result["state"])
    figures = [_figure(name, value) for name, value in result.get("figures", {}).items()]
    tables = len(result.get("tables", {}))
    said = [f"{tables} table{'' if tables == 1 else 's'}", *figures] if tables else figures
    lines = [f"pgddl: {result['stage']} of {result['pipeline']}: {state} ({seconds:.1f} s)" + ", ".join(["", *said])]
    lines += [f"pgddl: blocked: {entry['table']}: {entry['reason']}" for entry in result.get("blocked", ())]
    return "\n".join(lines)


def told(job: Job, outcome: Outcome, seconds: float) -> list[str]:
    """What a driver has said of each stage where nobody sees it."""
    ended = [] if outcome.result is None else outcome.result["stages"] if job.then else [outcome.result]
    return [closing_line(one, seconds) for one in ended if "stage" in one]  # what executors say is no stage's


def _figure(name: str, value: float | str) -> str:
    """`rows: 12` as "12 rows", `rows: 1` as "1 row", `longest_wait_ms: 40` as "longest wait 40 ms", `window: 4` as
    "window 4"."""
    *words, last = name.split("_")
    if name == "window":
        return f"window {number(value)}"
    if words and last in ("ms", "seconds", "bytes"):
        return f"{' '.join(words)} {number(value)} {last}"
    if value == 1 and not words and last.endswith("s"):
        return f"1 {last.removesuffix('s')}"
    return f"{number(value)} {' '.join([*words, last])}"


def number(value: float | str) -> str:
    """A figure with its thousands apart; a word as it is."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def redact(text: str, job: Job) -> str:
    """`text` without the secrets of this job; the last guard, nothing above should print one."""
    dsns = [os.environ.get(name, "") for name in job.secrets.values()]
    return without_secrets(text, *dsns, *filter(None, map(credentials.last_used, dsns)))


@contextmanager
def _stoppable(leave: Callable[[], object] = lambda: os._exit(EXIT_RETRY)) -> Iterator[threading.Event]:
    """SIGTERM, SIGHUP and SIGINT end the stage the way ^C does: psycopg cancels what the server is doing for it. Yields
    what is set from then on.

    An interrupt can be lost, in a finalizer or in a library that takes every exception; and what it cuts short may
    leave another call waiting. So whoever is still here after STOPPED_WITHIN seconds has to `leave`."""
    told, unraisable = threading.Event(), sys.unraisablehook
    late = threading.Timer(STOPPED_WITHIN, leave)
    late.daemon = True

    def stop(number: int, _frame: FrameType | None) -> None:
        for again in signals:
            signal.signal(again, signal.SIG_IGN)
        told.set()
        late.start()
        _say(f"pgddl: stopping ({signal.Signals(number).name})")
        sys.unraisablehook = lambda _: None  # nor for an interrupt that came up in a finalizer
        logging.disable()  # Py4J has a stack trace for the call that this cuts short
        raise KeyboardInterrupt

    signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {one: signal.signal(one, stop) for one in signals}
    try:
        yield told
    finally:
        late.cancel()
        sys.unraisablehook = unraisable
        logging.disable(logging.NOTSET)
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def _watching(watched: Watched | None) -> Iterator[None]:
    """End this process soon after the one it works for has ended, or after spark-submit's JVM has.

    kill -9 of an Airflow task leaves JVM and driver alive while the retry starts. The fencing token keeps the two
    apart; this keeps the first one from working on for nothing. The parent is the JVM, which outlives the task, so
    the task itself is watched.
    """
    over = threading.Event()
    parent = os.getppid() if "PYSPARK_GATEWAY_PORT" in os.environ else None

    def watch() -> None:
        while not over.wait(1.0):
            if parent is not None and os.getppid() != parent:
                break
            if watched is not None and not watched.alive():
                break
        else:
            return
        os.kill(os.getpid(), signal.SIGTERM)
        if not over.wait(LAST_WORDS):
            os._exit(EXIT_RETRY)

    if watched is None and parent is None:
        yield
        return
    threading.Thread(target=watch, name="pgddl-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()
