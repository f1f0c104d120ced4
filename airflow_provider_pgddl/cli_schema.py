"""`pgddl schema …`: what the engine answers, and how people are told. Imported by `cli` when one of these is called."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from airflow_provider_pgddl.cli_ddl import Answer, Asked
from airflow_provider_pgddl.engine.apply.target_alterations import TablePlan
from airflow_provider_pgddl.engine.commands import schema
from airflow_provider_pgddl.engine.commands.schema import Synced
from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.schema import report as told
from airflow_provider_pgddl.engine.schema.frames import printable
from airflow_provider_pgddl.engine.schema.verdict import TableReport


def validate(asked: Asked) -> Answer:
    """Every table's verdict, as both servers are now."""
    reports = schema.validate(asked.pipeline, asked.source, asked.target, asked.args.tables)
    found = {"tables": [report.to_json() for report in reports], "summary": _summary(reports)}
    return Answer(found, lambda: [told.validation(reports, colour=_colour())], _stopped(reports))


def diff(asked: Asked) -> Answer:
    """Both sides of one table."""
    one = schema.diff(asked.pipeline, asked.source, asked.target, asked.args.table)
    source, target = one.both.source, one.both.target
    found = one.report.to_json() | {
        "source": source.canonical() if source else None,
        "target": target.canonical() if target else None,
        "source_fingerprint": source.fingerprint() if source else None,
        "target_fingerprint": target.fingerprint() if target else None,
    }
    return Answer(
        found,
        lambda: [told.diff(one.report, source, target, one.both.verdict, colour=_colour())],
        _stopped([one.report]),
    )


def sync(asked: Asked) -> Answer:
    """What would align the target with the source, or doing it."""
    if asked.args.dry_run == asked.args.apply:
        raise UsageError("show it or do it?", todo="give --dry-run, or --apply")
    return _dry_run(asked) if asked.args.dry_run else _apply(asked)


def _dry_run(asked: Asked) -> Answer:
    plans = schema.plan_sync(asked.pipeline, asked.source, asked.target, asked.args.tables)
    statements = {plan.table: plan.statements for plan in plans}
    left_out = {plan.table: plan.left_out for plan in plans}
    found = {"applied": False, "tables": _planned(plans)}
    file = str(asked.args.pipeline)
    return Answer(found, lambda: [told.migration(statements, left_out, pipeline_file=file)], bool(plans))


def _apply(asked: Asked) -> Answer:
    def say(line: str) -> None:
        if not asked.args.json:
            print(printable(line), flush=True)

    say("[INFO] Aligning target schema with source...")
    done = schema.apply_sync(asked.pipeline, asked.source, asked.target, asked.args.tables, say=say)
    found = {
        "applied": True,
        "tables": [plan | {"applied": plan["table"] in done.applied} for plan in _planned(done.plans)],
        "errors": [error.to_json() for error in done.errors],
        "verdicts": [report.to_json() for report in done.reports],
        "summary": _summary(done.reports),
        "recorded": done.recorded,
    }
    return Answer(found, lambda: _synced(done), _stopped(done.reports), done.errors)


def _synced(done: Synced) -> Iterator[str]:
    for error in done.errors:
        yield printable(f"[ERROR] {error}")
    for plan in done.plans:
        for why in plan.left_out:
            yield printable(f"[WARN] Left out on {plan.table}: {why}")
    stopped = [report.table for report in done.reports if report.status == "mismatch"]
    if stopped:
        yield printable(f"[ERROR] Target schema does not match source yet: {', '.join(stopped)}")
    else:
        yield "[SUCCESS] Target schema now matches source"
    if done.recorded:
        yield "[SUCCESS] Schema fingerprints and verdicts are refreshed; the next stage goes on with them"
    elif not stopped:
        yield "[SUCCESS] Run 'pgddl run setup' to record schema fingerprints"


def _planned(plans: Sequence[TablePlan]) -> list[dict[str, Any]]:
    return [{"table": p.table, "statements": p.statements, "left_out": list(p.left_out)} for p in plans]


def _summary(reports: Sequence[TableReport]) -> dict[str, int]:
    found = Counter(report.status for report in reports)
    return {"compatible": found["compatible"], "warning": found["warning"], "mismatch": found["mismatch"]}


def _stopped(reports: Sequence[TableReport]) -> bool:
    return any(report.status == "mismatch" for report in reports)


def _colour() -> bool:
    """On a terminal, unless its user does not want any (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
