"""Many `airflow` calls in one process, as starting one takes longer than most run: a JSON list of arguments a line.

Says after each how it ended.
"""

import json
import sys

from airflow.__main__ import main

for line in iter(sys.stdin.readline, ""):
    sys.argv = ["airflow", *json.loads(line)]
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    sys.stderr.flush()
    print(f"=== airflow ended with {code}", flush=True)
