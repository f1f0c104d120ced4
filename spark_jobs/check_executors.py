"""The Spark application of `pgddl check --executors`: spark-submit check_executors.py JOBFILE."""

import sys

from airflow_provider_pgddl.engine.launch import check_executors
from airflow_provider_pgddl.engine.launch.driver import main

if __name__ == "__main__":
    sys.exit(main(check_executors.NAME, sys.argv[1:], check_executors.run))
