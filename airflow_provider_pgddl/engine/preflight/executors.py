"""Whether Spark's executors can do a pipeline's work: asked of executors themselves, before anything is touched."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.parallel.executor_facts import AskedOfExecutor, Seen, look
from airflow_provider_pgddl.engine.parallel.executor_settings import Settings
from airflow_provider_pgddl.engine.preflight.findings import Finding

CLOCKS = 30.0  # seconds by which an executor's clock may be wrong: certificates, tickets and logs go by it


def executors(
    pipeline: str, dsns: Sequence[tuple[str, str]], workers: int, settings: Settings
) -> tuple[list[Seen], list[Finding]]:
    """What as many tasks as can run beside each other, at most `workers`, have found, and what of it is in the way:
    Python, packages, routes to both databases, clocks. Retry where there is no executor."""
    from airflow_provider_pgddl.engine.parallel.spark import spread, start

    app = f"pgddl check {pipeline}"
    try:
        slots = start(app, workers=workers, settings=settings)
        began = time.time()
        seen = spread(
            look, [AskedOfExecutor(tuple(dsns), pipeline)] * slots, workers=workers, app=app, settings=settings
        )
    except PreflightRefused as refused:
        return [], [Finding("error", "executors", "pipeline", None, refused.what, refused.todo)]
    return seen, list(dict.fromkeys(_findings(seen, began, time.time())))


def _findings(seen: Sequence[Seen], began: float, ended: float) -> Iterator[Finding]:
    for one in seen:
        for what, todo in one.unable:
            yield Finding("error", "executors", "pipeline", None, f"executor {one.host} ({one.python}) {what}", todo)
        wrong = max(began - one.clock, one.clock - ended)
        if wrong > CLOCKS:
            what = f"the clock of executor {one.host} is {wrong:.0f} s from the driver's"
            yield Finding("error", "executors", "pipeline", None, what, "set both by NTP")
