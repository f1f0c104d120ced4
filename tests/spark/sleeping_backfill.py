"""A Spark application whose workers wait for Postgres until they are stopped; all around that is the real thing."""

from __future__ import annotations

import sys
import time

import psycopg

from airflow_provider_pgddl.engine import job as jobs
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.spark import spread
from tests.spark import work


def run(job: jobs.Job) -> None:
    conninfo = job.conninfo("source")
    print("at work", flush=True)
    with psycopg.connect(conninfo, application_name="pgddl-test:driver"):
        spread(work.sleep_in_postgres, [conninfo, conninfo], workers=2, app="sleep")
        time.sleep(600)


stages.run = run  # type: ignore[assignment]

if __name__ == "__main__":
    sys.exit(jobs.main("backfill", sys.argv[1:]))
