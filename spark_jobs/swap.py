"""The Spark application of the stage `swap`: spark-submit swap.py JOBFILE."""

import sys

from airflow_provider_pgddl.engine.launch.driver import main

if __name__ == "__main__":
    sys.exit(main("swap", sys.argv[1:]))
