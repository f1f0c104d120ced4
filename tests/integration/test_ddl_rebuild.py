"""Rebuilt statements, run on the servers: what they do is in the catalog, not in their text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import compare_catalogs
from airflow_provider_pgddl.engine.ddl.captured import CapturedEvent, ObjectMeta, TableMeta
from airflow_provider_pgddl.engine.ddl.rebuild import rebuild
from tests.integration.sessions import do

DESCRIBE = """
SELECT c.oid::int, jsonb_build_object(
  'oid', c.oid::int, 'schema', n.nspname, 'name', c.relname, 'kind', c.relkind, 'persistence', c.relpersistence,
  'owner', c.relowner::regrole::text, 'replica_identity', c.relreplident,
  'replica_index', (SELECT ic.relname FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid
                    WHERE i.indrelid = c.oid AND i.indisreplident),
  'columns', coalesce((SELECT jsonb_agg(jsonb_build_object(
      'attnum', a.attnum, 'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod), 'type_oid', a.atttypid::int,
      'typmod', a.atttypmod, 'collation', CASE WHEN a.attcollation <> t.typcollation
         THEN (SELECT format('%I.%I', cn.nspname, co.collname) FROM pg_collation co
               JOIN pg_namespace cn ON cn.oid = co.collnamespace WHERE co.oid = a.attcollation) END,
      'not_null', a.attnotnull, 'default', pg_get_expr(d.adbin, d.adrelid), 'generated', a.attgenerated,
      'identity', a.attidentity, 'missing', CASE WHEN a.atthasmissing THEN to_jsonb(a.attmissingval) ->> 0 END,
      'local', a.attislocal) ORDER BY a.attnum)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), '[]'),
  'key', (SELECT jsonb_build_object('index', ic.relname, 'columns', i.indkey::int2[]) FROM pg_index i
          JOIN pg_class ic ON ic.oid = i.indexrelid WHERE i.indrelid = c.oid AND i.indisprimary),
  'constraints', coalesce((SELECT jsonb_agg(jsonb_build_object('oid', k.oid::int, 'name', k.conname, 'type', k.contype,
       'definition', pg_get_constraintdef(k.oid), 'validated', k.convalidated, 'local', k.conislocal,
       'references', CASE WHEN k.confrelid <> 0 THEN (SELECT jsonb_build_array(fn.nspname, f.relname) FROM pg_class f
                     JOIN pg_namespace fn ON fn.oid = f.relnamespace WHERE f.oid = k.confrelid) END) ORDER BY k.oid)
     FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype IN ('p', 'u', 'f', 'c', 'x')), '[]'),
  'indexes', coalesce((SELECT jsonb_agg(jsonb_build_object('oid', i.indexrelid::int, 'name', ic.relname,
       'definition', pg_get_indexdef(i.indexrelid)) ORDER BY i.indexrelid)
     FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid
     WHERE i.indrelid = c.oid AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid
                                              AND k.contype IN ('p', 'u', 'x'))), '[]'),
  'partition_key', pg_get_partkeydef(c.oid), 'bound', pg_get_expr(c.relpartbound, c.oid),
  'parents', coalesce((SELECT jsonb_agg(jsonb_build_array(pn.nspname, p.relname) ORDER BY h.inhseqno)
     FROM pg_inherits h JOIN pg_class p ON p.oid = h.inhparent JOIN pg_namespace pn ON pn.oid = p.relnamespace
     WHERE h.inhrelid = c.oid), '[]'),
  'descendants', coalesce((WITH RECURSIVE below(oid) AS (
       SELECT inhrelid FROM pg_inherits WHERE inhparent = c.oid
       UNION SELECT h.inhrelid FROM pg_inherits h JOIN below b ON b.oid = h.inhparent)
     SELECT jsonb_agg(oid::int ORDER BY oid) FROM below), '[]'),
  'definition', CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END,
  'options', coalesce(to_jsonb(c.reloptions), '[]'))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname !~ '^(pg_|information_schema|pgddl)'
"""


def versions(dsn: str) -> dict[int, TableMeta]:
    """Every table and view of a database, as the event triggers would describe it."""
    with psycopg.connect(dsn, options="-csearch_path=", autocommit=True) as conn:
        return dict(conn.execute(DESCRIBE).fetchall())


def named(metas: dict[int, TableMeta], name: str) -> TableMeta | None:
    return next((m for m in metas.values() if m["name"] == name), None)


def event(tag: str, subjects: Iterable[TableMeta], tables: Iterable[TableMeta], **more: Any) -> CapturedEvent:
    """An event on these tables, which tells no more than their versions."""
    objects: list[ObjectMeta] = [
        {
            "classid": "pg_class", "objid": m["oid"], "objsubid": 0, "tag": tag, "type": "table",
            "schema": m["schema"], "name": m["name"], "identity": f"{m['schema']}.{m['name']}", "table": None,
            "definition": None, "owner": m["owner"],
        }
        for m in subjects
    ]  # fmt: skip
    whole: dict[str, Any] = {
        "id": "1.1", "xid": "1", "seq": 1, "lsn": "0/1", "at": "", "batch": "", "tag": tag, "statement": "DO ''",
        "nested": True, "inner": None, "role": "postgres", "session_role": "postgres", "path": [], "settings": {},
        "names": {}, "functions": {}, "objects": objects, "dropped": [], "rewritten": [],
        "tables": {str(m["oid"]): m for m in tables}, "disabled_for": [],
    }  # fmt: skip
    return whole | more  # type: ignore[return-value]


class Pair:
    """Two databases with the same tables; what is done to the first is rebuilt on the second."""

    def __init__(self, source: str, target: str) -> None:
        self.source, self.target = source, target
        self.statements: tuple[str, ...] = ()

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

    def run(self, what: CapturedEvent, before: dict[int, TableMeta]) -> None:
        self.statements = rebuild(what, before)
        with psycopg.connect(self.target, options="-csearch_path=") as conn:
            for statement in self.statements:
                conn.execute(statement.encode())

    def differences(self) -> list[str]:
        return compare_catalogs(self.source, self.target)


@pytest.fixture(params=["16", "18", "16 to 18"])
def pair(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster, database: Callable[..., str]) -> Pair:
    source = pg18 if request.param == "18" else pg16
    target = pg16 if request.param == "16" else pg18
    return Pair(database(source), database(target))


BASE = """
    CREATE SCHEMA "Sh.op"; CREATE SCHEMA other;
    CREATE TYPE other.mood AS ENUM ('fine', 'Bad');
    CREATE TABLE other.ref (id int PRIMARY KEY, code text UNIQUE);
    CREATE TABLE "Sh.op"."It""ems" (
        id int CONSTRAINT "It ""pk" PRIMARY KEY, code varchar(20), amount numeric(10,2) DEFAULT 1.5, ref int REFERENCES other.ref,
        note text COLLATE "C" DEFAULT 'it''s', twice int GENERATED ALWAYS AS (id * 2) STORED,
        mood other.mood DEFAULT 'Bad', n int GENERATED BY DEFAULT AS IDENTITY,
        CONSTRAINT "not neg;" CHECK (amount >= 0), CONSTRAINT code_key UNIQUE (code, id));
    CREATE INDEX by_note ON "Sh.op"."It""ems" (lower(note), code) WHERE amount > 3;
    INSERT INTO other.ref VALUES (1, 'a'), (2, 'b');
    INSERT INTO "Sh.op"."It""ems" (id, code, ref) VALUES (1, '10', 1), (2, '20', NULL);
"""
T = '"Sh.op"."It""ems"'

ALTERS = [
    ["ADD COLUMN a int"],
    ["ADD COLUMN a int DEFAULT 3 NOT NULL"],
    ["ADD COLUMN a timestamptz DEFAULT now()"],
    ["ADD COLUMN a timestamptz NOT NULL DEFAULT now()"],
    ["ADD COLUMN a text COLLATE \"C\" DEFAULT E'b\\\\s''%s {}'"],
    ["ADD COLUMN a int GENERATED ALWAYS AS (id + 1) STORED"],
    ["ADD COLUMN a bigint GENERATED ALWAYS AS IDENTITY"],
    ["ADD COLUMN a other.mood[] DEFAULT '{fine,Bad}'"],
    ["ADD COLUMN a int REFERENCES other.ref ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED"],
    ["DROP COLUMN note"],
    ["DROP COLUMN twice", "DROP COLUMN code"],
    ["RENAME COLUMN amount TO \"A mount\""],
    ["RENAME COLUMN id TO code2", "RENAME COLUMN code TO id", "RENAME COLUMN code2 TO code"],
    ["ALTER COLUMN code TYPE text"],
    ["ALTER COLUMN code TYPE int USING code::int"],
    ["ALTER COLUMN code TYPE varchar(40) COLLATE \"C\""],
    ["ALTER COLUMN amount TYPE numeric(12,3)"],
    ["ALTER COLUMN amount DROP DEFAULT, ALTER COLUMN amount TYPE int, ALTER COLUMN amount SET DEFAULT 7"],
    ["DROP COLUMN twice", "ALTER COLUMN id TYPE bigint"],
    ["ALTER COLUMN n TYPE bigint"],
    ["ALTER COLUMN mood DROP DEFAULT, ALTER COLUMN mood TYPE text"],
    ["ALTER COLUMN note SET DEFAULT 'x' || 'y'"],
    ["ALTER COLUMN note DROP DEFAULT"],
    ["ALTER COLUMN code SET NOT NULL"],
    ["ALTER COLUMN n DROP IDENTITY"],
    ["ALTER COLUMN n DROP IDENTITY, ALTER COLUMN n SET DEFAULT 3"],
    ["ALTER COLUMN n SET GENERATED ALWAYS"],
    ["ALTER COLUMN amount DROP DEFAULT", "ALTER COLUMN amount TYPE int", "ALTER COLUMN amount SET NOT NULL",
     "ALTER COLUMN amount ADD GENERATED BY DEFAULT AS IDENTITY"],
    ["ALTER COLUMN twice DROP EXPRESSION"],
    ["ADD CONSTRAINT more CHECK (id > 0) NOT VALID"],
    ["ADD CONSTRAINT more CHECK (id > 0) NO INHERIT"],
    ["ADD CONSTRAINT r2 FOREIGN KEY (id) REFERENCES other.ref NOT VALID"],
    ["DROP CONSTRAINT \"not neg;\", ADD CONSTRAINT \"not neg;\" CHECK (amount > 0)"],
    ["RENAME CONSTRAINT \"not neg;\" TO \"neg%s\""],
    ["DROP CONSTRAINT \"It \"\"pk\""],
    ["ALTER CONSTRAINT \"It\"\"ems_ref_fkey\" DEFERRABLE INITIALLY DEFERRED"],
    ["REPLICA IDENTITY FULL"],
    ["ALTER COLUMN code SET NOT NULL", "REPLICA IDENTITY USING INDEX code_key"],
    ["SET (fillfactor = 70, autovacuum_enabled = off)"],
    ["SET UNLOGGED"],
    ["SET SCHEMA other"],
    ["RENAME TO \"new name\""],
    ["DROP COLUMN note", "ADD COLUMN note int DEFAULT 4", "SET SCHEMA public"],
]  # fmt: skip


@pytest.mark.parametrize("actions", ALTERS, ids=lambda a: ";".join(a)[:60])
def test_an_alter_is_rebuilt(pair: Pair, actions: list[str]) -> None:
    pair.both(BASE)
    pair.alter('It"ems', *(f"ALTER TABLE {T} {action}" for action in actions))
    assert pair.differences() == []
