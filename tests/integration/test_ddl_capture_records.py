"""What is recorded of each object that a command is about, on both transports and both embedded versions."""

from __future__ import annotations

import subprocess
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.capture import ddl_log
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import connect
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.ddl_source import Source, column, identities, only, table
from tests.integration.sessions import do


@pytest.fixture(params=matrix("16 queue", "16 wal", "18 queue", "18 wal"))
def source(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster, database: Database) -> Source:
    version, transport = request.param.split()
    cluster = pg16 if version == "16" else pg18
    source = Source(database(cluster), transport, cluster=cluster)
    source.start()
    return source


def test_a_table_is_recorded_as_a_whole(source: Source) -> None:
    do(source.dsn, "CREATE TABLE other (id int PRIMARY KEY)", 'CREATE DOMAIN short AS varchar(5) COLLATE "C"')
    source.events()
    created, altered, indexed, full = source.after(
        """CREATE UNLOGGED TABLE t (
            id bigint GENERATED ALWAYS AS IDENTITY, gone int, n numeric(10, 2) DEFAULT 1.5 NOT NULL, d short,
            c text COLLATE "POSIX", g text GENERATED ALWAYS AS (upper(c)) STORED, u int[],
            o int REFERENCES other ON DELETE CASCADE, PRIMARY KEY (id) INCLUDE (n), CHECK (n > 0),
            CONSTRAINT later UNIQUE (c) DEFERRABLE
        ) WITH (fillfactor = 70)""",
        "ALTER TABLE t DROP gone, ADD r float DEFAULT random()",
        "CREATE UNIQUE INDEX CONCURRENTLY i ON t (lower(c)) WHERE n > 1",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    t = table(created, "t")
    assert (t["schema"], t["kind"], t["persistence"], t["owner"]) == ("public", "r", "u", "postgres")
    assert t["key"] == {"index": "t_pkey", "columns": [1]} and t["options"] == ["fillfactor=70"]
    assert [c["attnum"] for c in t["columns"]] == list(range(1, 9))
    by_name = {c["name"]: c for c in t["columns"]}
    assert (by_name["id"]["identity"], by_name["id"]["not_null"]) == ("a", True)
    assert (by_name["n"]["type"], by_name["n"]["typmod"], by_name["n"]["default"]) == ("numeric(10,2)", 655366, "1.5")
    assert (by_name["d"]["type"], by_name["d"]["collation"]) == ("public.short", None)
    assert by_name["c"]["collation"] == 'pg_catalog."POSIX"'
    assert (by_name["g"]["generated"], by_name["g"]["default"]) == ("s", "upper(c)")
    assert all(c["local"] and c["missing"] is None for c in t["columns"])
    constraints = {k["name"]: k for k in t["constraints"]}
    assert {k: v["type"] for k, v in constraints.items()} == {
        "t_pkey": "p",
        "t_n_check": "c",
        "later": "u",
        "t_o_fkey": "f",
    }
    assert constraints["t_o_fkey"]["references"] == ["public", "other"]
    assert constraints["t_o_fkey"]["definition"] == "FOREIGN KEY (o) REFERENCES public.other(id) ON DELETE CASCADE"
    assert constraints["later"]["definition"] == "UNIQUE (c) DEFERRABLE"

    assert "gone" not in {c["name"] for c in table(altered, "t")["columns"]}
    assert altered["rewritten"] == [{"oid": t["oid"], "reason": 2}]
    assert identities(altered) == ["public.t.gone"]
    assert [i["name"] for i in table(indexed, "t")["indexes"]] == ["i"]
    definition = "CREATE UNIQUE INDEX i ON public.t USING btree (lower(c)) WHERE (n > (1)::numeric)"
    assert indexed["objects"][0]["definition"] == table(indexed, "t")["indexes"][0]["definition"] == definition
    assert indexed["objects"][0]["table"] == t["oid"]
    assert table(full, "t")["replica_identity"] == "f"


def test_a_fast_default_is_recorded_as_the_rows_show_it(source: Source) -> None:
    do(source.dsn, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    event = source.after(
        """SET timezone = 'Asia/Tokyo'; ALTER TABLE t ADD at timestamptz DEFAULT now(), ADD b box DEFAULT '(3,4),(1,2)',
           ADD e text[] DEFAULT ARRAY['a"b', NULL, 'c,d'], ADD j jsonb DEFAULT '{"a": [1, "x"]}',
           ADD q text DEFAULT 'a "quoted" \\ {text}, NULL', ADD f float8 DEFAULT 0.1 + 0.2, ADD y bytea DEFAULT 'x'"""
    )[-1]
    assert event["rewritten"] == []
    with source.session() as session:
        for c in table(event, "t")["columns"][1:]:
            query = sql.SQL("SELECT {c}::text, {c}::text = (%s::{type})::text FROM public.t").format(
                c=sql.Identifier(c["name"]), type=sql.SQL(c["type"])
            )
            assert session.execute(query, [c["missing"]]).fetchone() == (c["missing"], True)


def test_partitions_and_children_are_recorded_with_their_parents(source: Source) -> None:
    do(
        source.dsn,
        "CREATE TABLE p (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM ('2024-01-01') TO ('2025-01-01') PARTITION BY LIST (id)",
        "CREATE TABLE p11 PARTITION OF p1 DEFAULT",
        "CREATE TABLE stays (id int, at date NOT NULL)",
        "CREATE TABLE child (extra int) INHERITS (stays)",
    )
    source.events()
    added, first, detached, inherited = source.after(
        "ALTER TABLE p ADD c int DEFAULT 1",
        "ALTER TABLE stays ADD c int",
        "ALTER TABLE p1 DETACH PARTITION p11",
        "ALTER TABLE stays ADD d int",
    )
    root, p1, p11 = (table(added, name) for name in ("p", "p1", "p11"))
    assert root["descendants"] == [p1["oid"], p11["oid"]] and p1["descendants"] == [p11["oid"]]
    assert (root["partition_key"], p1["partition_key"], p11["partition_key"]) == ("RANGE (at)", "LIST (id)", None)
    assert (p1["bound"], p11["bound"]) == ("FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')", "DEFAULT")
    assert (p1["parents"], p11["parents"]) == ([["public", "p"]], [["public", "p1"]])
    assert [c["local"] for c in p11["columns"]] == [False] * 3
    assert table(detached, "p11")["bound"] is None and table(detached, "p1")["descendants"] == []
    assert [c["name"] for c in table(inherited, "child")["columns"]] == ["id", "at", "extra", "c", "d"]
    assert first["tables"].keys() == inherited["tables"].keys()


def test_a_partition_that_is_detached_concurrently_is_recorded_with_its_parent(source: Source) -> None:
    do(
        source.dsn,
        "CREATE TABLE p (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE a PARTITION OF p FOR VALUES FROM (0) TO (9)",
    )
    source.events()
    event = only(source.after("ALTER TABLE p DETACH PARTITION a CONCURRENTLY"))
    assert (table(event, "a")["bound"], table(event, "p")["descendants"]) == (None, [])


def test_drops_are_listed_in_an_order_in_which_they_can_be_done(source: Source) -> None:
    objects = (
        "CREATE SCHEMA s",
        "CREATE TABLE s.t (id serial PRIMARY KEY, a text UNIQUE)",
        "CREATE TABLE public.r (id int REFERENCES s.t, t s.t)",
        "CREATE VIEW public.v AS SELECT id FROM s.t",
        "CREATE VIEW public.w AS SELECT * FROM public.v",
        "CREATE FUNCTION s.f(int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE FUNCTION s.tg() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER tg AFTER INSERT ON public.r FOR EACH ROW EXECUTE FUNCTION s.tg()",
        "CREATE POLICY pol ON public.r USING (s.f(id) = 1)",
        "CREATE TYPE s.mood AS ENUM ('a')",
        "CREATE TABLE public.m (id int, m s.mood DEFAULT 'a', d int DEFAULT s.f(1), CHECK (s.f(id) > 0))",
    )
    do(source.dsn, *objects)
    source.events()
    event = only(source.after("DROP SCHEMA s CASCADE"))
    named = [d for d in event["dropped"] if d["original"] or d["normal"]]
    assert [d["identity"] for d in named if d["original"]] == ["s"] and named[-1]["identity"] == "s"
    assert next(d for d in named if d["name"] == "f")["arguments"] == ["integer"]
    assert next(d for d in named if d["type"] == "policy")["table"] == ["public", "r"]
    assert [c["name"] for c in table(event, "r")["columns"] + table(event, "m")["columns"]] == ["id", "id", "d"]

    with psycopg.connect(source.dsn, autocommit=True) as conn:
        for statement in ("SET pgddl.skip = on", "DROP TABLE public.r, public.m", *objects):
            conn.execute(statement.encode())
        for d in named:  # without CASCADE, so each fails where something that needs it comes later
            conn.execute(drop_statement(d))
        assert conn.execute("SELECT to_regnamespace('s')").fetchone() == (None,)


def drop_statement(d: Any) -> sql.Composed:
    name, identity = sql.Identifier(d["name"]), sql.SQL(d["identity"])
    match d["type"]:
        case "policy" | "trigger":
            kind, of = sql.SQL(d["type"].upper()), sql.Identifier(*d["table"])
            return sql.SQL("DROP {} {} ON {}").format(kind, name, of)
        case "table column":
            return sql.SQL("ALTER TABLE {} DROP COLUMN {}").format(sql.Identifier(*d["table"]), name)
        case "table constraint":
            return sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(sql.Identifier(*d["table"]), name)
        case "default value":
            return sql.SQL("ALTER TABLE {} ALTER COLUMN {} DROP DEFAULT").format(sql.Identifier(*d["table"]), name)
        case kind:  # a sequence goes with the table that owns it
            return sql.SQL("DROP {} IF EXISTS {}").format(sql.SQL(kind.upper()), identity)


def test_other_objects_bring_their_statements(source: Source) -> None:
    events = source.after(
        "CREATE TYPE mood AS ENUM ('it''s', 'ok')",
        "ALTER TYPE mood ADD VALUE 'new' BEFORE 'ok'",
        'CREATE TYPE pair AS (a int, b text COLLATE "C")',
        "CREATE DOMAIN positive AS int NOT NULL DEFAULT 1 CHECK (VALUE > 0)",
        "CREATE SEQUENCE q AS smallint INCREMENT 2 START 5 CYCLE",
        "CREATE TABLE t (id int, m mood)",
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END;'",
        "CREATE TRIGGER tg AFTER UPDATE OF id ON t FOR EACH ROW WHEN (NEW.id > 1) EXECUTE FUNCTION f()",
        "CREATE RULE ru AS ON DELETE TO t DO INSTEAD NOTHING",
        "CREATE STATISTICS st ON id, m FROM t",
        "CREATE POLICY po ON t AS RESTRICTIVE FOR UPDATE TO PUBLIC USING (id > 1) WITH CHECK (id < 9)",
        "CREATE VIEW v AS SELECT id FROM t",
        "CREATE AGGREGATE total (int) (SFUNC = int4pl, STYPE = int)",
    )
    statements = [e["objects"][-1]["definition"] for e in events]
    assert statements == [
        "CREATE TYPE public.mood AS ENUM ('it''s', 'ok')",
        "CREATE TYPE public.mood AS ENUM ('it''s', 'new', 'ok')",
        'CREATE TYPE public.pair AS (a integer, b text COLLATE pg_catalog."C")',
        "CREATE DOMAIN public.positive AS integer DEFAULT 1 NOT NULL CONSTRAINT positive_check CHECK ((VALUE > 0))",
        "CREATE SEQUENCE public.q AS smallint START WITH 5 INCREMENT BY 2 MINVALUE 1 MAXVALUE 32767 CACHE 1 CYCLE",
        None,
        "CREATE OR REPLACE FUNCTION public.f()\n RETURNS trigger\n LANGUAGE plpgsql\nAS $function$BEGIN END;$function$\n",  # noqa: E501
        "CREATE TRIGGER tg AFTER UPDATE OF id ON public.t FOR EACH ROW WHEN ((new.id > 1)) EXECUTE FUNCTION public.f()",
        "CREATE RULE ru AS\n    ON DELETE TO public.t DO INSTEAD NOTHING;",
        "CREATE STATISTICS public.st ON id, m FROM public.t",
        "CREATE POLICY po ON public.t AS RESTRICTIVE FOR UPDATE TO PUBLIC USING ((id > 1)) WITH CHECK ((id < 9))",
        None,
        None,
    ]
    assert table(events[-2], "v")["definition"].split() == ["SELECT", "id", "FROM", "public.t;"]


# The injector's identities


def test_identities_stay_through_renames_and_a_restore(source: Source, database: Database) -> None:
    do(source.dsn, "CREATE TABLE before (gone int, id int PRIMARY KEY, b text)", "ALTER TABLE before DROP gone")
    with source.session() as session:
        migrations.apply(session, "injector")
        ddl_log.start(session, source.pipeline, source.transport)
    source.events()
    created, renamed, swapped = source.after(
        "CREATE TABLE t (id int PRIMARY KEY, b text)",
        "ALTER TABLE before RENAME TO after",
        "ALTER TABLE after RENAME b TO c",
    )
    do(
        source.dsn,
        "ALTER TABLE after ADD b text",
        "ALTER TABLE after DROP b",
        "ALTER TABLE after ADD b text",
        "DROP TABLE t",
    )
    ids = {c["name"]: c["id"] for c in table(created, "t")["columns"]}
    assert table(created, "t")["id"] and len(set(ids.values())) == 2
    with source.session() as session:
        oid = catalog.oid_of(session, "public", "after")
        now = ddl_log.describe_relations(session, [oid or 0])[oid or 0]
        kept = {c["name"]: c["id"] for c in now["columns"]}
        assert now["id"] == table(renamed, "after")["id"]
        assert session.execute("SELECT count(*) FROM pgddl.table_identities").fetchone() == (1,)
    assert kept["c"] == column(renamed, "after", "b")["id"] == column(swapped, "after", "c")["id"]

    assert source.cluster is not None
    restored = database(source.cluster)
    dump = subprocess.run([source.cluster.bin("pg_dump"), "-d", source.dsn], check=True, capture_output=True)
    subprocess.run(
        [source.cluster.bin("psql"), "-qX", "-v", "ON_ERROR_STOP=1", "-d", restored],
        input=dump.stdout, check=True, capture_output=True,
    )  # fmt: skip
    with connect(restored, purpose="test") as session:
        for change in (None, "SET pgddl.skip = off; ALTER TABLE public.after ADD d int"):
            if change is not None:
                session.execute(change.encode())
            oid = catalog.oid_of(session, "public", "after")
            there = ddl_log.describe_relations(session, [oid or 0])[oid or 0]
            assert there["id"] == now["id"]
            found = {c["name"]: c["id"] for c in there["columns"]}
            assert {name: found[name] for name in kept} == kept
        assert found["d"] is not None
        ddl_log.stop(session, source.pipeline)
