"""swap: in place the copy takes the live table's place in one short transaction; across clusters the applications cut
over."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.errors import PreflightRefused, about_whole_pipeline
from airflow_provider_pgddl.engine.following.ddl import follow_ddl
from airflow_provider_pgddl.engine.following.finish import finish_all
from airflow_provider_pgddl.engine.following.sequences import keep_ahead
from airflow_provider_pgddl.engine.following.table_capture import stop_capture
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.job.result import StageResult
from airflow_provider_pgddl.engine.swapping import across, in_place, way_back_across
from airflow_provider_pgddl.engine.swapping.dry_run import Rehearsed
from airflow_provider_pgddl.engine.swapping.follow_ups import follow_up
from airflow_provider_pgddl.engine.swapping.readiness import refuse_unready


def run(context: Context) -> StageResult:
    if context.job.tables is not None:
        raise about_whole_pipeline("swap")
    if not context.moves_rows:
        return context.result("nothing_to_do")
    if context.job.dry_run and context.row().cut_over_at is not None:
        return context.result("nothing_to_do")
    if context.row().cut_over_at is not None:
        followed = follow_up(context)
        _go_on_elsewhere(context)
        state = "done" if _drop_replaced(context) or followed.done else "nothing_to_do"
        return followed.noted(context.result(state, validated=followed.done))
    if context.in_place:
        follow_up(context)  # where a revert was killed
    follow_ddl(context, look=True)
    refuse_unready(context)
    for left in finish_all(context):
        raise PreflightRefused(left["reason"], table=left["table"] or None)
    try:
        figures = in_place.run(context, context.tables()) if context.in_place else across.run(context)
    except Rehearsed as done:
        return _rehearsed(context, done)
    followed = follow_up(context)
    _drop_replaced(context)
    _go_on_elsewhere(context)
    states = {t.qualified: {"state": t.state} for t in context.tables()}
    return followed.noted(context.result("done", states, validated=followed.done, **figures))


def _go_on_elsewhere(context: Context) -> None:
    """Across: what the cut-over begins, and what it ends, on the server that applications have left."""
    if not context.in_place:
        way_back_across.hand_over(context)
        way_back_across.end_way_there(context)


def _rehearsed(context: Context, done: Rehearsed) -> StageResult:
    if not context.in_place:
        if not context.beside:
            keep_ahead(context)  # positions of sequences are not rolled back
        if context.pipeline.swap.fence != "none":
            context.say(
                f"-- first the fence ({context.pipeline.swap.fence}) goes up on the source, which was left out here"
            )
    for noted in done.statements:
        if not noted.bookkeeping:
            context.say(str(noted))
    context.say("rolled back: nothing has been swapped")
    return replace(
        context.result("rehearsed", locked_ms=done.locked_ms, statements=len(done.statements)),
        statements=[noted.to_json() for noted in done.statements],
    )


def _drop_replaced(context: Context) -> bool:
    """Where the old tables are not kept: each in a short transaction of its own. Under the swap's lock, writers of all
    tables would wait until their files are gone."""
    if context.pipeline.swap.keep_old or not context.in_place:
        return False
    left = bool(change_log.captured_roots(context.source, context.name))
    stop_capture(context, context.tables())
    return left
