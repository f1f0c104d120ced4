"""swap: in place the copy takes the live table's place in one short transaction; across clusters the applications cut
over."""

from __future__ import annotations

from airflow_provider_pgddl.engine.errors import PreflightRefused, UsageError
from airflow_provider_pgddl.engine.journal import TableRow
from airflow_provider_pgddl.engine.stages import cut_over, exchange
from airflow_provider_pgddl.engine.stages.context import Context, StageResult
from airflow_provider_pgddl.engine.stages.ddl import captures_ddl, follow
from airflow_provider_pgddl.engine.stages.replay import note_lost_windows
from airflow_provider_pgddl.engine.stages.verify import compare, unverified


def run(context: Context) -> StageResult:
    if context.job.tables is not None:
        raise UsageError("swap is about the whole pipeline", todo="run it without --tables")
    if not context.moves_rows:
        return context.result("nothing_to_do")
    tables = context.tables()
    if not context.in_place and context.row().cut_over_at is None:
        # One that was killed between its fence and its end has left applications without a place to write to.
        cut_over.lower_fence(context.source, context.pipeline, tables)
    if context.row().cut_over_at is not None:
        finished = _finish(context)
        return context.result("done" if finished else "nothing_to_do", validated=finished)
    follow(context, look=True)
    tables = context.tables()
    _refuse_unready(context, tables)
    figures = exchange.run(context, tables) if context.in_place else cut_over.run(context)
    finished = _finish(context)
    return context.result(
        "done", {t.qualified: {"state": t.state} for t in context.tables()}, validated=finished, **figures
    )


def _refuse_unready(context: Context, tables: list[TableRow]) -> None:
    """All tables together or none: what is blocked, unfinished or not verified keeps the swap from happening."""
    blocked = context.journal.mismatches()
    for name, findings in blocked.items():
        raise PreflightRefused(
            f"is blocked: {'; '.join(findings)}", table=name,
            todo="resolve it (the schema gate says how), or `pgddl reset --tables` it and run again from setup",
        )  # fmt: skip
    late = [t for t in tables if t.state != "indexed"]
    if late or not tables:
        raise UsageError(
            f"{late[0].qualified} is not replayed yet" if late else "there is no table", todo="run stage replay first"
        )
    note_lost_windows(context)
    needed = context.row().verify_needed
    if needed:
        raise PreflightRefused(needed, todo="run stage verify first")
    if context.pipeline.verify.before_swap:
        missing = unverified(context, tables)
        changed = [t for t in tables if t.qualified in missing]
        if changed and captures_ddl(context) and context.journal.stage_done(context.row().run, "verify"):
            context.say(f"{', '.join(t.qualified for t in changed)}: changed since the verification, compared again")
            compare(context, changed)
        for name, reason in unverified(context, tables).items():
            raise PreflightRefused(reason, table=name, todo="run stage verify first, or set verify.before_swap: false")


def _finish(context: Context) -> int:
    """After the commit: foreign keys are validated and views filled without holding anybody up; what is left if this is
    killed, the next run does, and cleanup waits for it."""
    run_no = context.row().run
    statements = context.journal.follow_ups_left(run_no)
    for statement in statements:
        with context.fenced():
            context.target.execute(statement)
            context.journal.follow_up_done(run_no, statement)
        context.say(statement)
    return len(statements)
