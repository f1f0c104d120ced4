"""What servers do for a run while nothing else is said: a statement that takes long tells nobody by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import psycopg

from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.progress import amount, duration, pace, repeating, silent_for
from airflow_provider_pgddl.engine.server.connect import Session, application_name
from airflow_provider_pgddl.engine.server.lock_timeout import statement_shown
from airflow_provider_pgddl.engine.sql import queries

QUIET = 10.0  # seconds without a line from which on somebody may ask what goes on
LOOK_EVERY = 2.5
_COMMENTS = re.compile(r"^\s*--.*$", re.MULTILINE)
# Who reads says where it is by itself, and a statement of it says nothing to a person.
_UNTOLD = re.compile(r"\s*(SELECT|WITH|COPY|FETCH)\b", re.IGNORECASE)


@contextmanager
def told(context: Context) -> Iterator[None]:
    """Says what takes long, each time that nothing else has been said for `QUIET` seconds."""

    def look() -> None:
        if silent_for() < QUIET:
            return
        with suppress(PgddlError, psycopg.Error):
            for line in _lines(context):
                context.say(line)

    with repeating("pgddl-at-work", LOOK_EVERY, look):
        yield


def _lines(context: Context) -> Iterator[str]:
    ours = application_name(context.name, context.lease.token, "")
    with context.brief_session("target", "look") as target:
        yield from lines(target, ours, lambda: _names(Journal(target, context.name)))
    if not context.in_place:
        with context.brief_session("source", "look") as source:
            yield from lines(source, ours, dict)


def _names(journal: Journal) -> dict[Name, str]:
    """What a person calls the table, by the copy's name and that of its pending keys."""
    tables = journal.tables.of(journal.run)
    pending = {("pgddl", f"pending_{t.id}"): t.qualified for t in tables}
    return pending | {(t.plan.copy_schema, t.plan.copy_name): t.qualified for t in tables}


def lines(conn: Session, ours: str, names: Callable[[], Mapping[Name, str]]) -> Iterator[str]:
    """Of each statement of sessions whose application begins so, which has taken longer than `QUIET`: its table, how
    much is done of all, how fast, and how long it goes on, as far as the server tells."""
    rows = conn.execute(queries("at_work")["at_work"], {"ours": ours, "longer": QUIET}).fetchall()
    for _, seconds, query, schema, table, unit, done, total in rows:
        if schema is None:
            statement = _COMMENTS.sub("", query).strip()
            if not _UNTOLD.match(statement):
                yield f"{statement_shown(statement)}: {duration(seconds)} so far"
            continue
        at = names().get((schema, table), f"{schema}.{table}")
        if total:
            yield f"at {at}: {amount(done)} of {amount(total)} {unit}{pace(done, total - done, seconds, unit)}"
        else:
            yield f"at {at}: {amount(done)} {unit} so far, {amount(done / seconds)} {unit}/s"
