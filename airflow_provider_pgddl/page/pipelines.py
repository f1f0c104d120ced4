"""Which pipelines there are: those that the operators of a DAG have described when it was parsed."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_provider_pgddl.description import FIELD

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FoundPipeline:
    """A pipeline of a DAG. `source` and `target`: ids of Airflow connections, None where the file gives a dsn: this
    process resolves none. In place both are the same. `tasks`: the ids of those of the DAG that are about it. `file`:
    the path of the pipeline's file as the DAG has it, None where it is written in the DAG."""

    dag_id: str
    pipeline: str
    source: str | None
    target: str | None
    in_place: bool
    tasks: frozenset[str] = frozenset()
    file: str | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedTask:
    """A task of a DAG's run that has begun and not ended, or waits for its turn; `words` are about its state."""

    task_id: str
    words: str
    since: datetime | None


_WORDS = {
    "running": "runs",
    "queued": "is queued",
    "up_for_retry": "is tried again later",
    "up_for_reschedule": "waits and looks again",
    "deferred": "waits",
    "awaiting_input": "waits for a person's answer",
}
MOST_TASKS = 10


def unfinished(dag_id: str) -> list[UnfinishedTask]:
    """Who is at work, and who waits, by Airflow's own record."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    found = TaskInstance
    with create_session() as session:
        rows = session.execute(
            select(found.task_id, found.state, found.start_date)
            .where(found.dag_id == dag_id, found.state.in_(_WORDS))
            .order_by(found.start_date)
            .limit(MOST_TASKS)
        ).all()
    return [UnfinishedTask(task_id, _WORDS[state], since) for task_id, state, since in rows]


_known: dict[str, tuple[str, tuple[FoundPipeline, ...]]] = {}  # DAG → hash of it, and what was found in it
_lock = threading.Lock()


def pipelines_of(dag_ids: Collection[str]) -> list[FoundPipeline]:
    """Those of these DAGs, by name. Asks Airflow's database; a DAG is read once, until it changes."""
    from airflow.models.dag import DagModel
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    found: list[FoundPipeline] = []
    with create_session() as session, _lock:
        kept = SerializedDagModel
        newest = select(kept.dag_id, func.max(kept.created_at).label("at")).group_by(kept.dag_id).subquery()
        rows = session.execute(
            select(kept.dag_id, kept.dag_hash, kept.id)
            .join(newest, (kept.dag_id == newest.c.dag_id) & (kept.created_at == newest.c.at))
            .join(DagModel, DagModel.dag_id == kept.dag_id)
            .where(DagModel.is_stale.is_(False))
        ).all()
        for dag_id, digest, row_id in rows:
            if dag_id not in dag_ids:
                continue
            if _known.get(dag_id, ("", ()))[0] != digest:
                row = session.get(SerializedDagModel, row_id)
                _known[dag_id] = (digest, tuple(_in_dag(dag_id, row.data if row is not None else None)))
            found.extend(_known[dag_id][1])
        for gone in _known.keys() - {dag_id for dag_id, _, _ in rows}:
            del _known[gone]
    return sorted(found, key=lambda one: (one.pipeline, one.dag_id))


def _in_dag(dag_id: str, data: Mapping[str, Any] | None) -> Iterator[FoundPipeline]:
    about: dict[str, set[str]] = {}
    for task in (data or {}).get("dag", {}).get("tasks", ()):
        fields = task.get("__var", task)
        if isinstance(text := fields.get(FIELD), str):
            about.setdefault(text, set()).add(fields["task_id"])
    for text, tasks in about.items():
        found = _described(dag_id, text, tasks)
        if found is not None:
            yield found


def _described(dag_id: str, text: str, tasks: Collection[str]) -> FoundPipeline | None:
    """None for what no version of ours has said, or not one that this process understands; the log has it. A field of
    that name may be somebody else's."""
    try:
        told = json.loads(text)
        pipeline, in_place = told["pipeline"], told["in_place"]
        ends = source, target, file = told["source"], told["target"], told.get("file")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("DAG %s: task %s says nothing of a pipeline (%s)", dag_id, min(tasks), type(error).__name__)
        return None
    known = isinstance(pipeline, str) and isinstance(in_place, bool)
    if not known or not all(one is None or isinstance(one, str) for one in ends):
        log.warning("DAG %s: task %s says nothing of a pipeline (other types)", dag_id, min(tasks))
        return None
    return FoundPipeline(dag_id, pipeline, source, target, in_place, frozenset(tasks), file)
