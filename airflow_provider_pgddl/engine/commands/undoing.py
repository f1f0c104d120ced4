"""What a run has made on the target is taken away there again, last first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import errors as pg

from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.undo import undo
from airflow_provider_pgddl.engine.errors import from_postgres
from airflow_provider_pgddl.engine.failpoints import failpoint
from airflow_provider_pgddl.engine.journal.pipelines import Journal

Applied = tuple[int, DdlEvent]  # with the event's id in the journal


@dataclass(frozen=True, slots=True)
class Undoing:
    """The statement that undoes an event; without one (0), what no event has made. A `table` has rows that nobody would
    know of any more; what has none may be another pipeline's as well, and is left where something depends on it."""

    event_id: int
    statement: str
    table: bool


GONE = (pg.UndefinedTable, pg.UndefinedObject, pg.UndefinedFunction, pg.UndefinedColumn, pg.InvalidSchemaName)
# Something else has to go first: an object that depends on it, the index or constraint that it is a part of.
_NOT_YET = (pg.DependentObjectsStillExist, pg.InvalidTableDefinition)


def undo_all(journal: Journal, events: Sequence[Applied]) -> list[str]:
    """Takes away on the target what the pipeline made there, last first, and again while that makes room for more.

    What else came to depend on a table keeps it, with an error. All others (schemas, types, functions …) several
    pipelines may need, and the first one made them: they stay, which is said, and are in nobody's way."""
    return run_undoings(journal, undoings(events))


def run_undoings(journal: Journal, todo: Sequence[Undoing]) -> list[str]:
    dropped = list[str]()
    while todo:
        kept = dict[Undoing, psycopg.Error]()
        for one in todo:
            try:
                with journal.conn.transaction():
                    journal.conn.execute(one.statement)
                    journal.dump_events.set_status(one.event_id, "pending")
                    failpoint("reset.before_undo_commit", journal.conn)
                dropped.append(one.statement)
            except _NOT_YET as error:
                kept[one] = error
            except psycopg.Error as error:
                # What was renamed or moved by captured DDL, and dropped after that, has no name to go back to.
                if not (isinstance(error, GONE) and one.statement.startswith("ALTER ")):
                    raise from_postgres(error, doing=f"undoing with {one.statement}") from None
        if len(kept) == len(todo):
            return dropped + _left(kept)
        todo = list(kept)
    return dropped


def _left(kept: Mapping[Undoing, psycopg.Error]) -> list[str]:
    for one, error in kept.items():
        if one.table:
            why = from_postgres(error, doing=f"undoing with {one.statement}")
            why.todo = "see what was made on the target beside this pipeline, drop it or move it; then reset again"
            raise why
    return [
        f"not done: {one.statement} ({error.diag.message_primary}: "
        f"{(error.diag.message_detail or '').partition(chr(10))[0]}); drop it once nobody needs it"
        for one, error in kept.items()
    ]


def undoings(events: Sequence[Applied]) -> list[Undoing]:
    found = []
    for n, (event_id, event) in enumerate(events):
        earlier = (e for _, e in events[n + 1 :] if (e.tag, e.schema, e.name) == (event.tag, event.schema, event.name))
        statement = undo(event, next(earlier, None) if event.tag == "CREATE VIEW" else None)
        if statement is not None:
            found.append(Undoing(event_id, statement, event.tag == "CREATE TABLE"))
    return found
