"""What an asset's watcher waits for: that DDL waits for a person, or that a mismatch stands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

import psycopg
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_pgddl.engine.errors import PgddlError, from_postgres
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.server.connect import connect_async
from airflow_provider_pgddl.retrying import is_worth_retrying
from airflow_provider_pgddl.triggers.ends import Ends
from airflow_provider_pgddl.triggers.schema import standing

Watched = Literal["ddl", "mismatch"]


class PgddlWatchTrigger(BaseEventTrigger):  # type: ignore[misc]
    """Fires each time when something new stands: a DDL event that waits for a person (`ddl`: failed, unhandled, or
    awaiting approval), or a table that the schema gate has stopped (`mismatch`). Looks at the journal alone.

    :param pipeline: `ends_of` the pipeline as JSON: its name and where its databases are (connection ids, `${VAR}`). As
        text, because Airflow 3.2 hands a watcher's dict back in the form that it stores it in
    :param watched: `ddl` or `mismatch`
    :param poke_interval: seconds between two looks

    The event's payload is {"pipeline": ..., "watched": ..., "new": [...]}, with ids of DDL events or names of tables.
    What stands while the triggerer begins is new to it: whoever is started finds out whether anything is to be done. A
    server that cannot be asked is asked again, for as long as the asset is watched.
    """

    def __init__(self, *, pipeline: str, watched: Watched, poke_interval: float) -> None:
        super().__init__()
        self.pipeline, self.watched, self.poke_interval = pipeline, watched, poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"pipeline": self.pipeline, "watched": self.watched, "poke_interval": self.poke_interval},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        pipeline = Pipeline.model_validate_json(self.pipeline)
        ends, known = Ends(pipeline), dict[str, str]()
        while True:
            try:
                found = await self._look(pipeline.pipeline, ends)
            except Exception as error:  # noqa: BLE001 - nobody else would begin to watch again
                self._say(pipeline.pipeline, error, passes=ends.forget())
            else:
                new = [what for what, state in found.items() if known.get(what) != state]
                known = found
                if new:
                    yield TriggerEvent({"pipeline": pipeline.pipeline, "watched": self.watched, "new": new})
            await asyncio.sleep(self.poke_interval)

    def _say(self, pipeline: str, error: Exception, *, passes: bool) -> None:
        """What passes by itself is a warning; of others' errors, whose texts may show anything, their kind."""
        said = str(error) if isinstance(error, PgddlError) else f"{type(error).__name__} while it was looked for"
        if passes or (isinstance(error, PgddlError) and is_worth_retrying(error)):
            self.log.warning("%s is not watched now: %s", pipeline, said)
        else:
            self.log.error("%s is not watched until somebody sees to this: %s", pipeline, said)

    async def _look(self, pipeline: str, ends: Ends) -> dict[str, str]:
        """What stands, each with what makes it another one."""
        _, target = await ends.now()
        try:
            async with await connect_async(target, purpose="watch", pipeline=pipeline) as conn:
                return await standing(conn, pipeline, self.watched)
        except psycopg.Error as error:
            raise from_postgres(error, doing="looking at the journal") from None
