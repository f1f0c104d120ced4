"""tables.transform: other values than the source has, which never leave it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.commands.plan import lines, plan
from airflow_provider_pgddl.engine.commands.status import status
from airflow_provider_pgddl.engine.errors import PgddlError, PipelineFileError, PreflightRefused, from_postgres
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.rows.source_errors import told_without_values
from tests.combinations import matrix
from tests.integration.conditions import assert_only_the_fence, rows
from tests.integration.lifecycle import Lifecycle, execute, left_behind

Make = Callable[..., Lifecycle]
SECRET = "secretsecret"
USERS = f"""
    CREATE SCHEMA s;
    CREATE TABLE s.users (id int PRIMARY KEY, tenant int, email varchar(80) UNIQUE, ssn text, born date,
                          score numeric(8, 2), shout text GENERATED ALWAYS AS (upper(ssn)) STORED, tags text[]);
    CREATE TABLE s.parts (id int, at int, who text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
    CREATE TABLE s.parts_0 PARTITION OF s.parts FOR VALUES FROM (0) TO (100);
    CREATE TABLE s.parts_1 PARTITION OF s.parts DEFAULT;
    CREATE TABLE s.notes (body text);
    INSERT INTO s.users (id, tenant, email, ssn, born, score, tags)
                        SELECT n, n % 3, '{SECRET}' || n, '{SECRET}' || n, '1990-01-01'::date + n, n / 7.0,
                               ARRAY['{SECRET}'] FROM generate_series(1, 1500) n;
    INSERT INTO s.parts SELECT n, n % 200, '{SECRET}' || n FROM generate_series(1, 600) n;
    INSERT INTO s.notes SELECT '{SECRET}' || n FROM generate_series(1, 20) n;
"""
MADE = {
    "s.users": {
        "email": "(md5(email) || '@example.org')::varchar(80)",
        "ssn": None,
        "born": "date_trunc('month', born::timestamp)::date",
        "score": "(score + 1.5)::numeric(8, 2)",
        "tags": "'{masked}'",
    },
    "s.parts": {"who": "md5(who)"},
    "s.notes": {"body": "md5(body)"},
}
TABLES = {"include": ["s.*"], "keyless": "copy_at_swap", "transform": MADE, "where": {"s.users": "tenant < 2"}}
CHANGES = f"""
    UPDATE s.users SET email = '{SECRET}new' || id, tenant = (tenant + 1) % 3 WHERE id % 5 = 0;
    UPDATE s.users SET id = id + 5000, ssn = '{SECRET}moved' WHERE id % 11 = 0;
    UPDATE s.users SET score = -score WHERE id % 13 = 0;
    DELETE FROM s.users WHERE id % 17 = 0;
    INSERT INTO s.users (id, tenant, email) SELECT max(id) + 1, 1, '{SECRET}x' || max(id) FROM s.users;
    UPDATE s.parts SET who = who || '{SECRET}', at = (at + 60) % 220 WHERE id % 4 = 0;
    UPDATE s.notes SET body = body || 'x';
"""
USERS_MADE = """
    SELECT jsonb_build_object('id', id, 'tenant', tenant, 'email', md5(email) || '@example.org', 'ssn', NULL,
           'born', date_trunc('month', born)::date, 'score', (score + 1.5)::numeric(8, 2), 'shout', NULL,
           'tags', ARRAY['masked'])::text
    FROM s.users WHERE tenant < 2 ORDER BY 1
"""


def assert_masked(move: Lifecycle, *, swapped: bool = False) -> None:
    assert rows(move.target, "s.users") == [text for (text,) in move.on_source(USERS_MADE)]
    if "exclude" not in move.content["tables"]:
        made = "SELECT jsonb_build_object('id', id, 'at', at, 'who', md5(who))::text FROM s.parts ORDER BY 1"
        assert rows(move.target, "s.parts") == [text for (text,) in move.on_source(made)]
    if swapped:
        made = "SELECT jsonb_build_object('body', md5(body))::text FROM s.notes ORDER BY 1"
        assert rows(move.target, "s.notes") == [text for (text,) in move.on_source(made)]


def dumped(cluster: Cluster, dsn: str) -> str:
    """All that there is in a database: the journal, and what the target has."""
    parts = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    command = [cluster.bin("pg_dump"), "-h", parts["host"], "-p", parts["port"], "-U", parts["user"], parts["dbname"]]
    done = subprocess.run(command, env={"PGPASSWORD": parts.get("password", "")}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.every_combination
@pytest.mark.parametrize("capture", matrix("change_log", "wal"))
def test_a_masked_value_never_leaves_the_source(
    pg18: Cluster, source_dsn: str, target_dsn: str, lifecycle: Make, capfd: pytest.CaptureFixture[str], capture: str
) -> None:
    execute(source_dsn, USERS)
    tables: dict[str, object] = dict(TABLES)
    if capture == "wal":  # which is refused for partitioned tables
        made = {name: values for name, values in MADE.items() if name != "s.parts"}
        tables |= {"exclude": ["s.parts"], "transform": made}
    move = lifecycle(source_dsn, target_dsn, tables=tables, capture={"rows": capture}, swap={"fence": "read_only"},
                     backfill={"chunk_bytes": "32kB", "workers": 2})  # fmt: skip
    said = list[object]()
    for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap"):
        if stage != "swap":
            execute(source_dsn, CHANGES)
        result = move.run(stage)
        assert not result.blocked
        said.append(asdict(result))
        if stage == "replay":
            assert_masked(move)
            with psycopg.connect(target_dsn) as conn:  # verify compares what the expressions yield
                conn.execute("UPDATE s.users SET ssn = 'x' WHERE id = (SELECT min(id) FROM s.users)")
            said.append(str(move.refused("verify")))
            assert "1 rows differ" in str(said[-1])
            said.append(asdict(move.run("verify", mend=True)))
            said.append(status(load_pipeline(move.content), source_dsn, target_dsn))
    assert_masked(move, swapped=True)
    assert SECRET not in dumped(pg18, target_dsn).lower()
    assert SECRET not in str(said)
    assert SECRET not in "".join(capfd.readouterr())
    move.run("cleanup")
    assert_only_the_fence(source_dsn)


def test_an_error_of_an_expression_has_no_value_in_it(
    pg18: Cluster, source_dsn: str, target_dsn: str, lifecycle: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    """By a chunk, by a window, by verify, at the swap: a cast that fails, and a function that says the value."""
    execute(
        source_dsn,
        """
        CREATE SCHEMA s; CREATE SCHEMA f;
        CREATE FUNCTION f.tell(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
            $$ BEGIN
                IF t LIKE '%bad%' THEN RAISE EXCEPTION '% is bad', t USING DETAIL = t, HINT = t; END IF;
                RETURN 'm';
            END $$;
        CREATE TABLE s.casts (id int PRIMARY KEY, n text);
        CREATE TABLE s.told (id int PRIMARY KEY, n text);
        INSERT INTO s.casts SELECT i, i FROM generate_series(1, 100) i;
        INSERT INTO s.told SELECT i, i FROM generate_series(1, 100) i;
        """,
    )
    made = {"s.casts": {"n": "n::int::text"}, "s.told": {"n": "f.tell(n)"}}
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["s.*"], "transform": made})
    bad = f"{SECRET}bad"
    said = list[str]()

    def run(stage: str) -> None:
        try:
            said.append(str(asdict(move.run(stage))))
        except PgddlError as error:
            chain: BaseException | None = error
            while chain is not None:
                said.append(f"{chain} {chain!r} {getattr(chain, 'diag', None) and chain.diag.message_detail}")
                chain = chain.__cause__ or chain.__context__

    def with_bad(table: str, *stages: str) -> None:
        execute(source_dsn, f"UPDATE s.{table} SET n = '{bad}' WHERE id = 7")
        for stage in stages:
            run(stage)
        execute(source_dsn, f"UPDATE s.{table} SET n = '7' WHERE id = 7")
        run(stages[0])

    move.run_all(until="snapshot")
    for table in ("casts", "told"):
        with_bad(table, "backfill")
    move.run_all(after="snapshot", until="replay")
    for table in ("casts", "told"):
        with_bad(table, "replay", "verify")
    for state in ("22P02", "P0001"):
        words = f"an expression of tables.where or tables.transform failed on the source (SQLSTATE {state})"
        assert any(words in text for text in said), said
    assert SECRET not in "\n".join(said)
    assert SECRET not in "".join(capfd.readouterr())
    assert SECRET not in dumped(pg18, target_dsn).lower()
    for stage in ("replay", "verify"):
        assert not move.run(stage).blocked
    assert len(rows(target_dsn, "s.casts")) == len(rows(target_dsn, "s.told")) == 100


def test_the_servers_own_error_does_not_hang_on_what_is_told(source_dsn: str) -> None:
    with psycopg.connect(source_dsn) as conn:
        with pytest.raises(psycopg.DataError) as caught:
            told_without_values(True, lambda: conn.execute(f"SELECT '{SECRET}'::int"))
        assert caught.value.__context__ is None and caught.value.__cause__ is None
        assert SECRET not in str(from_postgres(caught.value, doing="copying")) and caught.value.sqlstate == "22P02"
        conn.rollback()
        with pytest.raises(psycopg.DataError, match=SECRET):
            told_without_values(False, lambda: conn.execute(f"SELECT '{SECRET}'::int"))
        conn.rollback()
        conn.execute("SET statement_timeout = 1")
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            told_without_values(True, lambda: conn.execute("SELECT pg_sleep(60)"))


def test_what_preflight_refuses(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    execute(
        source_dsn,
        USERS + "CREATE TABLE s.full (id int PRIMARY KEY, a text, n int NOT NULL, code varchar(5));"
        "ALTER TABLE s.full REPLICA IDENTITY FULL",
    )

    def refused(made: dict[str, Any], table: str = "s.full", **more: Any) -> str:
        move = lifecycle(source_dsn, target_dsn, tables={"include": ["s.*"], "exclude": ["s.notes"],
                                                         "transform": {table: made}}, **more)  # fmt: skip
        error = move.refused("setup", PreflightRefused)
        assert left_behind(source_dsn) == []
        return str(error)

    assert "is part of the key" in refused({"id": "id + 1"})
    assert "is generated" in refused({"shout": "'x'"}, "s.users")
    assert "part of the partition key" in refused({"at": "1"}, "s.parts") or "part of the key" in refused(
        {"at": "1"}, "s.parts"
    )
    assert "is NOT NULL" in refused({"n": None})
    said = refused({"code": "md5(a)"})
    assert "is of type text, and its column of type character varying(5)" in said
    assert "(md5(a))::character varying(5)" in said
    assert "invalid input syntax for type integer" in refused({"n": "'seven'"})
    assert "is not immutable" in refused({"a": "now()::text"})
    assert "has REPLICA IDENTITY FULL" in refused({"a": "md5(a)"}, capture={"rows": "wal"})
    assert "a partition that comes with REPLICA IDENTITY FULL" in refused(
        {"who": "md5(who)"}, "s.parts", capture={"rows": "wal"}
    )
    for made, why in (
        ({"a": "md5(a), n"}, "is not one expression"),
        ({"nobody": "1"}, "has no column nobody"),
        ({"a": "md5(nobody)"}, "has no column nobody"),
        ({"a": "1", '"a"': "2"}, "is the same column as a"),
        ({}, "names no column"),
    ):
        with pytest.raises(PipelineFileError, match=why):
            lifecycle(source_dsn, target_dsn, tables={"include": ["s.*"], "transform": {"s.full": made}}).run("setup")


def test_null_is_no_value_of_a_column_that_takes_none_any_more(
    pg18: Cluster, database: Callable[..., str], target_dsn: str, lifecycle: Make
) -> None:
    source = database(pg18)
    execute(source, "CREATE TABLE t (id int PRIMARY KEY, n int); ALTER TABLE t ADD CONSTRAINT k NOT NULL n NOT VALID")
    tables = {"include": ["public.t"], "transform": {"public.t": {"n": None}}}
    assert "column n is NOT NULL" in str(
        lifecycle(source, target_dsn, tables=tables).refused("setup", PreflightRefused)
    )


def test_a_table_that_would_be_streamed_whole_stops(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    execute(source_dsn, USERS)
    part = {"where": {"s.users": "tenant < 2"}, "transform": {"s.users": {"ssn": "NULL"}}}
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["s.*"], "exclude": ["s.notes"], **part}, capture={"rows": "wal"}
    )
    move.run_all(until="replay")
    execute(source_dsn, "ALTER TABLE s.users REPLICA IDENTITY FULL; UPDATE s.users SET tenant = 1 WHERE id = 3")
    stopped = {blocked["table"]: blocked["reason"] for blocked in move.run("replay").blocked}
    assert "has REPLICA IDENTITY FULL" in stopped["s.users"]
    published = "SELECT count(*) FROM pg_publication_tables WHERE tablename = 'users'"
    assert move.on_source(published) == [(0,)]
    execute(source_dsn, "ALTER TABLE s.users REPLICA IDENTITY DEFAULT")
    assert not move.run("replay").blocked
    assert len(rows(target_dsn, "s.users")) == len(rows(source_dsn, "s.users", "tenant < 2"))
    assert move.journal("SELECT count(*) FROM s.users WHERE ssn IS NOT NULL") == [(0,)]


def test_a_masked_table_attached_to_another_leaves_no_value_in_its_log(
    pg18: Cluster, source_dsn: str, target_dsn: str, lifecycle: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    """Streamed whole, and the other one's key is the column that is masked."""
    execute(
        source_dsn,
        f"""
        CREATE SCHEMA s;
        CREATE TABLE s.users (id int PRIMARY KEY, email text NOT NULL);
        CREATE TABLE s.mails (id int NOT NULL, email text NOT NULL UNIQUE) PARTITION BY RANGE (email);
        CREATE TABLE s.mails_0 PARTITION OF s.mails FOR VALUES FROM ('a') TO ('b');
        ALTER TABLE s.mails_0 REPLICA IDENTITY FULL;
        INSERT INTO s.users SELECT n, '{SECRET}' || n FROM generate_series(1, 100) n;
        INSERT INTO s.mails SELECT n, 'a' || n FROM generate_series(1, 100) n;
        """,
    )
    tables = {"include": ["s.*"], "transform": {"s.users": {"email": "md5(email)"}}}
    move = lifecycle(source_dsn, target_dsn, tables=tables, capture={"rows": "wal"})
    move.run_all(until="replay")
    execute(
        source_dsn,
        "ALTER TABLE s.users REPLICA IDENTITY FULL;"
        "ALTER TABLE s.mails ATTACH PARTITION s.users FOR VALUES FROM ('s') TO ('t')",
    )
    execute(
        source_dsn, f"UPDATE s.users SET email = '{SECRET}new' || id WHERE id % 5 = 0; DELETE FROM s.users WHERE id = 3"
    )
    said = str(move.refused("replay"))
    assert "was attached to s.mails" in said
    assert SECRET not in said + "".join(capfd.readouterr()) + dumped(pg18, target_dsn)
    execute(source_dsn, "ALTER TABLE s.mails DETACH PARTITION s.users; ALTER TABLE s.users REPLICA IDENTITY DEFAULT")
    execute(
        source_dsn,
        f"UPDATE s.users SET email = '{SECRET}late' || id WHERE id % 7 = 0; DELETE FROM s.mails WHERE id < 9",
    )
    assert not move.run("replay").blocked
    assert SECRET not in "".join(capfd.readouterr()) + dumped(pg18, target_dsn)
    made = "SELECT jsonb_build_object('id', id, 'email', md5(email))::text FROM s.users ORDER BY 1"
    assert rows(target_dsn, "s.users") == [text for (text,) in move.on_source(made)]
    assert rows(target_dsn, "s.mails") == rows(source_dsn, "s.mails")


def test_ddl_never_lets_a_value_through(
    pg18: Cluster, source_dsn: str, target_dsn: str, lifecycle: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    pin = f"SET app.pin = '{SECRET}'; ALTER TABLE s.users ADD COLUMN pin text DEFAULT current_setting('app.pin', true)"
    execute(source_dsn, USERS + f"ALTER TABLE s.users ADD COLUMN nick text; {pin}")
    made = {**MADE, "s.users": {**MADE["s.users"], "pin": None}}
    move = lifecycle(source_dsn, target_dsn, tables={**TABLES, "transform": made}, swap={"fence": "read_only"})
    move.run_all(until="replay")
    # The client's string goes with what it has altered.
    execute(
        source_dsn,
        f"""
        UPDATE s.users SET email = '{SECRET}with' WHERE id = 1; ALTER TABLE s.users ADD COLUMN a int /* {SECRET} */;
        -- {SECRET}
        ALTER TABLE s.users ADD COLUMN b int DEFAULT 7; INSERT INTO s.notes VALUES ('{SECRET}');
        CREATE TABLE public.made AS SELECT id FROM s.users WHERE ssn = '{SECRET}8';
        """,
    )
    execute(
        source_dsn,
        f"""
        DO $$ BEGIN
            UPDATE s.users SET email = '{SECRET}do' WHERE id = 7; ALTER TABLE s.users ADD COLUMN c int;
            EXECUTE 'UPDATE s.users SET ssn = ''{SECRET}''; ALTER TABLE s.users ADD COLUMN d int';
        END $$
        """,
    )
    assert not move.run("replay").blocked
    kept = "SELECT captured ->> 'statement' FROM pgddl.ddl_events WHERE captured ->> 'tag' = 'ALTER TABLE'"
    assert any("ADD COLUMN b int DEFAULT 7" in text for (text,) in move.journal(kept))
    added = "SELECT count(*) FROM pg_attribute WHERE attrelid = 's.users'::regclass AND attname IN ('a', 'b', 'c', 'd')"
    assert move.journal(added) == [(4,)]
    swapped = "ALTER TABLE s.users RENAME ssn TO was; ALTER TABLE s.users RENAME nick TO ssn"
    execute(source_dsn, swapped + f"; UPDATE s.users SET was = '{SECRET}w' WHERE id < 50")
    stopped = {blocked["table"]: blocked["reason"] for blocked in move.run("replay").blocked}
    assert "is another column than it was" in stopped["s.users"]
    execute(source_dsn, "ALTER TABLE s.users RENAME ssn TO nick; ALTER TABLE s.users RENAME was TO ssn")
    assert not move.run("replay").blocked
    # Nor is a column under another collation what the expression was about.
    execute(source_dsn, 'ALTER TABLE s.users ALTER email TYPE varchar(80) COLLATE "C"')
    stopped = {blocked["table"]: blocked["reason"] for blocked in move.run("replay").blocked}
    assert 'is of type character varying(80) COLLATE pg_catalog."C" now: give it back' in stopped["s.users"]
    execute(source_dsn, 'ALTER TABLE s.users ALTER email TYPE varchar(80) COLLATE "default"')
    assert not move.run("replay").blocked
    # Another type on the target is not cast to in silence.
    execute(target_dsn, "ALTER TABLE s.users ALTER score TYPE integer")
    stopped = {blocked["table"]: blocked["reason"] for blocked in move.run("replay").blocked}
    assert "Type mismatch" in stopped["s.users"]
    execute(target_dsn, "ALTER TABLE s.users ALTER score TYPE numeric(8, 2)")
    assert not move.run("replay").blocked
    # What was computed on the source from a masked value is not taken from there.
    execute(target_dsn, "ALTER TABLE s.users ALTER shout DROP EXPRESSION")
    stopped = {blocked["table"]: blocked["reason"] for blocked in move.run("replay").blocked}
    assert "from values that may not leave it" in stopped["s.users"]
    assert SECRET not in dumped(pg18, target_dsn).lower() + "".join(capfd.readouterr())


def test_plan_says_what_is_made(source_dsn: str, target_dsn: str, lifecycle: Make, tmp_path: Path) -> None:
    execute(source_dsn, USERS)
    move = lifecycle(source_dsn, target_dsn, tables=TABLES, swap={"fence": "read_only"})
    printed = "\n".join(lines(plan(load_pipeline(move.content), source_dsn, target_dsn)))
    assert (
        "s.users: only rows where tenant < 2, email as (md5(email) || '@example.org')::varchar(80), ssn as NULL"
        in printed
    )


def test_a_table_that_is_read_as_its_owner(source_dsn: str, target_dsn: str, lifecycle: Make) -> None:
    """Behind the wall, for code of hers is on it: the same rows, the same values, and no word of an error either."""
    execute(target_dsn, "CREATE ROLE rows_owner")
    execute(
        source_dsn,
        f"""
        CREATE ROLE rows_owner; CREATE SCHEMA s; GRANT USAGE, CREATE ON SCHEMA s TO rows_owner; SET ROLE rows_owner;
        CREATE FUNCTION s.fine(t text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN t IS NOT NULL; END';
        CREATE TABLE s.hers (id int PRIMARY KEY, tenant int, said text CHECK (s.fine(said)), n varchar(40));
        CREATE INDEX ON s.hers (s.fine(said));
        INSERT INTO s.hers SELECT i, 5 + i % 3, '{SECRET}' || i, i FROM generate_series(1, 500) i;
        """,
    )
    read = {
        "where": {"s.hers": "tenant = 7"},
        "transform": {"s.hers": {"said": "md5(said)", "n": "n::int::varchar(40)"}},
    }
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["s.hers"], **read}, swap={"fence": "read_only"})
    move.run_all(until="backfill")
    execute(
        source_dsn, "UPDATE s.hers SET tenant = 5 + (tenant + 1) % 3 WHERE id % 4 = 0; DELETE FROM s.hers WHERE id = 5"
    )
    move.run_all(after="backfill", until="replay")
    execute(source_dsn, f"UPDATE s.hers SET tenant = 7, n = '{SECRET}' WHERE id = 8")
    (stopped,) = move.run("replay").blocked
    assert "failed on the source (SQLSTATE 22" in stopped["reason"] and SECRET not in str(stopped)
    execute(source_dsn, "UPDATE s.hers SET n = '8' WHERE id = 8")
    move.run_all(after="schema_sync", until="swap")
    made = "SELECT jsonb_build_object('id', id, 'tenant', tenant, 'said', md5(said), 'n', n)::text FROM s.hers"
    assert rows(target_dsn, "s.hers") == [text for (text,) in move.on_source(f"{made} WHERE tenant = 7 ORDER BY 1")]
    move.run("cleanup")
    for dsn in (source_dsn, target_dsn):
        execute(dsn, "DROP OWNED BY rows_owner CASCADE; DROP ROLE rows_owner")
