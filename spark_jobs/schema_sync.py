"""The Spark application of the stage `schema_sync`: spark-submit schema_sync.py JOBFILE."""

import sys

from airflow_provider_pgddl.engine.launch.driver import main

if __name__ == "__main__":
    sys.exit(main("schema_sync", sys.argv[1:]))
