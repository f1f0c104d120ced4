"""A target that captured DDL is applied to, one run that holds the pipeline, and one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.engine.apply.captured_events import EventOutcome, apply_captured
from airflow_provider_pgddl.engine.ddl.decision import Decision
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.rights.trust import powers
from airflow_provider_pgddl.engine.server.connect import Session, connect
from tests.integration.sessions import do, one, wait_for

OWNER = "pgddl_apply_owner"
WEAK = "pgddl_apply_weak"


@dataclass
class Target:
    """A target with a journal, and one run that holds the pipeline's lease."""

    dsn: str
    make: Callable[..., Pipeline]
    stack: ExitStack
    number: int = 0
    pipeline: Pipeline = field(init=False)

    def __post_init__(self) -> None:
        self.pipeline = self.make()
        with connect(self.dsn, purpose="test") as conn:
            migrations.apply(conn, "journal")
        self.start_run()

    def start_run(self) -> None:
        """A run takes over; the session of the last one is left as it is."""
        self.lease = self.stack.enter_context(Lease(self.dsn, "shop", "replay", None))
        self.lease.take()
        self.conn = self.stack.enter_context(self.session("stage"))
        self.journal = DdlJournal(self.conn, "shop", 1)

    def session(self, purpose: str = "watch") -> Session:
        return connect(self.dsn, purpose=purpose, pipeline="shop", token=self.lease.token)

    def die(self) -> None:
        """As kill -9 does it to a run: its sessions end where they are."""
        self.lease.close()
        self.conn.close()

    def record(self, *statements: str, tag: str = "ALTER TABLE", verdict: str = "apply", concurrently: bool = False,
               kind: str = "table", approval: str = "auto", lsn: str | None = None, **event: Any) -> int:  # fmt: skip
        self.number += 1
        captured = {
            "id": f"{self.number}.1", "xid": str(self.number), "seq": 1, "lsn": lsn or f"0/{self.number:X}00", "at": "",
            "batch": "", "tag": tag, "statement": ";".join(statements), "nested": False, "inner": None,
            "role": "postgres", "session_role": "postgres", "path": ["pg_catalog", "public"], "settings": {},
            "names": {}, "functions": {}, "objects": [], "dropped": [], "rewritten": [], "tables": {},
            "disabled_for": [], **event,
        }  # fmt: skip
        masks = {int(oid): [c["attnum"] for c in meta["columns"]] for oid, meta in captured["tables"].items()}
        touches = (("public", "t"),)
        decided = Decision(captured, verdict, statements, "in scope", (), touches, False, concurrently, kind)
        event_id = self.journal.record(decided, approval=approval, masks=masks)
        assert event_id is not None
        return event_id

    def apply(self, event_id: int, *, trusted: bool = True, copies_only: bool = False, **ddl: Any) -> EventOutcome:
        """`trusted`: whether the source says so of the client, where the target lacks its role."""
        pipeline = self.make(**ddl) if ddl else self.pipeline
        row = self.journal.row(event_id)
        return apply_captured(
            self.conn, self.session, pipeline, self.journal, self.lease.fence, row,
            trusted_on_source=lambda _: trusted,
            powers_on_source=lambda role: powers(self.conn, [role]).get(role, set()), copies_only=copies_only,
        )  # fmt: skip

    def status(self, event_id: int) -> str:
        return one(self.dsn, "SELECT status FROM pgddl.ddl_events WHERE id = %s", event_id)

    def attempts(self, event_id: int) -> list[str | None]:
        with psycopg.connect(self.dsn) as conn:
            query = "SELECT outcome FROM pgddl.ddl_attempts WHERE event_id = %s ORDER BY number"
            return [row[0] for row in conn.execute(query, [event_id])]

    def columns(self, table: str = "public.t") -> list[str]:
        live = "attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
        return one(self.dsn, f"SELECT array_agg(attname ORDER BY attnum) FROM pg_attribute WHERE {live}", table)


@contextmanager
def opened(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """Over an empty database."""
    monkeypatch.setenv("PGDDL_TEST_DSN", dsn)

    def make(**ddl: Any) -> Pipeline:
        ends = {"source": {"conn_id": "elsewhere"}, "target": {"dsn": "${PGDDL_TEST_DSN}"}}
        content = {"pipeline": "shop", "tables": {"include": ["public.*"]}, "ddl": {"retry_for": "5s", **ddl}}
        return load_pipeline({**content, **ends})

    do(dsn, "CREATE TABLE public.t (id int PRIMARY KEY)")
    with psycopg.connect(dsn, autocommit=True) as conn:
        for role in (OWNER, WEAK):
            if not conn.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone():
                conn.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
    with ExitStack() as stack:
        yield Target(dsn, make, stack)


SETTINGS = ("role", "search_path", "TimeZone", "DateStyle", "lock_timeout", "default_tablespace")


def settings(conn: Session) -> list[str]:
    return [conn.execute("SELECT current_setting(%s)", [name]).fetchone()[0] for name in SETTINGS]


# What refuses a transaction.
BUILD = "CREATE INDEX CONCURRENTLY made ON public.t (id)"
VALID = "SELECT (SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('public.made'))"


def concurrent(target: Target, statement: str, **event: Any) -> int:
    return target.record(statement, tag="CREATE INDEX", concurrently=True, kind="index", **event)


KILLED = """
import sys
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.apply.captured_events import apply_captured
from airflow_provider_pgddl.engine.journal.ddl import DdlJournal
from airflow_provider_pgddl.engine.journal.dump_events import EventRow
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.journal.lease import Fence, Lease
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
dsn, event = sys.argv[1], int(sys.argv[2])
with Lease(dsn, "shop", "replay", None) as lease:
    lease.take()
    session = lambda: connect(dsn, purpose="stage", pipeline="shop", token=lease.token)
    conn = session()
    pipeline = load_pipeline({
        "pipeline": "shop", "source": {"conn_id": "elsewhere"}, "target": {"dsn": "${PGDDL_TEST_DSN}"},
        "tables": {"include": ["public.*"]},
    })
    journal = DdlJournal(conn, "shop", 1)
    apply_captured(
        conn, session, pipeline, journal, lease.fence, journal.row(event), trusted_on_source=lambda _: True,
        powers_on_source=lambda _: (),
    )
"""


def killed_while(target: Target, event: int, condition: Callable[[], object]) -> None:
    """A run in a process of its own, ended with kill -9 once this is so; its sessions end as ours notice it."""
    target.lease.close()
    with subprocess.Popen([sys.executable, "-c", KILLED, target.dsn, str(event)], env=dict(os.environ)) as process:
        try:
            wait_for(lambda: process.poll() is not None or condition())
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(30)
    ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgddl:shop:%stage'"
    wait_for(lambda: one(target.dsn, f"{ours} AND pid <> {target.conn.info.backend_pid}") == 0)
