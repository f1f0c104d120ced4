"""pg_dump → events → another server, on real databases and on a schema made of everything that hurts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.ddl.constraint_nodes import not_valid
from airflow_provider_pgddl.engine.ddl.events import DdlEvent, events_from_dump, without
from airflow_provider_pgddl.engine.ddl.relocate import copy_schema, moving, relocate
from airflow_provider_pgddl.engine.errors import PgddlError, PreflightRefused, Retry, StageFailed, Unreachable
from airflow_provider_pgddl.engine.server import pg_dump
from airflow_provider_pgddl.engine.server.pg_dump import dump_schema, dump_sections, find_pg_dump
from tests.combinations import matrix
from tests.integration.nasty import NASTY, make_roles

RIGHTS = ("GRANT", "REVOKE", "ALTER DEFAULT PRIVILEGES")
Database = Callable[..., str]


def psql(cluster: Cluster, dsn: str, *, file: Path | None = None, text: str | None = None) -> None:
    parts = conninfo_to_dict(dsn)
    environment = {**os.environ, "PGPASSWORD": str(parts.pop("password", ""))}
    command = [cluster.bin("psql"), make_conninfo("", **parts), "-qX", "-v", "ON_ERROR_STOP=1", "-f", file or "-"]
    done = subprocess.run(command, env=environment, input=text, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]


def major(dsn: str) -> int:
    with psycopg.connect(dsn) as conn:
        return conn.info.server_version // 10_000


def events_of(dsn: str, **choice: object) -> list[DdlEvent]:
    return events_from_dump(*dump_sections(dsn, major(dsn), **choice))  # type: ignore[arg-type]


def events_of_two_runs(dsn: str) -> list[DdlEvent]:
    """With the sections as pg_dump knows them."""
    pre, post = (dump_schema(dsn, major(dsn), section=section) for section in ("pre-data", "post-data"))
    return events_from_dump(pre, post)


def without_settings(events: Iterable[DdlEvent]) -> list[DdlEvent]:
    """Which two runs set twice. Rights stand at the end of their section, or of all: they are told apart."""
    said = [replace(event, seq=0) for event in events if event.tag not in ("SET", "SELECT")]
    rights = [replace(event, section=None) for event in said if event.tag in RIGHTS]
    assert {event.phase for event in rights} <= {"finish", "noise"}
    return [event for event in said if event.tag not in RIGHTS] + rights


def statements_of(dsn: str) -> list[str]:
    return sorted(event.statement for event in events_of(dsn) if event.phase != "noise")


def line_ends(dsn: str) -> int:
    """CR in what pg_dump says of a schema."""
    return dump_schema(dsn, major(dsn), section=None).count("\r")


def run(dsn: str, events: Iterable[DdlEvent]) -> None:
    """As the engine does: one statement at a time, in a session with the settings of a restore."""
    with psycopg.connect(dsn, autocommit=True, options="-c search_path= -c check_function_bodies=off") as conn:
        for event in events:
            try:
                conn.execute(event.statement)  # type: ignore[call-overload]
            except psycopg.errors.DuplicateSchema:
                assert event.statement == "CREATE SCHEMA public"


def restored(cluster: Cluster, source: str, target: str) -> None:
    """The oracle: what psql makes of the same dump."""
    text = "".join(dump_schema(source, major(source), section=section) for section in ("pre-data", "post-data"))
    psql(cluster, target, text=text.replace("SET transaction_timeout = 0;", ""))  # which a server before 17 lacks


@pytest.fixture
def nasty(pg16: Cluster, pg18: Cluster, source_dsn: str) -> str:
    for cluster in (pg16, pg18):
        make_roles(cluster)
    psql(pg16, source_dsn, file=NASTY)
    return source_dsn


@pytest.mark.parametrize("data", ["chinook", "northwind"])
def test_a_real_database_arrives_phase_by_phase_as_psql_would_restore_it(
    pg16: Cluster, pg18: Cluster, database: Database, source_dsn: str, target_dsn: str, shared_data: Path, data: str
) -> None:
    if data == "chinook":  # it makes its own database and connects to it
        lines = (shared_data / "chinook.sql").read_text().splitlines(keepends=True)
        text = "".join(line for line in lines if not line.startswith(("DROP DATABASE", "CREATE DATABASE", "\\c ")))
        psql(pg16, source_dsn, text=text)
    else:
        psql(pg16, source_dsn, file=shared_data / "northwind.sql")
    events = events_of(source_dsn)
    for phase in ("create", "index", "foreign_key", "finish"):
        run(target_dsn, [event for event in events if event.phase == phase])
    oracle = database(pg18)
    restored(pg18, source_dsn, oracle)
    assert len(statements_of(target_dsn)) > 20
    assert statements_of(target_dsn) == statements_of(oracle)


def test_one_run_of_pg_dump_says_what_a_run_for_each_section_says(
    pg18: Cluster, nasty: str, target_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    psql(pg18, target_dsn, file=NASTY)
    late = "CREATE TABLE v.t (id int PRIMARY KEY, n int); CREATE VIEW v.late AS SELECT * FROM v.t GROUP BY id;"
    for dsn in (nasty, target_dsn):
        psql(pg18, dsn, text=f"CREATE SCHEMA v; {late} CREATE RULE r AS ON INSERT TO v.late DO INSTEAD NOTHING;")
        events = without_settings(events_of(dsn))
        assert {event.section for event in events} == {"pre-data", "post-data", None}
        assert events == without_settings(events_of_two_runs(dsn))
    # What a name says is not taken for pg_dump's word.
    psql(
        pg18, nasty, text='CREATE TABLE v."x; Type: INDEX; Schema: v" (id int PRIMARY KEY); CREATE VIEW v.y AS SELECT 1'
    )
    runs: list[object] = []
    run_it = pg_dump._run
    monkeypatch.setattr(pg_dump, "_run", lambda *given: runs.append(given) or run_it(*given))
    events = without_settings(events_of(nasty))
    assert len(runs) == 3
    assert events == without_settings(events_of_two_runs(nasty))


def test_a_schema_of_everything_arrives_phase_by_phase_as_psql_would_restore_it(
    pg18: Cluster, database: Database, nasty: str, target_dsn: str
) -> None:
    events = events_of(nasty)
    run(target_dsn, [event for event in events if event.phase == "create"])
    run(target_dsn, [event for event in events if event.phase == "index"])
    foreign_keys = [event for event in events if event.phase == "foreign_key"]
    with psycopg.connect(target_dsn, autocommit=True) as conn:
        for event in foreign_keys:
            if event.table == ("shop", "events"):  # its parent is partitioned: taken from 18 on
                conn.execute(event.statement)  # type: ignore[call-overload]
            else:
                conn.execute(not_valid(event.statement))  # type: ignore[call-overload]
            if "NOT VALID" not in event.statement:
                conn.execute(
                    sql.SQL("ALTER TABLE {} VALIDATE CONSTRAINT {}").format(
                        sql.Identifier(*(event.table or ())), sql.Identifier(event.name or "")
                    )
                )
    run(target_dsn, [event for event in events if event.phase == "finish"])
    oracle = database(pg18)
    restored(pg18, nasty, oracle)
    arrived, expected = statements_of(target_dsn), statements_of(oracle)
    # What psql restores and events leave alone: passwords.
    assert [s for s in expected if s not in arrived] == []
    assert [s for s in arrived if s not in expected] == []
    assert line_ends(target_dsn) == line_ends(oracle) == 8


@pytest.mark.parametrize("table", ["orders", "customers", "events_2024", "animal"])
def test_a_table_is_left_out_with_all_that_cannot_be_there_without_it(nasty: str, target_dsn: str, table: str) -> None:
    kept, left_out = without(events_of(nasty, exclude=[("shop", table)]), [("shop", table)])
    for phase in ("create", "index", "foreign_key", "finish"):
        run(target_dsn, [event for event in kept if event.phase == phase])
    arrived, expected = events_of(target_dsn), {event.statement for event in kept}
    assert ("shop", table) not in {event.table for event in arrived}
    assert len([event for event in arrived if event.statement in expected and event.phase != "noise"]) > 100
    assert {event.tag for event in left_out} & {"CREATE TABLE", "CREATE VIEW", "ALTER TABLE"}


# What Postgres 18 brought.
NEW_IN_18 = """
CREATE SCHEMA s;
CREATE TABLE s.r (id int4range, t tsrange, PRIMARY KEY (id, t WITHOUT OVERLAPS));
CREATE TABLE s.a (
  id int4range, t tsrange, y int,
  x int CONSTRAINT "x; is here" NOT NULL, doubled int GENERATED ALWAYS AS (x * 2) VIRTUAL,
  CONSTRAINT a_y CHECK (y > 0) NOT ENFORCED,
  CONSTRAINT a_r FOREIGN KEY (id, PERIOD t) REFERENCES s.r (id, PERIOD t)
);
ALTER TABLE s.a ADD CONSTRAINT a_y_there NOT NULL y NOT VALID;
CREATE TABLE s.k (id int PRIMARY KEY);
CREATE TABLE s.f (k int CONSTRAINT f_k REFERENCES s.k NOT ENFORCED, n int NOT NULL NO INHERIT);
CREATE TABLE s.p (k int CONSTRAINT p_k REFERENCES s.k) PARTITION BY LIST (k);
CREATE TABLE s.p1 PARTITION OF s.p FOR VALUES IN (1);
CREATE INDEX ON s.p (k);
CREATE FUNCTION s.later() RETURNS SETOF int BEGIN ATOMIC SELECT id FROM s.k GROUP BY id; END;
CREATE MATERIALIZED VIEW s.grouped AS SELECT id, count(*) AS n FROM s.k GROUP BY id;
CREATE INDEX grouped_n ON s.grouped (n);
CREATE VIEW s.stacked AS SELECT n FROM s.grouped;
GRANT MAINTAIN ON s.grouped TO PUBLIC;
"""


def test_what_is_new_in_18_arrives(pg18: Cluster, database: Database, target_dsn: str) -> None:
    source, oracle = database(pg18), database(pg18)
    psql(pg18, source, text=NEW_IN_18)
    events = events_of(source)
    for phase in ("create", "index", "foreign_key", "finish"):
        run(target_dsn, [event for event in events if event.phase == phase])
    restored(pg18, source, oracle)
    assert statements_of(target_dsn) == statements_of(oracle)
    assert [event.name for event in events if "NOT ENFORCED" in event.statement and event.phase == "foreign_key"] == [
        "f_k"
    ]


def test_contrib_extensions_arrive(pg15: Cluster, database: Database) -> None:
    source, target, oracle = database(pg15), database(pg15), database(pg15)
    psql(
        pg15,
        source,
        text="CREATE SCHEMA e; CREATE EXTENSION hstore SCHEMA e; CREATE EXTENSION citext; CREATE EXTENSION btree_gist;"
        "CREATE TABLE t (id citext PRIMARY KEY, h e.hstore DEFAULT 'a=>\"b;\"', hs e.hstore[], room int,"
        " during tsrange,"
        " EXCLUDE USING gist (room WITH =, during WITH &&));"
        "CREATE INDEX ON t USING gin (h); CREATE VIEW v AS SELECT h OPERATOR(e.->) 'a' AS a, id = 'X' AS b FROM t;",
    )
    events = events_of(source)
    for phase in ("create", "index", "foreign_key", "finish"):
        run(target, [event for event in events if event.phase == phase])
    restored(pg15, source, oracle)
    assert statements_of(target) == statements_of(oracle)


def test_what_is_left_out_on_purpose_says_why(nasty: str) -> None:
    (mapping,) = [event for event in events_of(nasty) if event.tag == "CREATE USER MAPPING"]
    assert mapping.phase == "noise"
    assert mapping.note and "passwords" in mapping.note
    assert "OPTIONS" not in mapping.statement


@pytest.mark.parametrize("version", matrix(16, 18))
def test_c22_single_tables_bring_all_that_is_theirs_and_move_under_another_schema(
    pg16: Cluster, pg18: Cluster, database: Database, version: int
) -> None:
    cluster = {16: pg16, 18: pg18}[version]
    dsn = database(cluster)
    make_roles(cluster)
    psql(cluster, dsn, file=NASTY)
    tables = [("shop", "orders"), ("shop", "customers")]
    events = events_of(dsn, only=tables)
    everything = [event for event in events_of(dsn) if event.table in tables]
    ours = [event for event in events if event.phase != "noise"]
    assert sorted(e.statement for e in ours) == sorted(e.statement for e in everything)

    names = moving(events, tables)
    kept = [e for e in ours if e.phase in ("create", "index") and e.kind != "sequence"]
    with psycopg.connect(dsn, autocommit=True, options="-c search_path=") as conn:
        before = described(conn, "shop")
        conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(copy_schema("shop"))))
        for event in kept:
            conn.execute(relocate(event.statement, names))  # type: ignore[call-overload]
        assert described(conn, "shop") == before
        for query in INDEXES, STATISTICS, COLUMNS:
            live = conn.execute(query, ["shop", ["orders", "customers"]]).fetchall()
            copy = conn.execute(query, ["pgddl_copy_shop", ["orders", "customers"]]).fetchall()
            assert [str(row).replace("pgddl_copy_shop.", "shop.") for row in copy] == [str(row) for row in live]
            assert live


INDEXES = """SELECT c.relname, i.indisunique, i.indisclustered, i.indisreplident, i.indisprimary, pg_get_indexdef(c.oid)
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
 WHERE t.relnamespace = %s::regnamespace AND t.relname = ANY(%s) ORDER BY 1"""
STATISTICS = """SELECT s.stxname, s.stxstattarget, s.stxowner, s.stxkind::text, pg_get_statisticsobjdef(s.oid)
  FROM pg_statistic_ext s JOIN pg_class t ON t.oid = s.stxrelid
 WHERE s.stxnamespace = %s::regnamespace AND t.relname = ANY(%s) ORDER BY 1"""
COLUMNS = """SELECT t.relname, t.reloptions, t.relowner, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attstorage,
       a.attidentity, a.attgenerated,
       ARRAY(SELECT o FROM unnest(a.attoptions) o WHERE o !~ '^pg_attver='), a.attstattarget, a.attcollation,
       t.relreplident,
       pg_get_expr(d.adbin, d.adrelid)
  FROM pg_class t JOIN pg_attribute a ON a.attrelid = t.oid
  LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (t.oid, a.attnum)
 WHERE t.relnamespace = %s::regnamespace AND t.relname = ANY(%s) AND a.attnum > 0 ORDER BY t.relname, a.attnum"""


def described(conn: psycopg.Connection[tuple[object, ...]], schema: str) -> list[tuple[object, ...]]:
    """A fingerprint of every object in a schema, by what a rewrite of a row in the catalog would change."""
    return conn.execute(
        "SELECT relname, oid, xmin::text FROM pg_class WHERE relnamespace = %s::regnamespace ORDER BY oid", [schema]
    ).fetchall()


def test_types_and_indexes_of_an_extension_arrive(
    pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str
) -> None:
    with psycopg.connect(source_dsn, autocommit=True) as conn:
        conn.execute("CREATE EXTENSION vector")
        conn.execute("CREATE TABLE items (id int PRIMARY KEY, v vector(3) DEFAULT '[1,2,3]', vs vector[])")
        conn.execute("CREATE INDEX ON items USING hnsw (v vector_l2_ops) WITH (m = 8)")
    events = events_of(source_dsn)
    for phase in ("create", "index", "finish"):
        run(target_dsn, [event for event in events if event.phase == phase])
    assert [e.tag for e in events if "EXTENSION" in e.tag] == ["CREATE EXTENSION"]
    with psycopg.connect(target_dsn) as conn:
        assert conn.execute(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attname = 'v'"
        ).fetchone() == ("vector(3)",)


def test_a_dump_shows_its_snapshot_and_leaves_out_what_is_excluded_or_ours(source_dsn: str) -> None:
    with psycopg.connect(source_dsn, autocommit=True) as conn:
        conn.execute('CREATE TABLE a (i int); CREATE TABLE "A" (i int); CREATE TABLE "a""*.b" (i int)')
        conn.execute("CREATE SCHEMA pgddl; CREATE TABLE pgddl.journal (i int); CREATE SCHEMA pgddl_copy_public")
        conn.execute("CREATE TABLE pgddl_copy_public.a (i int)")
        conn.execute("CREATE FUNCTION pgddl.log() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        conn.execute("CREATE FUNCTION pgddl.seen() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'")
        conn.execute("CREATE TRIGGER pgddl_log AFTER INSERT ON a FOR EACH ROW EXECUTE FUNCTION pgddl.log()")
        conn.execute("ALTER TABLE a ENABLE ALWAYS TRIGGER pgddl_log; COMMENT ON TRIGGER pgddl_log ON a IS 'x'")
        conn.execute("CREATE EVENT TRIGGER pgddl_seen ON ddl_command_end EXECUTE FUNCTION pgddl.seen()")
        conn.execute("CREATE PUBLICATION p FOR TABLE a")
        with conn.transaction(), psycopg.connect(source_dsn, autocommit=True) as other:
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            (snapshot,) = conn.execute("SELECT pg_export_snapshot()").fetchone() or ("",)
            other.execute("CREATE TABLE later (i int)")
            events = events_of(source_dsn, snapshot=snapshot, exclude=[("public", "A"), ("public", 'a"*.b')])
    applied = [event for event in events if event.phase != "noise"]
    assert [(e.tag, e.name) for e in applied if e.tag == "CREATE TABLE"] == [("CREATE TABLE", "a")]
    assert not [e for e in applied if "pgddl" in e.statement]
    assert {e.note for e in events if "pgddl" in e.statement} == {"pgddl's own"}


def test_a_dumps_errors_are_clear_and_hold_no_secret(source_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = conninfo_to_dict(source_dsn)
    wrong = make_conninfo("", **{**parts, "password": "sesame-open"})
    with pytest.raises(PgddlError) as refused:
        dump_schema(wrong, 16, section="pre-data")
    assert isinstance(refused.value, StageFailed)
    assert "password authentication failed" in str(refused.value)
    assert "sesame-open" not in str(refused.value)
    with pytest.raises(Unreachable, match="Connection refused"):
        dump_schema(make_conninfo(source_dsn, host="127.0.0.1", port=1), 16, section="pre-data")
    with pytest.raises(StageFailed, match="no matching tables"):
        dump_schema(source_dsn, 16, section="pre-data", only=[("public", "gone")])
    with pytest.raises(Retry, match="snapshot"):
        dump_schema(source_dsn, 16, section="pre-data", snapshot="00000003-0000001B-1")
    with psycopg.connect(source_dsn) as holder:
        holder.execute("CREATE TABLE held (i int)")
        holder.commit()
        holder.execute("LOCK held")
        with pytest.raises(Retry, match=r"could not lock public\.held in time"):
            dump_schema(source_dsn, 16, section="pre-data", lock_timeout=0.2)


def test_pg_dump_gets_the_password_by_its_environment_only(source_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[str], dict[str, str]]] = []
    start = subprocess.Popen

    def watched(arguments: list[object], **how: object) -> object:
        seen.append(([str(a) for a in arguments], how["env"]))  # type: ignore[arg-type]
        return start(arguments, **how)  # type: ignore[call-overload]

    monkeypatch.setattr(pg_dump.subprocess, "Popen", watched)
    dump_schema(source_dsn, 16, section="pre-data")
    password = str(conninfo_to_dict(source_dsn)["password"])
    ((arguments, environment),) = seen
    assert not [a for a in arguments if password in a]
    assert environment["PGPASSWORD"] == password


def test_pg_dump_is_chosen_by_its_version(monkeypatch: pytest.MonkeyPatch, pg16: Cluster) -> None:
    assert find_pg_dump(16).name == "pg_dump"
    monkeypatch.setenv("PGDDL_PG_DUMP", str(pg16.bin("pg_dump")))
    assert find_pg_dump(16) == pg16.bin("pg_dump")
    with pytest.raises(PreflightRefused, match=r"pg_dump 16 .* is too old .* version 18 or newer"):
        find_pg_dump(18)
    monkeypatch.setenv("PGDDL_PG_DUMP", "/nowhere/pg_dump")
    with pytest.raises(PreflightRefused, match="no pg_dump is found"):
        find_pg_dump(16)
