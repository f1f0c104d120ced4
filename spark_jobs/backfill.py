"""The Spark application of the stage `backfill`: spark-submit backfill.py JOBFILE."""

import sys

from airflow_provider_pgddl.engine.launch.driver import main

if __name__ == "__main__":
    sys.exit(main("backfill", sys.argv[1:]))
