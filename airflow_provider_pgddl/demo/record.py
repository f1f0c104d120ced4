"""What a run of the demo looked like over time, by the journal and the writers: `docs/pictures.py` draws it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import psycopg

from airflow_provider_pgddl.demo.traffic import Notes

STEP = 0.5
"""Seconds of one column of the writers' curve."""

_STAGES = """
SELECT s.pipeline, s.stage, extract(epoch FROM s.started_at)::float8, extract(epoch FROM s.finished_at)::float8
FROM pgddl.stage_runs s WHERE s.pipeline = ANY (%s) AND s.finished_at IS NOT NULL AND s.job_id NOT LIKE 'birth %%'
ORDER BY s.started_at
"""
_CHUNKS = """
SELECT t.pipeline, t.schema_name || '.' || t.table_name, extract(epoch FROM c.done_at)::float8, c.bytes
FROM pgddl.chunks c JOIN pgddl.tables t ON t.id = c.table_id
WHERE t.pipeline = ANY (%s) AND c.done_at IS NOT NULL ORDER BY c.done_at
"""
_WINDOWS = """
SELECT w.pipeline, extract(epoch FROM w.taken_at)::float8, extract(epoch FROM w.finished_at)::float8, w.keys
FROM pgddl.windows w WHERE w.pipeline = ANY (%s) ORDER BY w.window_no
"""


def write(
    path: Path,
    began: float,
    journals: Sequence[str],
    pipelines: Sequence[str],
    cut_overs: Sequence[tuple[str, float]],
    notes: Notes,
    lines: Sequence[tuple[float, str, str]],
) -> None:
    """One JSON object of a run that began at that moment (seconds since the epoch); its times count from there.
    `cut_overs` are moments, each with where to."""
    names = list(pipelines)

    def since(moment: float) -> float:
        return round(moment - began, 2)

    stages, chunks, windows = list[Any](), list[Any](), list[Any]()
    for journal in journals:
        with psycopg.connect(journal) as conn:
            for query, found in ((_STAGES, stages), (_CHUNKS, chunks), (_WINDOWS, windows)):
                found.extend(conn.execute(query.encode(), [names]).fetchall())
    stages.sort(key=itemgetter(2))
    recorded = {
        "stages": [(pipeline, stage, since(start), since(end)) for pipeline, stage, start, end in stages],
        "chunks": [(pipeline, table, since(done), size) for pipeline, table, done, size in chunks],
        "windows": [(pipeline, since(taken), since(done), keys) for pipeline, taken, done, keys in windows],
        "writers": _curve(began, notes),
        "cut_overs": [(where_to, since(moment)) for where_to, moment in cut_overs],
        "committed": notes.committed.total(),
        "lines": [(round(at, 1), label, text) for at, label, text in lines],
    }
    path.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _curve(began: float, notes: Notes) -> dict[str, Any]:
    """Transactions that ended in each step of half a second, and the longest of them in ms."""
    ended: dict[int, int] = {}
    longest: dict[int, float] = {}
    for start, seconds, _ in notes.latencies:
        step = int((start + seconds - began) / STEP)
        ended[step] = ended.get(step, 0) + 1
        longest[step] = max(longest.get(step, 0.0), seconds)
    steps = range(max(ended, default=-1) + 1)
    return {
        "step": STEP,
        "ended": [ended.get(step, 0) for step in steps],
        "longest_ms": [round(1000 * longest.get(step, 0.0)) for step in steps],
    }
