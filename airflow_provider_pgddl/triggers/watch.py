"""What an asset's watcher waits for: that DDL waits for a person, or that a mismatch stands."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any, Literal

import psycopg
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_pgddl.connections import secrets
from airflow_provider_pgddl.engine.errors import PgddlError, from_postgres
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.server.connect import connect_async
from airflow_provider_pgddl.triggers.schema import airflow_connections, standing

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
        known = dict[str, str]()
        while True:
            try:
                found = await self._look(pipeline)
            except PgddlError as error:
                self.log.warning("%s is not watched now: %s", pipeline.pipeline, error)
            else:
                new = [what for what, state in found.items() if known.get(what) != state]
                known = found
                if new:
                    yield TriggerEvent({"pipeline": pipeline.pipeline, "watched": self.watched, "new": new})
            await asyncio.sleep(self.poke_interval)

    async def _look(self, pipeline: Pipeline) -> dict[str, str]:
        """What stands, each with what makes it another one."""
        found = secrets(pipeline, (await airflow_connections(pipeline)).get, os.environ)
        target = found.get("target", found["source"])
        try:
            async with await connect_async(target, purpose="watch", pipeline=pipeline.pipeline) as conn:
                return await standing(conn, pipeline.pipeline, self.watched)
        except psycopg.Error as error:
            raise from_postgres(error, doing="looking at the journal") from None
