"""The Spark application of the stage `setup`: spark-submit setup.py JOBFILE."""

import sys

from airflow_provider_pgddl.engine.launch.driver import main

if __name__ == "__main__":
    sys.exit(main("setup", sys.argv[1:]))
