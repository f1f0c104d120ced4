"""A developer who goes on altering the shop's tables while they are moved."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Self

import psycopg
from psycopg import errors

PAUSE = 4.0  # seconds between two changes

CHANGES = (
    "ALTER TABLE shop.customers ADD COLUMN newsletter boolean NOT NULL DEFAULT false",
    "CREATE TABLE shop.reviews (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, sku text NOT NULL, stars integer)",
    "INSERT INTO shop.reviews (sku, stars) SELECT sku, 1 + length(sku) % 5 FROM shop.products",
    "ALTER TABLE shop.warehouses RENAME COLUMN opens TO opens_at",
    "ALTER TABLE shop.reviews ADD COLUMN written_at timestamptz NOT NULL DEFAULT now()",
    "DO $$ BEGIN ALTER TABLE shop.reviews ADD CHECK (stars BETWEEN 1 AND 5); UPDATE shop.reviews SET stars = 5; END $$",
    "CREATE INDEX reviews_by_sku ON shop.reviews (sku)",
    "ALTER TABLE shop.reviews ADD FOREIGN KEY (sku) REFERENCES shop.products",
)

# On the server that the shop has moved to: these follow back.
CHANGES_THERE = (
    "ALTER TABLE shop.products ADD COLUMN origin text DEFAULT 'here'",
    "UPDATE shop.products SET origin = 'there' WHERE sku < 'SKU-000100'",
    "CREATE INDEX products_by_origin ON shop.products (origin)",
)

# From the moment at which changes are captured, until the comparison begins: then the schema is at rest.
CAPTURED = "SELECT EXISTS (SELECT FROM pg_catalog.pg_event_trigger WHERE evtname ~ '^pgddl_')"
AT_REST = """
SELECT EXISTS (SELECT FROM pgddl.stage_runs WHERE pipeline = %s AND stage IN ('verify', 'swap'))
"""


class Developer:
    """Runs its changes on the source, one after the other, while a pipeline is between setup and verify."""

    def __init__(
        self, source: str, journal: str, pipeline: str, say: Callable[[str], None], changes: Sequence[str] = CHANGES
    ) -> None:
        self._source, self._journal, self._pipeline, self._say = source, journal, pipeline, say
        self._changes = changes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="developer", daemon=True)
        self.done = 0
        self.error: psycopg.Error | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with psycopg.connect(self._source, autocommit=True) as source:
                while not self._over.wait(0.5):
                    if source.execute(CAPTURED).fetchone() == (True,):
                        break
                source.execute("SET lock_timeout = '500ms'")
                for change in self._changes:
                    if self._over.wait(PAUSE) or self._is_at_rest() or not self._change(source, change):
                        return
        except psycopg.Error as error:
            self.error = error

    def _change(self, source: psycopg.Connection[tuple[object, ...]], change: str) -> bool:
        """As developers do it: a short wait for the lock, and again."""
        while not self._over.is_set():
            try:
                source.execute(change.encode())
            except errors.LockNotAvailable:
                continue
            self.done += 1
            self._say(change)
            return True
        return False

    def _is_at_rest(self) -> bool:
        with psycopg.connect(self._journal) as journal:
            return journal.execute(AT_REST, [self._pipeline]).fetchone() == (True,)
