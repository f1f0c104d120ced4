"""The schema gate's trigger: looks at both catalogs and the journal until they are not as the sensor saw them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Literal

import psycopg
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_pgddl.engine.errors import PgddlError, UsageError, from_postgres
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import table_name
from airflow_provider_pgddl.engine.server import schema_reading
from airflow_provider_pgddl.engine.server.connect import AsyncSession, connect_async
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.retrying import is_worth_retrying
from airflow_provider_pgddl.triggers.ends import Ends

_Q = queries("gate_trigger")
LOOKS = 5  # in a row that had no connection string: the sensor finds out whether that is so for good


class PgddlSchemaTrigger(BaseTrigger):  # type: ignore[misc]
    """Fires once: when something differs from `seen`, when it is time to judge anew, or when it cannot look at all.

    :param pipeline: `ends_of` the pipeline: its name and where its databases are (connection ids, `${VAR}`)
    :param tables: look at these tables only (`schema.table`); None means all of the pipeline
    :param seen: `look` from before the sensor judged
    :param poke_interval: seconds between two looks
    :param validation_interval: seconds after which it fires although nothing differs
    :param started: when the sensor began to wait (seconds since the epoch); the event hands it back

    The event's payload is {"started": ..., "error": why it cannot look, or None}. It decides nothing: the sensor
    looks again itself. A server that does not answer for a while is waited for; a connection or a token that cannot be
    had, for `LOOKS` looks.
    """

    def __init__(
        self,
        *,
        pipeline: Mapping[str, Any],
        tables: Sequence[str] | None,
        seen: str,
        poke_interval: float,
        validation_interval: float,
        started: float,
    ) -> None:
        super().__init__()
        self.pipeline = dict(pipeline)
        self.tables = tables
        self.seen = seen
        self.poke_interval = poke_interval
        self.validation_interval = validation_interval
        self.started = started

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "pipeline": self.pipeline,
                "tables": None if self.tables is None else list(self.tables),
                "seen": self.seen,
                "poke_interval": self.poke_interval,
                "validation_interval": self.validation_interval,
                "started": self.started,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        pipeline = Pipeline.model_validate(self.pipeline)
        ends, in_a_row = Ends(pipeline), 0
        due = time.monotonic() + self.validation_interval
        error: str | None = None
        while True:
            await asyncio.sleep(min(self.poke_interval, max(due - time.monotonic(), 0.0)))
            try:
                source, target = await ends.now()
            except PgddlError as failure:
                in_a_row += 1
                if not is_worth_retrying(failure) or in_a_row == LOOKS:
                    error = str(failure)
                    break
                self.log.warning("%s", failure)
                due = max(due, time.monotonic() + self.poke_interval)
                continue
            in_a_row = 0
            try:
                seen = await look(pipeline.pipeline, source, target, self.tables)
            except PgddlError as failure:
                if not ends.forget() and not failure.retryable:
                    error = str(failure)
                    break
                self.log.warning("%s", failure)
                due = max(due, time.monotonic() + self.poke_interval)
                continue
            if seen != self.seen or time.monotonic() >= due:
                break
        yield TriggerEvent({"started": self.started, "error": error})


def ends_of(pipeline: Pipeline) -> dict[str, Any]:
    """What a trigger has to know of a pipeline: its name, and of both databases the connection id or the reference."""
    return pipeline.model_dump(mode="json", include={"pipeline", "source", "target"}, exclude_none=True)


async def look(pipeline: str, source_dsn: str, target_dsn: str, tables: Collection[str] | None) -> str:
    """SHA-256 (hex) of all that the gate depends on and that can be seen: the tables on both sides, the types there,
    what the journal says about them, and DDL that waits for a person.

    Retry and its kin where a later look may succeed, any other PgddlError where it will not.
    """
    try:
        wanted = None if tables is None else {table_name(table) for table in tables}
    except ValueError as error:
        raise UsageError(str(error)) from None
    try:
        async with (
            await connect_async(source_dsn, purpose="wait", pipeline=pipeline) as source,
            await connect_async(target_dsn, purpose="wait", pipeline=pipeline) as target,
        ):
            journal = await _journal(target, pipeline)
            # A table that is not copied yet has a status only, and its copy will have its name.
            rows = [*journal.get("tables", ()), *((*row[:2], *row[:2]) for row in journal.get("statuses", ()))]
            rows = [row for row in rows if wanted is None or row[:2] in wanted]
            live = await schema_reading.read_async(source, {(row[0], row[1]) for row in rows})
            copies = await schema_reading.read_async(target, {(row[2], row[3]) for row in rows})
    except psycopg.Error as error:
        raise from_postgres(error, doing="looking at the schemas") from None
    shown = [
        journal,
        *([sorted(schemas.tables.items()), sorted(schemas.types)] for schemas in (live, copies)),
    ]
    return hashlib.sha256(repr(shown).encode()).hexdigest()


async def _journal(target: AsyncSession, pipeline: str) -> dict[str, list[tuple[Any, ...]]]:
    """{} where there is none."""

    async def rows(name: str, *args: str) -> list[tuple[Any, ...]]:
        return await (await target.execute(_Q[name], args)).fetchall()

    if await rows("journal") != [(True,)]:
        return {}
    return {name: await rows(name, pipeline) for name in ("run", "tables", "statuses", "events")}


async def standing(target: AsyncSession, pipeline: str, what: Literal["ddl", "mismatch"]) -> dict[str, str]:
    """DDL events that wait for a person, by id, or tables with a mismatch, each with what makes it another one."""
    journal = await _journal(target, pipeline)
    if not journal or journal["run"] == [] or (what == "mismatch" and journal["run"][0][1] is not None):
        return {}
    if what == "ddl":
        return {str(event): status for event, status in journal["events"]}
    return {f"{row[0]}.{row[1]}": str(row[3]) for row in journal["statuses"] if row[2] == "mismatch"}
