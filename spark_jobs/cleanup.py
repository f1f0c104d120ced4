"""The Spark application of the stage `cleanup`: spark-submit cleanup.py JOBFILE."""

import sys

from airflow_provider_pgddl.engine.launch.driver import main

if __name__ == "__main__":
    sys.exit(main("cleanup", sys.argv[1:]))
