"""A source whose DDL is captured, as tests read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.capture import change_log, ddl_log
from airflow_provider_pgddl.engine.capture.ddl_log import Read, Transport
from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.server.connect import Session, connect
from tests.integration.sessions import do


@dataclass
class Source:
    """A source whose DDL is captured, and where the pipeline is in it."""

    dsn: str
    transport: Transport
    pipeline: str = "shop"
    position: str | None = None
    cluster: Cluster | None = None

    @contextmanager
    def session(self) -> Iterator[Session]:
        with connect(self.dsn, purpose="test", pipeline=self.pipeline) as session:
            yield session

    def start(self) -> None:
        with self.session() as session:
            migrations.apply(session, "core")
            change_log.register_pipeline(session, self.pipeline, "journal")
            ddl_log.start(session, self.pipeline, self.transport)

    def stop(self) -> None:
        with self.session() as session:
            ddl_log.stop(session, self.pipeline)

    def read(self, session: Session | None = None, other: Session | None = None) -> Read:
        """Without confirming: the same again next time."""
        with ExitStack() as stack:
            session = session or stack.enter_context(self.session())
            other = other or stack.enter_context(self.session())
            with session.transaction():
                session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                return ddl_log.read(session, lambda: other, self.pipeline, self.transport, self.position)

    def events(self) -> list[CapturedEvent]:
        """What is new."""
        read = self.read()
        with self.session() as other:
            ddl_log.confirm(other, self.pipeline, read)
        self.position = read.position
        assert read.lost == []
        return read.events

    def tags(self) -> list[str]:
        return [event["tag"] for event in self.events()]

    def after(self, *statements: str) -> list[CapturedEvent]:
        do(self.dsn, *statements)
        return self.events()


def only(events: list[CapturedEvent]) -> CapturedEvent:
    assert len(events) == 1, [e["tag"] for e in events]
    return events[0]


def table(event: CapturedEvent, name: str) -> Any:
    found = [meta for meta in event["tables"].values() if meta["name"] == name]
    assert len(found) == 1, [meta["name"] for meta in event["tables"].values()]
    return found[0]


def column(event: CapturedEvent, of: str, name: str) -> Any:
    return next(c for c in table(event, of)["columns"] if c["name"] == name)


def identities(event: CapturedEvent) -> list[str]:
    return [d["identity"] for d in event["dropped"]]
