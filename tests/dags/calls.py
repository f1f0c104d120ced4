"""Several `airflow` calls in one process: starting one takes longer than most of them run.

Reads a JSON list of arguments from each line of stdin; goes on whatever the exit codes are.
"""

import json
import sys

from airflow.__main__ import main

for line in sys.stdin.read().splitlines():
    sys.argv = ["airflow", *json.loads(line)]
    try:
        main()
    except SystemExit as end:
        print(f"airflow {' '.join(sys.argv[1:])} ended with {end.code}", flush=True)
