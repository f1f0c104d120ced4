"""How many sessions a run had at once."""

from __future__ import annotations

import threading
from typing import Self

import psycopg

from tests.integration.lifecycle import Lifecycle


class Peaks:
    """The most sessions of ours that there were on each side at once, while the block runs."""

    def __init__(self, move: Lifecycle) -> None:
        self.of = {move.source: 0, move.target: 0}
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._look, args=[dsn], daemon=True) for dsn in self.of]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _look(self, dsn: str) -> None:
        query = """SELECT count(*) FROM pg_stat_activity
                   WHERE application_name LIKE 'pgddl:%' AND datname = current_database()"""
        with psycopg.connect(dsn, autocommit=True, application_name="peaks") as conn:
            while not self._over.wait(0.02):
                row = conn.execute(query).fetchone()
                assert row is not None
                self.of[dsn] = max(self.of[dsn], row[0])
