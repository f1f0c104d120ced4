"""The schema gate: closed while a mismatch between source and target stands."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psycopg
from airflow.sdk import BaseSensorOperator, conf
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

from airflow_provider_pgddl import links
from airflow_provider_pgddl.connections import lookup_in_task, refuse_commands, secrets
from airflow_provider_pgddl.description import Described
from airflow_provider_pgddl.engine.errors import PgddlError, from_postgres
from airflow_provider_pgddl.engine.job.file import names
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline, refuse_literal_secrets
from airflow_provider_pgddl.notifications import Notify, announce
from airflow_provider_pgddl.retrying import give_up, policy

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgddl.engine.schema.verdict import TableReport

_SKIPS = "turns a failed gate into a skipped one, and rows go on past it"
_REFUSED = {
    "soft_fail": _SKIPS,
    "never_fail": _SKIPS,
    "silent_fail": "hides that the databases could not be looked at",
}


class PgddlSchemaSensor(Described, BaseSensorOperator):  # type: ignore[misc]
    """Waits until no table of the pipeline has a mismatch; it looks at both databases itself.

    :param pipeline: path of the pipeline file (a relative one counts from the DAG's folder), its YAML text, or a dict
    :param tables: look at these tables only (`schema.table`); None means all of the pipeline
    :param on_mismatch: `wait` until it is gone, `fail` at once, or `report` it and be skipped
    :param deferrable: wait in the triggerer, which holds no worker; it looks every `poke_interval` and lets the sensor
        judge again when it sees a change, at the latest after the pipeline's `schema.validation_interval`
    :param notify: a notifier, a callable that takes the context, or several; called once for each new mismatch, with
        `pipeline`, `table`, `status`, `message` and `findings` in the context

    What closes the gate is logged when it changes, not at every poke, and in reschedule mode in short at each. What a
    stage behind it settles by itself does not close it: a change of the target that the policy has approved, DDL that
    was captured while a table was stopped, and for a verification commits that a failover lost. The sensor fails for a
    pipeline that was never set up. A gate that opens by failing is none: soft_fail, never_fail and silent_fail are
    refused.
    """

    template_fields: Sequence[str] = ("pipeline", "tables")
    operator_extra_links = (links.PipelineLink(),)
    ui_color = "#fef3c7"

    def __init__(
        self,
        *,
        pipeline: str | os.PathLike[str] | Mapping[str, Any],
        tables: Sequence[str] | None = None,
        on_mismatch: Literal["wait", "fail", "report"] = "wait",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        notify: Notify | None = None,
        retries: int = 3,
        retry_policy: Any = None,
        **kwargs: Any,
    ) -> None:
        refuse_literal_secrets(pipeline)  # before Airflow keeps it
        super().__init__(retries=retries, **policy(retry_policy), **kwargs)
        for option, effect in _REFUSED.items():
            if getattr(self, option):  # also where it came from default_args
                raise ValueError(f"PgddlSchemaSensor refuses {option}: it {effect}")
        if on_mismatch not in ("wait", "fail", "report"):
            raise ValueError(f"on_mismatch is wait, fail or report, not {on_mismatch!r}")
        self.pipeline = os.fspath(pipeline) if isinstance(pipeline, os.PathLike) else pipeline
        self._given = self.pipeline  # not rendered
        self.tables = tables
        self.on_mismatch = on_mismatch
        self.deferrable = deferrable
        self.notify = notify
        self._said: str | None = None
        self._closed: frozenset[str] = frozenset()

    def execute(self, context: Context) -> None:
        links.show(self, context)
        if self.deferrable:
            self._wait(context, time.time())
        else:
            super().execute(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> None:
        """Goes on after the trigger has fired: judges again, whatever the trigger saw."""
        self._wait(context, event["started"], event["error"])

    def _wait(self, context: Context, started: float, error: str | None = None) -> None:
        """Returns where the gate is open, and defers where it is not. `error` is why the trigger could not look."""
        from airflow_provider_pgddl.triggers.schema import PgddlSchemaTrigger, ends_of, look

        with _explained():
            pipeline, source, target = self._ends(context)
            # Before the gate judges: what changes from here on wakes the trigger.
            seen = asyncio.run(look(pipeline.pipeline, source, target, names(self.tables)))
        if self.poke(context):
            return
        if error is not None:
            raise AirflowException(
                f"the triggerer cannot look at the schemas: {error}\n"
                "  to do: give the triggerer what the worker has (environment, connections, network), "
                "or let the sensor wait on a worker (deferrable=False)"
            )
        left = started + self.timeout - time.time()
        if left <= 0:
            raise AirflowSensorTimeout(f"the gate was still closed after {self.timeout:.0f} seconds (timeout)")
        self.defer(
            trigger=PgddlSchemaTrigger(
                pipeline=ends_of(pipeline),
                tables=names(self.tables),
                seen=seen,
                poke_interval=self.poke_interval,
                validation_interval=min(pipeline.schema_.validation_interval, left),
                started=started,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=left),
        )

    def poke(self, context: Context) -> bool:
        from airflow_provider_pgddl.engine import stages  # a DAG file is parsed far more often than it runs

        with _explained():
            pipeline, source, target = self._ends(context)
            reports = stages.gate(
                pipeline, source, target, names(self.tables), announce=True, required=True, behind=self._behind()
            )
            closed = {report.table: report for report in reports if report.status == "mismatch"}
            boxes = self._changed(context, pipeline, target, closed)
        for table, box in boxes.items():
            self.log.warning("closed: %s:\n%s", table, box)
        if self.reschedule:  # another process each time, and often another log
            for table in sorted(closed.keys() - boxes.keys()):
                self.log.warning("still closed: %s: %s", table, _first(closed[table]))
        if not closed:
            said = f"{len(reports)} table{'' if len(reports) == 1 else 's'} looked at"
            self.log.info("open: %s", said if reports else "nothing is judged after the swap")
        for table in sorted(self._closed - closed.keys()):
            self.log.info("%s: no mismatch any more", table)
        self._closed = frozenset(closed)
        for report in closed.values():
            if report.new:
                announce(self.notify, context, self._facts(pipeline, report), self.log)
        if closed and self.on_mismatch == "fail":
            raise AirflowFailException(self._why(pipeline, closed))
        if closed and self.on_mismatch == "report":
            raise AirflowSkipException(f"blocked: {', '.join(sorted(closed))} (on_mismatch=report); the log has why")
        return not closed

    def _behind(self) -> set[str]:
        """The stages of this pipeline that wait for the gate."""
        from airflow_provider_pgddl.operators.base import PgddlOperator

        found = set()
        for task in self.get_flat_relatives(upstream=False) if self.has_dag() else ():
            kind = getattr(task, "operator_class", type(task))
            if issubclass(kind, PgddlOperator):
                given = task.partial_kwargs.get("pipeline") if task.is_mapped else task.pipeline
                stages = getattr(task, "stages", (kind.stage,)) if not task.is_mapped else (kind.stage,)
                found |= {*stages} if given == self._given else set()
        return found

    def _ends(self, context: Context) -> tuple[Pipeline, str, str]:
        pipeline = load_pipeline(self.pipeline, base=Path(context["dag"].folder))
        refuse_commands(pipeline)
        found = secrets(pipeline, lookup_in_task, os.environ)
        return pipeline, found["source"], found.get("target", found["source"])

    def _changed(
        self, context: Context, pipeline: Pipeline, target: str, closed: Mapping[str, TableReport]
    ) -> dict[str, str]:
        """The boxes that this try of the task has not shown yet, by table.

        The journal remembers, since a rescheduled or deferred sensor is another process each time."""
        from airflow_provider_pgddl.engine import stages

        digests = {table: _digest(report) for table, report in closed.items()}
        whole = _hash(digests)
        if not closed or whole == self._said:
            return {}
        self._said = whole
        ti = context["ti"]
        who = f"{ti.dag_id}/{ti.task_id}/{ti.run_id}/{ti.map_index}/{ti.try_number}"
        if stages.shown_already(pipeline, target, who, whole):
            return {}
        return {
            table: self._box(pipeline, report)
            for table, report in closed.items()
            if not stages.shown_already(pipeline, target, f"{who}/{table}", digests[table])
        }

    def _box(self, pipeline: Pipeline, report: TableReport) -> str:
        from airflow_provider_pgddl.engine.schema import report as reports

        return reports.box(report, pipeline_file=self._file(pipeline))

    def _facts(self, pipeline: Pipeline, report: TableReport) -> dict[str, Any]:
        """What a notifier finds in its context."""
        from airflow_provider_pgddl.engine.schema import report as reports

        return {
            "pipeline": pipeline.pipeline,
            "table": report.table,
            "status": report.status,
            "message": "\n".join(reports.lines(report, pipeline_file=self._file(pipeline))),
            "findings": [finding.to_json() for finding in report.findings],
        }

    def _file(self, pipeline: Pipeline) -> str | None:
        """The pipeline file as it was given, for commands that people copy; None for a dict or YAML text."""
        name = pipeline.where()
        return name if name == self.pipeline else None

    def _why(self, pipeline: Pipeline, closed: Mapping[str, TableReport]) -> str:
        first, *others = closed.values()
        more = f"\nalso: {', '.join(report.table for report in others)}" if others else ""
        return f"the schema gate is closed (on_mismatch=fail)\n{self._box(pipeline, first)}{more}"


@contextmanager
def _explained() -> Iterator[None]:
    """Our errors and a server's as Airflow's: to be tried again, or final."""
    try:
        yield
    except (PgddlError, psycopg.Error) as error:
        give_up(error if isinstance(error, PgddlError) else from_postgres(error, doing="looking at the schemas"))


def _first(report: TableReport) -> str:
    return next((f.what.partition("\n")[0] for f in report.findings if f.severity == "mismatch"), report.status)


def _digest(report: TableReport) -> str:
    """Of what is a change to people: not how many rows are held back by now."""
    return _hash([report.since, [finding.to_json() for finding in report.findings]])


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
