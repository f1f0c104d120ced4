"""swap: in place the copy takes the live table's place in one short transaction; across clusters the applications cut
over."""

from __future__ import annotations

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.stages import cut_over, exchange, revert
from airflow_provider_pgddl.engine.stages.cleanup import stop_capture
from airflow_provider_pgddl.engine.stages.context import Context, StageResult
from airflow_provider_pgddl.engine.stages.ddl import follow
from airflow_provider_pgddl.engine.stages.unready import refuse_unready


def run(context: Context) -> StageResult:
    if context.job.tables is not None:
        raise UsageError("swap is about the whole pipeline", todo="run it without --tables")
    if not context.moves_rows:
        return context.result("nothing_to_do")
    if not context.in_place and context.row().cut_over_at is None:
        # One that was killed between its fence and its end has left applications without a place to write to.
        cut_over.lower_fence(context.source, context.pipeline, context.tables())
    context.border().wait()
    if context.row().cut_over_at is not None:
        finished = _finish(context)
        dropped = _drop_replaced(context)
        return context.result("done" if finished or dropped else "nothing_to_do", validated=finished)
    if context.in_place:
        revert.finish(context)  # where that was killed
    follow(context, look=True)
    refuse_unready(context)
    figures = exchange.run(context, context.tables()) if context.in_place else cut_over.run(context)
    finished = _finish(context)
    _drop_replaced(context)
    return context.result(
        "done", {t.qualified: {"state": t.state} for t in context.tables()}, validated=finished, **figures
    )


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


def _drop_replaced(context: Context) -> bool:
    """Where the old tables are not kept: each in a short transaction of its own. Under the swap's lock, writers of all
    tables would wait until their files are gone."""
    if context.pipeline.swap.keep_old or not context.in_place:
        return False
    left = bool(change_log.captured_roots(context.source, context.name))
    stop_capture(context, context.tables())
    return left
