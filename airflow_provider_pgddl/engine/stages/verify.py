"""verify: counts and checksums, range by range, each at a window's snapshot, where copy and source must be equal."""

from __future__ import annotations

from airflow_provider_pgddl.engine.following.catch_up import followed_tables, ready
from airflow_provider_pgddl.engine.following.copies_replaced import made_unlogged, set_logged
from airflow_provider_pgddl.engine.following.ddl import follow_ddl
from airflow_provider_pgddl.engine.following.row_comparison import compare_rows, is_current, may_be_empty, verdicts_of
from airflow_provider_pgddl.engine.following.schema_comparison import AT_SWAP
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.job.result import StageResult
from airflow_provider_pgddl.engine.job.slot_receiver import one_stream
from airflow_provider_pgddl.engine.journal.tables import TableRow


def run(context: Context) -> StageResult:
    if not context.moves_rows:
        return context.result("nothing_to_do")
    follow_ddl(context, look=True)
    tables = [t for t in ready(context) if not t.keyless]
    for table in (t for t in context.tables() if t.keyless):
        context.say(f"{table.qualified}: {AT_SWAP}, and compared there")
    for table, file in made_unlogged(context, tables):
        context.say(
            f"{table.qualified}: its copy {file.schema}.{file.name} is UNLOGGED, and it is not: no swap takes it so,"
            f" and what makes it durable ends what is compared here. Before that: {set_logged(context.target, file)}"
        )
    again = list[TableRow]()
    if is_current(context, tables) and not (again := may_be_empty(context, tables)):
        return context.result("nothing_to_do", verdicts_of(context, tables))
    context.receive()  # a slot tells, too, whether changes were lost
    needed = context.row().verify_needed
    with one_stream(context):
        mended = compare_rows(context, again)  # where there are none, all
    tables = followed_tables(context)
    verdicts = verdicts_of(context, tables)
    if {t.id for t in tables} == {t.id for t in context.journal.tables.of(context.journal.run) if not t.keyless}:
        with context.fenced("verify.before_over_commit"):
            if context.journal.lock().verify_needed == needed:  # else more was lost meanwhile
                context.journal.require_verify(None)
    figures = {"mended": mended} if context.job.mend else {}
    return context.result("done", verdicts, rows=sum(v["rows"] for v in verdicts.values()), differ=0,
                          window=context.row().window_no, **figures)  # fmt: skip
