"""A Spark application whose part holds a connection string, and nothing else: what passes on the wire is all of it."""

from __future__ import annotations

import os

from airflow_provider_pgddl.engine.parallel.executor_settings import Settings
from airflow_provider_pgddl.engine.parallel.spark import spread
from tests.spark import work

if __name__ == "__main__":
    part = {"conninfo": f"host=127.0.0.1 password={os.environ['PGDDL_TEST_WORD']}", "rows": 3}
    for _ in range(3):
        print(spread(work.rows_of, [part, part], workers=2, app="wire", settings=Settings(needs="nothing")))
