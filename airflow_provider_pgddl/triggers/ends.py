"""How a trigger gets to a pipeline's databases, without holding up the triggers beside it."""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from asgiref.sync import sync_to_async

from airflow_provider_pgddl.connections import has_token, secrets
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.server.credentials import MAX_AGE


class Ends:
    """The connection strings of a pipeline's source and target (in place both are the same). Airflow is asked for its
    connections each time, a cloud for a token once in ten minutes, and after `forget`."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._made: tuple[float, dict[str, Any], tuple[str, str]] | None = None
        self._is_old = False

    async def now(self) -> tuple[str, str]:
        """The errors of `connections.secrets`."""
        connections = await _connections(self._pipeline)
        made = self._made
        self._is_old = made is not None and made[1] == connections and time.monotonic() - made[0] <= MAX_AGE
        if made is not None and self._is_old:
            return made[2]
        asked = time.monotonic()
        # A token comes over the network, and its hook looks up connections of its own, which works in such a thread.
        find = sync_to_async(secrets, thread_sensitive=False)
        found = await find(self._pipeline, connections.get, os.environ)
        ends = found["source"], found.get("target", found["source"])
        if any(has_token(one) for one in connections.values()):
            self._made = asked, connections, ends
        return ends

    def forget(self) -> bool:
        """A server may have refused the token: whether a new one may do."""
        self._made = None
        return self._is_old


async def _connections(pipeline: Pipeline) -> dict[str, Any]:
    """The pipeline's Airflow connections by id, as `connections.secrets` takes them; unknown ones are left out.

    `extra_dejson` of a connection calls back to the supervisor, which would block the triggerer: it is made here."""
    found = {}
    for end in filter(None, (pipeline.source, pipeline.target)):
        if end.conn_id is None or end.conn_id in found:
            continue
        try:
            connection = await BaseHook.aget_connection(end.conn_id)
        except AirflowNotFoundException:
            continue
        found[end.conn_id] = SimpleNamespace(
            conn_id=connection.conn_id,
            conn_type=connection.conn_type,
            host=connection.host,
            port=connection.port,
            schema=connection.schema,
            login=connection.login,
            password=connection.password,
            extra_dejson=_extra(connection.extra),
        )
    return found


def _extra(text: str | None) -> dict[str, Any]:
    """A connection's extra; {} where it is no JSON, as Airflow takes it."""
    try:
        return dict(json.loads(text or "{}"))
    except ValueError:
        return {}
