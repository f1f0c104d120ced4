"""What a run has made on the target is taken away there again, last first."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import errors as pg

from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.undo import undo
from airflow_provider_pgddl.engine.errors import from_postgres
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.journal.pipelines import Journal

Applied = tuple[int, DdlEvent]  # with the event's id in the journal
Undoing = tuple[int, str]  # the same, with the statement that undoes it; 0 for what no event has made

GONE = (pg.UndefinedTable, pg.UndefinedObject, pg.UndefinedFunction, pg.UndefinedColumn, pg.InvalidSchemaName)
# Something else has to go first: an object that depends on it, the index or constraint that it is a part of.
_NOT_YET = (pg.DependentObjectsStillExist, pg.InvalidTableDefinition)


def undo_all(journal: Journal, events: Sequence[Applied]) -> list[str]:
    """Takes away on the target what the pipeline made there, last first, and again while that makes room for more.

    What else came to depend on it keeps it, with an error."""
    return run_undoings(journal, undoings(events))


def run_undoings(journal: Journal, todo: list[Undoing]) -> list[str]:
    dropped = list[str]()
    while todo:
        kept: list[Undoing] = []
        for event_id, statement in todo:
            try:
                with journal.conn.transaction():
                    journal.conn.execute(statement)
                    journal.dump_events.set_status(event_id, "pending")
                    failpoint("reset.before_undo_commit", journal.conn)
                dropped.append(statement)
            except _NOT_YET as error:
                kept.append((event_id, statement))
                why = from_postgres(error, doing=f"undoing with {statement}")
            except psycopg.Error as error:
                # What was renamed or moved by captured DDL, and dropped after that, has no name to go back to.
                if not (isinstance(error, GONE) and statement.startswith("ALTER ")):
                    raise from_postgres(error, doing=f"undoing with {statement}") from None
        if len(kept) == len(todo):
            why.todo = "see what was made on the target beside this pipeline, drop it or move it; then reset again"
            raise why
        todo = kept
    return dropped


def undoings(events: Sequence[Applied]) -> list[Undoing]:
    found = []
    for n, (event_id, event) in enumerate(events):
        earlier = (e for _, e in events[n + 1 :] if (e.tag, e.schema, e.name) == (event.tag, event.schema, event.name))
        statement = undo(event, next(earlier, None) if event.tag == "CREATE VIEW" else None)
        if statement is not None:
            found.append((event_id, statement))
    return found
