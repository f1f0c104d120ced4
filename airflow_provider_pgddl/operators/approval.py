"""A person's word: before a swap, with its rehearsal; and on DDL that waits. Tasks that wait for the answer."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator

from airflow_provider_pgddl import links
from airflow_provider_pgddl.connections import lookup_in_task, refuse_commands, secrets
from airflow_provider_pgddl.description import Described
from airflow_provider_pgddl.engine.errors import PgddlError, UsageError, from_postgres
from airflow_provider_pgddl.engine.job.file import End, Job, Outcome
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline, refuse_literal_secrets
from airflow_provider_pgddl.operators.base import PgddlOperator
from airflow_provider_pgddl.retrying import give_up, is_worth_retrying

if TYPE_CHECKING:
    from airflow.sdk import Context

SHOWN_TABLES = SHOWN_EVENTS = 50


class PgddlRehearsalOperator(PgddlOperator):
    """Rehearses the swap, as `pgddl run swap --dry-run` does: its own transaction, up to its commit, rolled back. The
    log has every statement with its locks. Its result has `body`, too: Markdown for the person who approves the swap,
    with tables, rows, what was compared, lag, and for how long writers would have waited. A swap that would be refused
    fails here, before anybody is asked."""

    stage = "swap"

    def _job(self, pipeline: Pipeline, found: Mapping[End, str]) -> Job:
        return replace(super()._job(pipeline, found), dry_run=True)

    def _results(
        self,
        job: Job,  # noqa: ARG002
        pipeline: Pipeline,
        context: Context,  # noqa: ARG002
        outcome: Outcome,
    ) -> list[dict[str, Any]]:
        from airflow_provider_pgddl.engine.commands.status import status
        from airflow_provider_pgddl.engine.commands.view import view

        result = dict(outcome.result or {})
        try:
            found = secrets(pipeline, lookup_in_task, os.environ)
            target = found.get("target", found["source"])
            now, journal = status(pipeline, found["source"], target), view(pipeline.pipeline, target)
        except psycopg.Error as error:
            give_up(from_postgres(error, doing="looking at the journal"))
        except PgddlError as error:
            give_up(error)
        return [result | {"body": body(pipeline, result, now, journal)}]

    def _told(self, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        asked = {"body": results[-1]["body"]} if "body" in results[-1] else {}  # nobody, where there is nothing to do
        return super()._told(results) | asked


def body(pipeline: Pipeline, result: Mapping[str, Any], now: Mapping[str, Any], journal: Mapping[str, Any]) -> str:
    """What the person is asked, as Markdown. `now` is what status says, `journal` what view does."""
    if pipeline.in_place:
        what = "The copies take the place of the live tables, in one short transaction."
    else:
        what = f"Applications are cut over to the target; the fence on the source is `{pipeline.swap.fence}`."
    figures, lag, longest = result["figures"], now["lag"], now["longest_wait"]
    lines = [f"Swap of pipeline **{pipeline.pipeline}**, run {result['run']}. {what}", ""]
    if "locked_ms" in figures:
        lines.append(
            f"- Rehearsed just now and rolled back: {figures['statements']} statements, and writers would have waited"
            f" for {figures['locked_ms']} ms at most."
        )
    if lag is not None:
        lines.append(f"- Behind the source: {lag['seconds']} s, {lag['bytes']} bytes of WAL.")
    if longest is not None:
        lines.append(f"- Longest wait of a writer so far: {longest['ms']} ms, in {longest['stage']}.")
    verify = next((s for s in journal["stages"] if s["stage"] == "verify" and s["finished_at"]), None)
    if verify is None:
        lines.append("- Never verified.")
    else:
        lines.append(f"- Last verification: {verify['finished_at']:%Y-%m-%d %H:%M:%S} UTC.")
    lines += ["", "| table | rows compared | differ | pending |", "|---|---|---|---|"]
    for table in journal["tables"][:SHOWN_TABLES]:
        compared, waits = table["verified"], now["tables"].get(table["table"], {})
        rows, differ = (compared.rows, compared.differ) if compared else ("not compared", "")
        lines.append(f"| {_cell(table['table'])} | {rows} | {differ} | {waits.get('lag_keys', 0)} |")
    if more := len(journal["tables"]) - SHOWN_TABLES:
        lines += [""] + [f"… and {more} more tables."] * (more > 0)
    return "\n".join([*lines, "", "Reject: nothing is swapped, this run ends, and changes are captured as before."])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


class PgddlSwapApproval(ApprovalOperator):  # type: ignore[misc]
    """Asks a person whether to swap, with what the rehearsal has found. A rejection skips everything behind it.

    :param rehearsal: the id of the task with a `PgddlRehearsalOperator`

    Everything else is the standard provider's ApprovalOperator's: assigned_users, notifiers, response_timeout ... Where
    the rehearsal had nothing to do, since the swap is done, nobody is asked.
    """

    def __init__(self, *, rehearsal: str, subject: str = "Swap?", **kwargs: Any) -> None:
        super().__init__(subject=subject, ignore_downstream_trigger_rules=True, **kwargs)
        self.rehearsal = rehearsal

    def execute(self, context: Context) -> Any:
        told = context["ti"].xcom_pull(task_ids=self.rehearsal)
        if told["state"] == "nothing_to_do":
            self.log.info("the swap has nothing to do: nobody is asked")
            return None
        self.body = told["body"]
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        who = (event.get("responded_by_user") or {}).get("name")
        self.log.info("%s by %s", ", ".join(event.get("chosen_options") or ["no answer"]), who or "nobody")
        return super().execute_complete(context, event)


APPROVE, SKIP, LEAVE = "Approve", "Skip", "Leave waiting"
TRIES, PAUSE = 12, 5.0  # a person's answer is not lost because a server is away for a minute (seconds)
_SHOWN = "shown"


class PgddlDdlApproval(Described, HITLOperator):  # type: ignore[misc]
    """Asks a person about DDL that waits for approval (`ddl.approval: required`), and about changes of the target that
    `schema.auto_migrate` makes once they are approved; where nothing waits, nobody is asked. It shows each statement,
    what it has changed on the source, and what will be run on the target.

    :param pipeline: path of the pipeline file (a relative one counts from the DAG's folder), its YAML text, or a dict

    `Approve`: the next stage applies the DDL, and changes of the target are made at once. `Skip`: the DDL is left out
    for good; a copy that lacks what it brought stops its table, and the gate says so. `Leave waiting`: nothing changes,
    and somebody decides in the shell or on the page; it is also the answer once `response_timeout` is over. The answer
    is about what was shown and still waits. It is recorded with the person's name: in the journal, at each DDL event,
    and in the task's log. Everything else is the standard provider's HITLOperator's: assigned_users, notifiers,
    response_timeout ...
    """

    template_fields: Sequence[str] = ("pipeline", *HITLOperator.template_fields)
    operator_extra_links = (links.PipelineLink(),)

    def __init__(
        self, *, pipeline: str | os.PathLike[str] | Mapping[str, Any], subject: str = "DDL waits", **kwargs: Any
    ) -> None:
        refuse_literal_secrets(pipeline)  # before Airflow keeps it
        super().__init__(subject=subject, options=[APPROVE, SKIP, LEAVE], defaults=[LEAVE], **kwargs)
        self.pipeline = os.fspath(pipeline) if isinstance(pipeline, os.PathLike) else pipeline

    def execute(self, context: Context) -> Any:
        from airflow_provider_pgddl.engine.commands import ddl, schema

        links.show(self, context)

        def look(pipeline: Pipeline, source: str, target: str) -> tuple[str, list[dict[str, Any]], dict[str, Any]]:
            changes = schema.plan_migrations(pipeline, source, target) if _may_migrate(pipeline) else []
            return pipeline.pipeline, ddl.awaiting(pipeline, target), {p.table: p.statements for p in changes}

        name, every, changes = self._with_ends(context, look)
        events = every[:SHOWN_EVENTS]
        if not events and not changes:
            self.log.info("nothing waits for approval: nobody is asked")
            return None
        context["ti"].xcom_push(_SHOWN, {"events": [event["id"] for event in events], "changes": changes})
        self.body = ddl_body(name, events, changes, more=len(every) - len(events))
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        from airflow_provider_pgddl.engine.commands import ddl, schema

        answer = super().execute_complete(context, event)
        choice = answer["chosen_options"][0]
        who = (answer.get("responded_by_user") or {}).get("name") or "nobody, as the time was over"
        shown = context["ti"].xcom_pull(task_ids=self.task_id, key=_SHOWN, map_indexes=context["ti"].map_index)
        self.log.info("%s by %s: DDL events %s", choice, who, ", ".join(map(str, shown["events"])) or "none")

        def waiting(pipeline: Pipeline, target: str) -> list[int]:
            waits = {one["id"] for one in ddl.awaiting(pipeline, target)}
            return [event_id for event_id in shown["events"] if event_id in waits]

        def decide(pipeline: Pipeline, source: str, target: str) -> None:
            ids = waiting(pipeline, target)
            try:
                do(pipeline, source, target, ids)
            except UsageError:
                if waiting(pipeline, target) == ids:
                    raise
                decide(pipeline, source, target)  # somebody else has decided meanwhile

        def do(pipeline: Pipeline, source: str, target: str, ids: list[int]) -> None:
            if choice == APPROVE and ids:
                ddl.approve(pipeline, target, ids, who)
            if choice == SKIP:
                ddl.reject(pipeline, target, ids, "rejected in Airflow", who)
            if choice == LEAVE:
                ddl.leave_waiting(pipeline, target, ids, who)
            if choice == APPROVE and shown["changes"]:
                done = schema.apply_migrations(pipeline, source, target, shown["changes"], who, say=self.log.info)
                for table in shown["changes"].keys() - set(done):
                    self.log.warning("%s: what was approved is not what would be done now; nothing was", table)

        self._with_ends(context, decide)
        return answer

    def _with_ends(self, context: Context, act: Callable[[Pipeline, str, str], Any]) -> Any:
        """`act` with the pipeline, its source and its target; again while a retry may cure it."""
        for left in reversed(range(TRIES)):
            try:
                pipeline = load_pipeline(self.pipeline, base=Path(context["dag"].folder))
                refuse_commands(pipeline)
                found = secrets(pipeline, lookup_in_task, os.environ)
                return act(pipeline, found["source"], found.get("target", found["source"]))
            except (PgddlError, psycopg.Error) as failure:
                error = failure if isinstance(failure, PgddlError) else from_postgres(failure, doing="deciding on DDL")
                if not (left and is_worth_retrying(error)):
                    give_up(error)
                self.log.warning("%s", error)
            time.sleep(PAUSE)
        raise AssertionError


def _may_migrate(pipeline: Pipeline) -> bool:
    return bool(pipeline.schema_.auto_migrate.types) and pipeline.schema_.auto_migrate.approval == "required"


def ddl_body(
    pipeline: str, events: Sequence[Mapping[str, Any]], changes: Mapping[str, Sequence[str]], more: int = 0
) -> str:
    """What the person is asked, as Markdown. `events` are what `ddl.awaiting` says, `changes` statements by table;
    `more` events wait behind them."""
    lines = [f"Pipeline **{pipeline}**: this was done on the source, and waits to be done on the target."]
    for event in events:
        about = ", ".join(event["touches"])
        lines += [
            "",
            f"**Event {event['id']}**, {event['tag']}{f', about {_cell(about)}' if about else ''}. To be run:",
        ]
        lines += ["", *_code(event["statement"])]
        columns = [c["name"] for change in event["changes"] for c in change.get("columns_dropped") or ()]
        if columns:
            lines += ["", f"The values of {_cell(', '.join(columns))} are gone on the target then."]
    if more:
        lines += ["", f"{more} more wait behind these, and this answer is not about them: clear the task to be asked."]
    for table, statements in changes.items():
        lines += ["", f"**{_cell(table)}** differs, and its policy (auto_migrate) would run on the target:"]
        lines += ["", *_code(";\n".join(statements))]
    told = f"{APPROVE}: the next stage applies the DDL. {SKIP}: it is left out for good, and a copy that lacks what it"
    told += f" brought stops its table. {LEAVE}: decide later, in the shell or on the page."
    return "\n".join([*lines, "", told])


def _code(text: str) -> list[str]:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return [f"{fence}sql", text, fence]
