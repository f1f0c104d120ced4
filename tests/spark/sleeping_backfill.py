"""A Spark application whose workers wait for Postgres until they are stopped; all around that is the real thing."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import psycopg

from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.job import file as jobs
from airflow_provider_pgddl.engine.launch import driver
from airflow_provider_pgddl.engine.parallel.spark import spread
from tests.spark import work


def ring(conninfo: str, task: int) -> None:
    """The task's timeout, as soon as both workers are at work, instead of some seconds that may be too few."""
    with psycopg.connect(conninfo, autocommit=True) as server:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgddl-test:worker'"
        while server.execute(query).fetchone() != (2,):
            time.sleep(0.1)
    os.kill(task, signal.SIGALRM)


def run(job: jobs.Job) -> None:
    conninfo = job.conninfo("source")
    print("at work", flush=True)
    if os.environ.get("PGDDL_TEST_TIMEOUT"):
        assert job.watch is not None
        threading.Thread(target=ring, args=(conninfo, job.watch.pid), daemon=True).start()
    with psycopg.connect(conninfo, application_name="pgddl-test:driver"):
        spread(work.sleep_in_postgres, [conninfo, conninfo], workers=2, app="sleep")
        time.sleep(600)


stages.run = run  # type: ignore[assignment]

if __name__ == "__main__":
    sys.exit(driver.main("backfill", sys.argv[1:]))
