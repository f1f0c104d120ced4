"""Two databases with the same tables: what is done to the first is captured, and rebuilt on the second."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from airflow_provider_pgddl.demo.compare import compare_catalogs
from airflow_provider_pgddl.engine.capture import ddl_log
from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, ObjectMeta, TableMeta
from airflow_provider_pgddl.engine.ddl.rebuild import rebuild
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.server.connect import connect
from tests.integration.sessions import do


def versions(dsn: str) -> dict[int, TableMeta]:
    """Every table and view of a database, as the event triggers would describe it."""
    relations = (
        "SELECT c.oid::bigint FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname !~ '^(pg_|information_schema|pgddl)'"
    )
    with connect(dsn, purpose="test") as conn:
        return ddl_log.describe_relations(conn, [oid for (oid,) in conn.execute(relations)])


def named(metas: dict[int, TableMeta], name: str) -> TableMeta | None:
    return next((m for m in metas.values() if m["name"] == name), None)


def event(tag: str, subjects: Iterable[TableMeta], tables: Iterable[TableMeta], **more: Any) -> CapturedEvent:
    """An event on these tables, which tells no more than their versions."""
    objects: list[ObjectMeta] = [
        {
            "classid": "pg_class",
            "objid": m["oid"],
            "objsubid": 0,
            "tag": tag,
            "type": "table",
            "schema": m["schema"],
            "name": m["name"],
            "identity": f"{m['schema']}.{m['name']}",
            "table": None,
            "definition": None,
            "owner": m["owner"],
        }
        for m in subjects
    ]
    whole: dict[str, Any] = {
        "id": "1.1",
        "xid": "1",
        "seq": 1,
        "lsn": "0/1",
        "at": "",
        "batch": "",
        "tag": tag,
        "statement": "DO ''",
        "nested": True,
        "inner": None,
        "role": "postgres",
        "session_role": "postgres",
        "path": [],
        "settings": {},
        "names": {},
        "functions": {},
        "objects": objects,
        "dropped": [],
        "rewritten": [],
        "tables": {str(m["oid"]): m for m in tables},
        "disabled_for": [],
    }
    return whole | more  # type: ignore[return-value]


class Pair:
    """Two databases with the same tables; what is done to the first is rebuilt on the second."""

    def __init__(self, source: str, target: str) -> None:
        self.source, self.target = source, target
        self.statements: tuple[str, ...] = ()
        self.failed_on_source = False
        self._position: str | None = None
        with connect(source, purpose="test") as conn:
            migrations.apply(conn, "core")
            conn.execute("INSERT INTO pgddl.captures (pipeline, journal) VALUES ('p', 'j')")
            ddl_log.start(conn, "p", "queue")

    def both(self, *statements: str) -> None:
        do(self.source, *statements)
        do(self.target, *statements)

    def alter(self, name: str, *statements: str) -> None:
        """Done to one table; rebuilt from its two versions."""
        before = versions(self.source)
        do(self.source, *statements)
        after = versions(self.source)
        oid = next(m["oid"] for m in before.values() if m["name"] == name)
        tables = {oid, *after[oid]["descendants"]}
        self.run(event("ALTER TABLE", [after[oid]], [after[o] for o in tables]), before)

    def create(self, name: str, *statements: str) -> None:
        before = versions(self.source)
        do(self.source, *statements)
        after = versions(self.source)
        made = named(after, name)
        assert made is not None
        self.run(event("CREATE TABLE", [made], [made]), before)

    def captured(self, *statements: str) -> list[CapturedEvent]:
        """Run on the source, and recorded by its event triggers."""
        self.failed_on_source = True
        do(self.source, *statements)
        self.failed_on_source = False
        with connect(self.source, purpose="test") as conn, connect(self.source, purpose="test") as other:
            with conn.transaction():
                conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                found = ddl_log.read(conn, lambda: other, "p", "queue", self._position)
        assert found.lost == []
        self._position = found.position
        return found.events

    def follow(self, *statements: str) -> None:
        """Every event of these statements rebuilt, in order, with the versions going along."""
        known = versions(self.source)
        for what in self.captured(*statements):
            self.run(what, known)
            known |= {int(oid): meta for oid, meta in what["tables"].items()}
            for gone in what["dropped"]:
                known.pop(gone["objid"], None)

    def run(self, what: CapturedEvent, before: dict[int, TableMeta]) -> None:
        self.statements = rebuild(what, before)
        with psycopg.connect(self.target, options="-csearch_path=") as conn:
            for statement in self.statements:
                conn.execute(statement.encode())

    def differences(self, ignore: Iterable[str] = ()) -> list[str]:
        return compare_catalogs(self.source, self.target, ignore=ignore)
