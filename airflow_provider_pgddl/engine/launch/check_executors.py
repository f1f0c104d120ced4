"""`pgddl check --executors`: what preflight asks of executors, as an application of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_provider_pgddl.engine.errors import EXIT_DONE, EXIT_REFUSED
from airflow_provider_pgddl.engine.job.context import workers_to_have
from airflow_provider_pgddl.engine.job.executor_dsns import executor_dsns
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.parallel.executor_settings import Settings
from airflow_provider_pgddl.engine.preflight.executors import executors
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.progress import say
from airflow_provider_pgddl.engine.server.connect import connect

NAME = "check_executors"


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found, in the form of a stage's result."""

    pipeline: str
    executors: int
    findings: list[Finding] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return EXIT_REFUSED if any(f.severity == "error" for f in self.findings) else EXIT_DONE

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": NAME,
            "pipeline": self.pipeline,
            "run": 0,
            "state": "done",
            "tables": {},
            "blocked": [],
            "figures": {"tasks": self.executors},
            "findings": [finding.to_json() for finding in self.findings],
        }


def run(job: Job) -> Checked:
    """See `preflight.executors`."""
    pipeline = job.pipeline
    settings = Settings(pipeline.spark.wait, pipeline.spark.needs, lambda text: say("check", text))
    with (
        connect(job.conninfo("source"), purpose="check", pipeline=pipeline.pipeline) as source,
        connect(job.conninfo("target"), purpose="check", pipeline=pipeline.pipeline) as target,
    ):
        workers = workers_to_have(pipeline, source, target, settings.say)
    seen, findings = executors(pipeline.pipeline, executor_dsns(job), workers, settings)
    for host, python in dict.fromkeys((one.host, one.python) for one in seen):
        settings.say(f"executor {host} runs {python}")
    for finding in findings:
        settings.say(str(finding))
    return Checked(pipeline.pipeline, len(seen), findings)
