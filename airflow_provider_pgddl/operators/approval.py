"""A person's word before a swap: its rehearsal, and a task that waits for the answer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
from airflow.providers.standard.operators.hitl import ApprovalOperator

from airflow_provider_pgddl.connections import lookup_in_task, secrets
from airflow_provider_pgddl.engine.errors import PgddlError, from_postgres
from airflow_provider_pgddl.engine.job.file import End, Job, Outcome
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.operators.base import PgddlOperator
from airflow_provider_pgddl.retrying import give_up

if TYPE_CHECKING:
    from airflow.sdk import Context

SHOWN_TABLES = 50


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
