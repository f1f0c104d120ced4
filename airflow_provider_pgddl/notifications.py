"""Telling people what a pipeline wants of them, through whatever notifiers they have."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgddl.retrying import WorthRetrying

if TYPE_CHECKING:
    from airflow_provider_pgddl.engine.pipeline.model import Pipeline

# A notifier or any callable that takes the context, as `on_failure_callback` does; or several.
Notify: TypeAlias = Callable[[Any], object] | Sequence[Callable[[Any], object]]


def announce(notify: Notify | None, context: Mapping[str, Any], facts: Mapping[str, Any], log: Any) -> bool:
    """Call every notifier with the task's context and `facts` in it, which its templates can use: `{{ table }}`, or
    `{{ pgddl.table }}`, which no field of a notifier's own hides. Whether all of them succeeded.

    One that fails is logged and changes nothing else.
    """
    well = True
    for notifier in (notify,) if callable(notify) else notify or ():
        # A notifier renders its own fields, once and for good: each message needs a fresh one.
        call = copy.copy(notifier) if isinstance(notifier, BaseNotifier) else notifier
        try:
            call({**context, **facts, "pgddl": dict(facts)})
        except Exception:  # somebody else's code must neither open nor break the gate
            log.exception("the notifier %r failed for %s", notifier, facts.get("table") or facts.get("subject"))
            well = False
    return well


class PgddlNotifier(BaseNotifier):  # type: ignore[misc]
    """Tells people, each time once, that a mismatch was recorded (`mismatch`), that DDL waits for a person (`ddl`),
    that a verification found differences (`verification`), that a swap is done and how long writers waited for it
    (`swap`), that the target is further behind than it may be (`lag`); as a failure's callback what failed (`failure`).

    :param to: who carries the message: a notifier, a callable that takes the context, or several. They are called for
        each with `pgddl` in the context: `event`, `pipeline`, `table`, `subject` (a line) and `message` (what to do),
        which their templates use: `"{{ pgddl.subject }}"`. None writes to the log
    :param events: of which of these people are told
    :param lag_limit: how far behind the target may be, in seconds or as a timedelta; None tells of no lag
    :param pipeline: as operators have it; None takes that of the task, or those of the DAG

    It goes wherever Airflow takes a notifier or a callback (`on_failure_callback`, `on_success_callback`,
    `on_skipped_callback` ..., also in `default_args`, and `notify` of the gate), and looks at the journal then. What it
    has told the journal remembers, by DAG and receivers. What could not be delivered is told at the next call.
    """

    def __init__(
        self,
        *,
        to: Notify | None = None,
        events: Sequence[str] = ("mismatch", "ddl", "verification", "swap", "lag", "failure"),
        lag_limit: timedelta | float | None = None,
        pipeline: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if unknown := set(events) - {"mismatch", "ddl", "verification", "swap", "lag", "failure"}:
            raise ValueError(f"PgddlNotifier knows no events {', '.join(sorted(unknown))}")
        self.to, self.events = to, tuple(events)
        self.lag_limit = lag_limit.total_seconds() if isinstance(lag_limit, timedelta) else lag_limit
        self.pipeline = os.fspath(pipeline) if isinstance(pipeline, os.PathLike) else pipeline

    def notify(self, context: Any) -> None:
        """Errors as `pgddl status` has them, once everything that can be told is told."""
        failed: Exception | None = None
        if "failure" in self.events and (facts := _failure(context)):
            self._tell(context, facts)
        for pipeline in self._pipelines(context):
            try:
                self._tell_of(pipeline, context)
            except Exception as error:  # noqa: BLE001 - the next pipeline may have something to tell
                failed = error
        if failed is not None:
            raise failed

    async def async_notify(self, context: Any) -> None:
        """The same in the triggerer, as for a deadline."""
        from asgiref.sync import sync_to_async

        # Unlike in any other thread, Airflow's own calls find their way from there.
        await sync_to_async(self.notify, thread_sensitive=False)(context)

    def _tell_of(self, pipeline: Pipeline, context: Any) -> None:
        from airflow_provider_pgddl.connections import lookup_in_task, refuse_commands, secrets
        from airflow_provider_pgddl.engine.commands import news

        refuse_commands(pipeline)
        found = secrets(pipeline, lookup_in_task, os.environ)
        target, who = found.get("target", found["source"]), self._who(context)
        events = [event for event in news.EVENTS if event in self.events]
        untold: list[news.News] = []
        try:
            for one in news.claim(pipeline.pipeline, target, who, events, self.lag_limit):
                untold.append(one)  # until it is told, whatever ends this meanwhile
                facts = {k: v for k, v in asdict(one).items() if k not in ("about", "state")}
                if self._tell(context, {**facts, "pipeline": pipeline.pipeline}):
                    untold.remove(one)
        finally:
            if untold:
                news.give_back(pipeline.pipeline, target, who, untold)

    def _tell(self, context: Any, facts: Mapping[str, Any]) -> bool:
        if self.to is None:
            self.log.warning("%s\n%s", facts["subject"], facts["message"])
            return True
        return announce(self.to, context, facts, self.log)

    def _pipelines(self, context: Any) -> Iterator[Pipeline]:
        from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline

        dag, task = context.get("dag"), context.get("task")
        given = [self.pipeline] if self.pipeline is not None else [getattr(task, "pipeline", None)]
        if given == [None]:
            given = [getattr(one, "pipeline", None) for one in getattr(dag, "tasks", ())]
        known = set()
        for one in given:
            if one is not None and (name := json.dumps(one, sort_keys=True, default=str)) not in known:
                known.add(name)
                yield load_pipeline(one, base=Path(dag.folder) if dag is not None else None)

    def _who(self, context: Any) -> str:
        """The same in each process that has this DAG, and another for each list of receivers."""
        receivers = [self.to] if callable(self.to) else list(self.to or ())
        known = [
            [type(one).__qualname__, getattr(one, "__qualname__", None)]
            + [repr(getattr(one, field, None)) for field in sorted(getattr(one, "template_fields", ()))]
            for one in receivers
        ]
        dag = context.get("dag")
        digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]
        return f"notifier {getattr(dag, 'dag_id', '')}/{digest}"


def _failure(context: Any) -> dict[str, Any] | None:
    """What a failure's callback tells; None where nothing failed for good."""
    error, ti, task = context.get("exception"), context.get("ti"), context.get("task")
    if error is None or ti is None or not hasattr(task, "pipeline") or str(getattr(ti, "state", "")) == "up_for_retry":
        return None
    # Of our own errors the text is without secrets and says what to do; of others' nobody knows.
    ours = isinstance(error, WorthRetrying | AirflowFailException)
    text = str(error) if ours else f"{type(error).__name__}: the task's log has it"
    return {
        "event": "failure",
        "pipeline": None,
        "table": None,
        "subject": f"pgddl: {ti.dag_id}: {ti.task_id} failed: {text.partition(chr(10))[0]}",
        "message": f"{ti.dag_id}, {ti.task_id}, run {ti.run_id}:\n{text}\nLog: {getattr(ti, 'log_url', '')}",
    }
