"""The instant of a cut-over, held for a comparison that takes seconds, by plain SQL and beside the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any

import psycopg

from airflow_provider_pgddl.demo.airflow_run import end_process
from airflow_provider_pgddl.demo.compare import Positions, TableDifference, diff_sequences, sequence_positions
from airflow_provider_pgddl.demo.writers import Writers


class Crossing:
    """Both databases at the instant of the cut-over: the source is fenced, the target not yet written to."""

    def __init__(self, title: str, source: str, target: str, writers: Writers) -> None:
        self.title, self.source, self.target = title, source, target
        self.committed = 0  # transactions up to then
        self._writers = writers
        self._holder = psycopg.connect(target, autocommit=True, application_name="pgddl_demo:compare")
        self._snapshot = ""
        self._positions: Positions = {}
        self._comparison: subprocess.Popen[str] | None = None
        self._starter: threading.Thread | None = None
        self._closing = threading.Event()

    def at_the_cut_over(self) -> None:
        """Keeps the target's state, in milliseconds, for a comparison that takes seconds: the writers are waiting."""
        self._writers.spare_truncate = True
        self.committed = self._writers.notes.committed.total()
        self._holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        row = self._holder.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        self._snapshot = row[0]
        self._positions = sequence_positions(self.target)

    def compare_in_background(self) -> None:
        self._starter = threading.Thread(target=self._compare, name="comparison", daemon=True)
        self._starter.start()

    def _compare(self) -> None:
        # Not before a writer has got through: the comparison's load is not the move's.
        while not self._writers.accepted.wait(0.1):
            if self._closing.is_set():
                return
        module = "airflow_provider_pgddl.demo.compare"
        command = [sys.executable, "-m", module, "PGDDL_DEMO_SOURCE", "PGDDL_DEMO_TARGET"]
        command += ["--rows-only", "--json", "--target-snapshot", self._snapshot]
        # A process of its own, so that the merge does not hold up the writers' threads.
        self._comparison = subprocess.Popen(
            command,
            env={**os.environ, "PGDDL_DEMO_SOURCE": self.source, "PGDDL_DEMO_TARGET": self.target},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def results(self) -> list[TableDifference]:
        assert self._starter is not None
        self._starter.join()
        assert self._comparison is not None
        output, _ = self._comparison.communicate()
        self._holder.close()
        self._writers.spare_truncate = False
        return [TableDifference(**result) for result in json.loads(output)["tables"]]

    def sequences(self) -> list[Any]:
        return diff_sequences(sequence_positions(self.source), self._positions)

    def close(self) -> None:
        self._closing.set()
        self._holder.close()
        if self._starter is not None:
            self._starter.join()
        if self._comparison is not None:
            end_process(self._comparison)
