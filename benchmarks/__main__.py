"""All benchmarks; with --small the ratios in some minutes, without it those by which the goals are judged.

    python -m benchmarks                     every benchmark in full, into benchmarks/results
    python -m benchmarks --small             small tables, one round, of those that have a peer beside them
    python -m benchmarks rewrite catch_up    these alone; what the others found the last time stays

The results are a Markdown table and the same as JSON, a list of objects with `measure`, `ours`, `peer`, `peer_name`,
`ratio`, `goal` and `met`. A peer that is missing is left out, with a line that says how to have it.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import sys
import time
import traceback
from pathlib import Path

import airflow_provider_pgddl
from airflow_provider_pgddl.engine.parallel import spark
from benchmarks.report import Report, machine, markdown, record

BENCHMARKS = ("copy_rows", "start_up", "catch_up", "rewrite", "way_back", "growth", "ddl_cost", "schema_gate")
BESIDE_PEERS = ("copy_rows", "start_up", "catch_up", "rewrite")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--small", action="store_true", help="small tables, one round; nothing is recorded")
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    for folder in (Path(airflow_provider_pgddl.__file__).parent, spark.application_folder()):
        compileall.compile_dir(folder, quiet=1)  # as an installation does it, and every process would without
    found, failed = dict[str, Report](), list[str]()
    for name in options.names or (BESIDE_PEERS if options.small else BENCHMARKS):
        print(f"{name} …", file=sys.stderr, flush=True)
        started = time.monotonic()
        try:
            found[name] = importlib.import_module(f"benchmarks.{name}").run(small=options.small)
        except (Exception, SystemExit):  # noqa: BLE001 - the others are measured all the same
            traceback.print_exc()
            failed.append(name)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    measures = [m.to_json() for report in found.values() for m in report.measures]
    print(markdown(measures, [note for report in found.values() for note in report.notes], machine()))
    if not options.small:
        print(f"written to {record(found)}", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
