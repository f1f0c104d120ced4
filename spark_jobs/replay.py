"""The Spark application of the stage `replay`: spark-submit replay.py JOBFILE."""

import sys

from airflow_provider_pgddl.engine.launch.driver import main

if __name__ == "__main__":
    sys.exit(main("replay", sys.argv[1:]))
