"""The Spark application of the stage `revert`: spark-submit revert.py JOBFILE."""

import sys

from airflow_provider_pgddl.engine.launch.driver import main

if __name__ == "__main__":
    sys.exit(main("revert", sys.argv[1:]))
