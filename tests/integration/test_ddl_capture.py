"""What the event triggers of a source record, and as whose command, on both transports and both embedded versions."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.ddl_source import Source, column, identities, only, table
from tests.integration.sessions import do

RAISES = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil'; END $$"


@pytest.fixture(params=matrix("16 queue", "16 wal", "18 queue", "18 wal"))
def source(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster, database: Database) -> Source:
    version, transport = request.param.split()
    cluster = pg16 if version == "16" else pg18
    source = Source(database(cluster), transport, cluster=cluster)
    source.start()
    return source


@pytest.fixture
def source18(pg18: Cluster, database: Database) -> Source:
    """For what neither depends on the transport nor differed between the versions when it was tried on each."""
    source = Source(database(pg18), "queue")
    source.start()
    return source


@pytest.fixture
def role(pg16: Cluster, pg18: Cluster) -> str:
    """A role that may do nothing but what PUBLIC may."""
    name = "ddl_stranger"
    for cluster in (pg16, pg18):
        do(cluster.conninfo(), f"DROP ROLE IF EXISTS {name}", f"CREATE ROLE {name}")
    return name


# One event a command


def test_every_command_of_a_string_is_one_event_in_order(source: Source) -> None:
    text = "CREATE TABLE t (id int); INSERT INTO t VALUES (1); ALTER TABLE t ADD b text; CREATE INDEX i ON t (b)"
    events = source.after(text, "DROP TABLE t")
    assert [(e["tag"], e["seq"]) for e in events] == [
        ("CREATE TABLE", 1),
        ("ALTER TABLE", 2),
        ("CREATE INDEX", 3),
        ("DROP TABLE", 1),
    ]
    assert {e["statement"] for e in events[:3]} == {text}
    assert len({e["batch"] for e in events[:3]}) == 1 and events[3]["batch"] != events[0]["batch"]
    assert len({e["id"] for e in events}) == 4
    assert all(e["id"].startswith(e["xid"] + ".") for e in events)
    assert not any(e["nested"] for e in events)
    assert source.events() == []


def test_the_same_text_three_times_is_three_events(source: Source) -> None:
    with psycopg.connect(source.dsn) as conn:
        for _ in range(2):
            conn.execute("CREATE TABLE t (id int)")
            conn.execute("DROP TABLE t")
        conn.execute("CREATE TABLE t (id int)")
    assert source.tags() == ["CREATE TABLE", "DROP TABLE"] * 2 + ["CREATE TABLE"]


def test_what_is_rolled_back_was_not(source: Source) -> None:
    with psycopg.connect(source.dsn) as conn:
        conn.execute("CREATE TABLE a (id int)")
        conn.execute("SAVEPOINT one")
        conn.execute("CREATE TABLE b (id int)")
        conn.execute("ROLLBACK TO SAVEPOINT one")
        with pytest.raises(psycopg.Error), conn.transaction():
            conn.execute("ALTER TABLE a ADD c int")
            conn.execute("ALTER TABLE a ADD c int")
        conn.execute("RESET ALL")  # also resets what a transaction has set for itself
        conn.execute("CREATE TABLE c (id int)")
    with psycopg.connect(source.dsn) as conn:
        conn.execute("CREATE TABLE d (id int)")
        conn.rollback()
    events = source.events()
    assert [(e["statement"], e["seq"]) for e in events] == [
        ("CREATE TABLE a (id int)", 1),
        ("CREATE TABLE c (id int)", 2),
    ]


def test_what_a_failed_drop_had_listed_does_not_go_to_the_next_command(source18: Source) -> None:
    do(source18.dsn, "CREATE TABLE a (id int)", "CREATE TABLE b (id int)")
    source18.events()
    event = only(
        source18.after(
            """DO $$ BEGIN
                BEGIN DROP TABLE a; RAISE 'no'; EXCEPTION WHEN OTHERS THEN NULL; END;
                DROP TABLE b;
            END $$"""
        )
    )
    assert identities(event) == ["public.b"]


def test_commands_of_other_event_triggers_keep_what_they_drop_apart(source18: Source) -> None:
    do(
        source18.dsn,
        "CREATE TABLE a (id int)",
        "CREATE TABLE side (id int)",
        """CREATE FUNCTION busy() RETURNS event_trigger LANGUAGE plpgsql AS $$
           BEGIN IF to_regclass('side') IS NOT NULL THEN DROP TABLE side; END IF; END $$""",
        "CREATE EVENT TRIGGER zz_busy ON sql_drop EXECUTE FUNCTION busy()",
    )
    source18.events()
    inner, outer = source18.after("DROP TABLE a")
    assert (identities(inner), identities(outer)) == (["public.side"], ["public.a"])
    assert (inner["nested"], inner["inner"], outer["nested"]) == (True, "DROP TABLE side", False)


def test_a_prepared_transaction_is_read_once_it_is_committed(source: Source) -> None:
    gid = sql.Literal(f"gid_{source.dsn[-12:]}").as_string(None)
    with psycopg.connect(source.dsn, autocommit=True) as conn:
        conn.execute("BEGIN; CREATE TABLE t (id int)")
        conn.execute(f"PREPARE TRANSACTION {gid}".encode())
        assert source.events() == []
        conn.execute("CREATE TABLE u (id int)")
        assert source.tags() == ["CREATE TABLE"]
        conn.execute(f"COMMIT PREPARED {gid}".encode())
    assert only(source.events())["statement"] == "BEGIN; CREATE TABLE t (id int)"


# Who, and under which names


def test_a_role_without_any_right_on_our_schema_is_recorded_with_its_path(source: Source, role: str) -> None:
    do(source.dsn, f"CREATE SCHEMA AUTHORIZATION {role}", f"REVOKE ALL ON SCHEMA pgddl FROM PUBLIC, {role}")
    source.events()
    with psycopg.connect(source.dsn, autocommit=True) as conn:
        conn.execute(f"SET ROLE {role}".encode())
        conn.execute(f"SET search_path = {role}, public, nowhere; SET timezone = 'Asia/Tokyo'".encode())
        conn.execute("CREATE TABLE t (at timestamptz DEFAULT '2024-01-01 00:00')")
    event = only(source.events())
    assert (event["role"], event["session_role"]) == (role, "postgres")
    assert event["path"] == ["pg_catalog", role, "public"]
    assert event["settings"]["TimeZone"] == "Asia/Tokyo"
    assert table(event, "t")["owner"] == role
    # printed as our own sessions would, whatever the client's settings
    assert column(event, "t", "at")["default"] == "'2023-12-31 15:00:00+00'::timestamp with time zone"


def test_a_hostile_path_or_setting_changes_nothing(source: Source, role: str) -> None:
    do(
        source.dsn,
        f"CREATE SCHEMA AUTHORIZATION {role}",
        "CREATE SCHEMA evil",
        "CREATE FUNCTION evil.f(text, text) RETURNS boolean " + RAISES,
        "CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.f)",
        f"CREATE FUNCTION evil.set_config(text, text, boolean) RETURNS text {RAISES}",
        f"CREATE FUNCTION evil.current_setting(text, boolean) RETURNS text {RAISES}",
        f"GRANT USAGE ON SCHEMA evil TO {role}",
    )
    source.events()
    with psycopg.connect(source.dsn, autocommit=True) as conn:
        conn.execute(f"SET ROLE {role}; SET search_path = evil, pg_catalog, {role}".encode())
        for setting in (
            "standard_conforming_strings = off",
            "backslash_quote = off",
            "quote_all_identifiers = on",
            "default_transaction_isolation = serializable",
            "datestyle = 'German'",
            "extra_float_digits = -15",
            "plpgsql.extra_errors = 'all'",
            "check_function_bodies = off",
            "transform_null_equals = on",
            "plan_cache_mode = force_custom_plan",
            "bytea_output = escape",
        ):
            conn.execute(f"SET {setting}".encode())
        conn.execute(
            f"CREATE TABLE {role}.t (id int, f float8 DEFAULT 0.1, b bytea DEFAULT 'a', \"Ä.'b\" int)".encode()
        )
    event = only(source.events())
    assert event["path"] == ["evil", "pg_catalog", role]
    assert column(event, "t", "b")["default"] == r"'\x61'::bytea"
    assert column(event, "t", "f")["default"] == "0.1"
    assert column(event, "t", "Ä.'b")["type"] == "integer"


def test_words_are_looked_up_as_the_command_did(source18: Source) -> None:
    long = "l" * 63
    do(
        source18.dsn,
        'CREATE SCHEMA "s.1"',
        "CREATE SCHEMA s2",
        'CREATE TABLE "s.1"."Odd""Name" (id int PRIMARY KEY)',
        "CREATE TABLE s2.both (id int)",
        'CREATE TABLE "s.1".both (id int)',
        f"CREATE TABLE s2.{long} (id int PRIMARY KEY)",
        "CREATE TYPE s2.mood AS ENUM ('a')",
        "CREATE FUNCTION s2.f(int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE FUNCTION \"s.1\".two() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE FUNCTION s2.two() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TABLE public.hidden (id int)",
        "CREATE TABLE s2.date (id int)",
    )
    source18.events()
    with psycopg.connect(source18.dsn, autocommit=True) as conn:
        conn.execute('SET search_path = "s.1", s2')
        conn.execute(
            f'CREATE TABLE New (a int REFERENCES "Odd""Name", b int REFERENCES {long.upper()}xyz, m MOOD, d date,'
            " x int DEFAULT f(1) + two(), y int CHECK (y <> /* both, hidden */ 1))".encode()
        )
    event = only(source18.events())
    assert event["names"] == {"new": "s.1", 'Odd"Name': "s.1", long: "s2", "mood": "s2", "both": "s.1"}
    assert event["functions"] == {"f": "s2"}


def test_words_of_a_nested_command_are_looked_up_though_the_long_string_was_told_before(source18: Source) -> None:
    do(
        source18.dsn,
        "CREATE SCHEMA s",
        "CREATE TABLE s.there (id int)",
        "CREATE FUNCTION s.g() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE FUNCTION public.f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
        " EXECUTE 'CREATE VIEW v AS SELECT g() + id AS id FROM there'; GRANT SELECT ON there TO PUBLIC; END $$",
    )
    source18.events()
    with psycopg.connect(source18.dsn, autocommit=True) as conn:
        conn.execute("SET search_path = s")
        conn.execute(f"CREATE TABLE first (id int); SELECT public.f() /* {'long ' * 1000} */".encode())
    first, view, grant = source18.events()
    assert first["names"] == {"first": "s"} and first["statement"] == view["statement"] == grant["statement"]
    assert view["names"] == {"first": "s", "v": "s", "there": "s"} and view["functions"] == {"g": "s"}
    assert grant["names"]["there"] == "s"


def test_a_statement_of_a_megabyte(source: Source) -> None:
    columns = ", ".join(f"{'c' * 50}{n} text DEFAULT '{'x' * 900}'" for n in range(1000))
    statement = f'CREATE TABLE big ({columns}, "{"q" * 62}" int) -- {"word " * 1000}'
    event = only(source.after(statement))
    assert event["statement"] == statement and len(statement) > 900_000
    assert len(table(event, "big")["columns"]) == 1001


# Inside functions


def test_commands_inside_functions_are_events_with_their_own_text(source: Source) -> None:
    do(
        source.dsn,
        "CREATE FUNCTION made(name text) RETURNS void LANGUAGE plpgsql AS $$"
        " BEGIN EXECUTE format('CREATE TABLE %I (id int)', name); END $$",
        "CREATE PROCEDURE steps() LANGUAGE plpgsql AS $$"
        " BEGIN CREATE TABLE one (id int); COMMIT; PERFORM made('two'); END $$",
        "CREATE FUNCTION plain() RETURNS void LANGUAGE sql AS 'CREATE TABLE three (id int)'",
    )
    source.events()
    events = source.after(
        "CALL steps()", "SELECT plain()", 'DO $$ BEGIN CREATE TABLE four (id int,\n "x""y" int); END $$'
    )
    assert [(e["statement"][:12], e["inner"]) for e in events] == [
        ("CALL steps()", "CREATE TABLE one (id int)"),
        ("CALL steps()", "CREATE TABLE two (id int)"),
        ("SELECT plain", None),
        ("DO $$ BEGIN ", 'CREATE TABLE four (id int,\n "x""y" int)'),
    ]
    assert all(e["nested"] for e in events)
    assert (events[1]["names"], events[3]["names"]) == ({"two": "public"}, {"four": "public"})
    assert events[0]["batch"] == events[1]["batch"] and events[0]["xid"] != events[1]["xid"]


# What is left out


def test_what_is_nobody_elses_business_is_left_out(source: Source) -> None:
    with psycopg.connect(source.dsn, autocommit=True) as conn:
        for statement in (
            "CREATE TEMP TABLE tt (id serial PRIMARY KEY, b text)",
            "CREATE TRIGGER x BEFORE UPDATE ON tt FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "ALTER TABLE tt ADD c int DEFAULT random()",
            "COMMENT ON COLUMN tt.c IS 'x'",
            "DROP TABLE tt",
            "SELECT 1 AS id INTO TEMP u",
            "CREATE TEMP VIEW v AS SELECT * FROM u",
            "CREATE TEMP SEQUENCE s",
            "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "DISCARD TEMP",
            "CREATE SCHEMA pgddl_copy_x",
            "CREATE TABLE pgddl_copy_x.t (id int)",
            "DROP SCHEMA pgddl_copy_x CASCADE",
            "CREATE TABLE pgddl.mine (id int)",
            "DROP TABLE pgddl.mine",
            "SET pgddl.skip = on",
            "CREATE TABLE skipped (id int)",
            "RESET pgddl.skip",
            "SET session_replication_role = replica",
            "CREATE TABLE replicated (id int)",
            "RESET session_replication_role",
            "CREATE TABLE IF NOT EXISTS skipped (id int)",
            "DROP TABLE IF EXISTS nothing",
            "CREATE ROLE ddl_nobody",
            "DROP ROLE ddl_nobody",
        ):
            conn.execute(statement.encode())
    assert source.events() == []


def test_an_extension_is_one_event(source: Source) -> None:
    events = source.after("CREATE EXTENSION vector", "CREATE TABLE v (e vector(3))", "DROP EXTENSION vector CASCADE")
    assert [e["tag"] for e in events] == ["CREATE EXTENSION", "CREATE TABLE", "DROP EXTENSION"]
    assert [(o["type"], o["identity"]) for o in events[0]["objects"]] == [("extension", "vector")]
    dropped = events[2]["dropped"]
    assert [d["identity"] for d in dropped if d["original"]] == ["vector"]
    assert ["public", "v"] in [d["table"] for d in dropped if d["type"] == "table column"]
    assert [c["name"] for c in table(events[2], "v")["columns"]] == []
    do(source.dsn, "CREATE EXTENSION vector")
    source.events()
    assert identities(only(source.after("DROP EXTENSION vector"))) == ["vector"]


def test_grants_are_events_without_identity(source: Source) -> None:
    events = source.after(
        "CREATE TABLE t (id int)",
        "GRANT SELECT ON t TO PUBLIC",
        "REVOKE SELECT ON t FROM PUBLIC",
        "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC",
        "ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM PUBLIC",
    )
    assert [(e["tag"], [o["identity"] for o in e["objects"]]) for e in events[1:]] == [
        ("GRANT", [None]),
        ("REVOKE", [None]),
        ("ALTER DEFAULT PRIVILEGES", [None]),
        ("ALTER DEFAULT PRIVILEGES", [None]),
    ]
