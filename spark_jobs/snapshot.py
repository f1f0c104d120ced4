"""The Spark application of the stage `snapshot`: spark-submit snapshot.py JOBFILE."""

import sys

from airflow_provider_pgddl.engine.launch.driver import main

if __name__ == "__main__":
    sys.exit(main("snapshot", sys.argv[1:]))
