"""Room on disk that change logs have taken and need no longer, given back.

A log's file grows with what waits in it, and no autovacuum gives any of that back: the log would have to grow again at
once, and writers wait for both. But each window reads its logs from end to end, a few times, however little is in
them: after a week in which nobody ran replay, all windows from then on would take as long as if the week's changes
were still there."""

from __future__ import annotations

import psycopg
from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.following.catch_up import followed_tables
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.progress import amount
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

LARGE = 32 << 20  # bytes; to look through so much takes a window 70 ms
NOT_AGAIN_FOR = 600  # seconds: where many write, a log may need as much soon, or somebody's snapshot keeps it


def give_back(context: Context) -> None:
    """Once windows have taken what there was. The server cuts a file short in steps of some 20 ms, for which writers
    wait: it asks for the lock without queueing, and lets go of it once somebody waits."""
    session = context.logs.session
    names = {t.log_table: t.qualified for t in followed_tables(context)}
    args = {"logs": list(names), "large": LARGE, "again": NOT_AGAIN_FOR}
    for log, size in session.execute(queries("windows")["large_logs"], args).fetchall():
        context.check_fence()
        try:
            # Who is at it already does the same, or needs it as it is.
            session.execute(sql.SQL("VACUUM (SKIP_LOCKED, TRUNCATE) {}").format(change_log.log_table(log)))
        except psycopg.Error as error:  # for later windows only: somebody may want the server for something else
            if session.closed:
                raise
            context.say(f"{names[log]}: its change log keeps its room on disk ({type(error).__name__})")
            continue
        if (less := size - _size(session, log)) > 0:
            context.say(f"{names[log]}: its change log has given {amount(less)}B of the disk back")


def _size(session: Session, log: str) -> int:
    row = session.execute("SELECT pg_catalog.pg_relation_size(%s)", [change_log.log_table(log).as_string()]).fetchone()
    return int(row[0]) if row else 0
