"""A replay that stays (`replay.run_for`): windows as changes come, and next to nothing where none do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.following.catch_up import catch_up, followed_tables
from airflow_provider_pgddl.engine.following.ddl import captures_ddl, follow_ddl, transport
from airflow_provider_pgddl.engine.following.log_room import give_back
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.control import Border
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal
from airflow_provider_pgddl.engine.progress import TELL_EVERY, amount
from airflow_provider_pgddl.engine.rows.windows import Window
from airflow_provider_pgddl.engine.server.connect import plans_kept
from airflow_provider_pgddl.engine.server.lag import behind
from airflow_provider_pgddl.engine.sql import queries

BREATH = 0.1  # seconds between two windows that found something, so that each has a few rows to bring
PAUSE = 1.0  # between two looks where there is nothing
ROOM_EVERY = 60.0  # between two looks at how large the logs have become
AT_LEAST_EVERY = 30.0  # a window, so that the lag which others are told is no older


def stay(context: Context, border: Border, until: float, took: Callable[[Sequence[Window]], None]) -> None:
    """Catches up again and again until then (time.monotonic), and hands what that took on each time. Every sign of
    news, DDL or rows, leads to a window; the schemas are compared every `schema.validation_interval`."""
    looked = told = cleared = time.monotonic()
    windows = keys = 0
    found = True
    while _wait_for_news(context, border, until, found=found):
        now = time.monotonic()
        if now - looked >= context.pipeline.schema_.validation_interval:
            follow_ddl(context, look=True)
            looked = now
        done = catch_up(context, border=border, tell=False)
        took(done)
        if now - cleared >= ROOM_EVERY:
            give_back(context)
            cleared = now
        found = any(w.keys or w.rows for w in done)
        windows, keys = windows + len(done), keys + sum(w.keys for w in done)
        if found and now - told >= TELL_EVERY:
            lag, left = behind(context.source, done[-1].lsn, done[-1].taken_at), max(0.0, until - time.monotonic())
            rate = amount(keys / (now - told))
            context.say(
                f"{windows} windows, {keys} keys since the last line, {rate} keys/s, {lag}; stays for {left:.0f} s more"
            )
            told, windows, keys = now, 0, 0


def _wait_for_news(context: Context, border: Border, until: float, *, found: bool) -> bool:
    """True once there may be something new, False where the time has passed before."""
    latest = min(until, time.monotonic() + AT_LEAST_EVERY)
    pause = BREATH if found else PAUSE
    while (left := latest - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        pause = PAUSE
        border.wait()
        if found or _may_have_news(context):
            break
    return time.monotonic() < until


def _may_have_news(context: Context) -> bool:
    """One question to the source. What comes by a slot is known once it has been read, so that is looked for anew."""
    follows_ddl = captures_ddl(context)
    if context.pipeline.by_slot or (follows_ddl and transport(context) == "wal"):
        return True
    some = sql.SQL("EXISTS (SELECT FROM {})")
    signs: list[sql.Composable] = [some.format(change_log.log_table(t.log_table)) for t in followed_tables(context)]
    position = DdlJournal(context.target, context.name, context.journal.run).position() if follows_ddl else None
    if follows_ddl:
        signs.append(sql.SQL(queries("ddl_log")["is_queued"]))
    question = sql.SQL("SELECT {}").format(sql.SQL(" OR ").join(signs) if signs else sql.SQL("false"))
    with plans_kept(context.source):
        row = context.source.execute(question, {"position": position}).fetchone()
    return row == (True,)
