"""The Spark application of the stage `verify`: spark-submit verify.py JOBFILE."""

import sys

from airflow_provider_pgddl.engine.launch.driver import main

if __name__ == "__main__":
    sys.exit(main("verify", sys.argv[1:]))
