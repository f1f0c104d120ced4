"""Whatever a client sets in its session, and whatever it puts in front of our names: what is recorded of its commands
and its rows is what is recorded without that, none of its commands fails, and the gate stays open."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log, fence
from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.server import catalog
from tests.conftest import Database
from tests.integration.ddl_source import Source
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do, one

COMMANDS = (
    "CREATE TABLE shop.goods (id int PRIMARY KEY, price float8 DEFAULT 0.1)",
    "ALTER TABLE shop.goods ADD sold timestamptz DEFAULT '2026-01-02 03:04Z'",
    "ALTER TABLE shop.goods ADD seen date DEFAULT '2026-02-01', ADD pause interval DEFAULT '36:00', ADD raw bytea",
    "ALTER TABLE shop.goods DROP price, ADD CHECK (pause > '1 hour')",
    "ALTER TABLE shop.goods ALTER id TYPE bigint USING id + 1",
    "CREATE TYPE shop.mood AS ENUM ('fine')",
    "CREATE FUNCTION shop.mood(shop.goods) RETURNS shop.mood LANGUAGE sql AS 'SELECT NULL::shop.mood'",
    "CREATE VIEW shop.recent AS SELECT id, sold > '2026-01-01 00:00Z' AS new FROM shop.goods",
    "DO $$BEGIN ALTER TABLE shop.goods ADD nested int; ALTER TABLE shop.goods DROP nested; END$$",
    f"BEGIN; COMMENT ON TABLE shop.goods IS '{'long ' * 500}'; ALTER TABLE shop.goods DROP raw; COMMIT",
    "DROP TABLE shop.goods CASCADE",
    "DROP TYPE shop.mood",
)

JUNK = (
    "garbage",
    "{",
    "[]",
    "{}",
    "null",
    "1",
    '"text"',
    "[1, 2]",
    '{"role": 1}',
    "\n\n",
    "x\ny",
    "0" * 5000,
    '{"role": "postgres", "path": ["pg_catalog"], "settings": {}}',
    '{"error": "forged"}',
    "off",
    "true",
)
OURS = ("pgddl.stash", "pgddl.client", "pgddl.batch", "pgddl.alters", "pgddl.direct", "pgddl.skip", "pgddl.other")
STANDARD = {
    "TimeZone": ("Asia/Tokyo", "America/St_Johns", "<+3:30>-3:30"),
    "DateStyle": ("German, DMY", "SQL, MDY", "Postgres, DMY"),
    "IntervalStyle": ("iso_8601", "sql_standard"),
    "extra_float_digits": ("-15", "3"),
    "bytea_output": ("escape",),
    "lc_time": ("C",),
    "array_nulls": ("off",),
    "transform_null_equals": ("on",),
    "xmloption": ("document",),
    "xmlbinary": ("hex",),
    "row_security": ("off",),
    "standard_conforming_strings": ("off",),
    "backslash_quote": ("on",),
    "check_function_bodies": ("off",),
    "default_transaction_isolation": ("repeatable read", "serializable"),
    "default_transaction_deferrable": ("on",),
    "lock_timeout": ("1ms",),
    "statement_timeout": ("1min",),
    "client_min_messages": ("error", "debug5"),
    "client_encoding": ("LATIN1",),
    "synchronous_commit": ("off",),
    "plan_cache_mode": ("force_custom_plan", "force_generic_plan"),
    "jit_above_cost": ("0",),
    "enable_seqscan": ("off",),
    "work_mem": ("64kB",),
    "constraint_exclusion": ("on",),
    "exit_on_error": ("on",),
    "default_toast_compression": ("pglz",),
    "default_table_access_method": ("heap",),
    "temp_buffers": ("100",),
    "track_activities": (),
    "debug_parallel_query": ("on", "regress"),
    "parallel_leader_participation": ("off",),
    "restrict_nonsystem_relation_kind": ("view, foreign-table",),
    "plpgsql.extra_errors": ("all",),
    "plpgsql.extra_warnings": ("all",),
    "plpgsql.check_asserts": ("off",),
    "plpgsql.print_strict_params": ("on",),
}  # fmt: skip
OF_SUPERUSERS = {"plpgsql.variable_conflict": ("use_variable", "use_column"), "lc_messages": ("C",)}


@pytest.fixture(params=["16 queue", "18 wal"])
def source(request: pytest.FixtureRequest, database: Database) -> Iterator[Source]:
    version, transport = request.param.split()
    source = Source(database(request.getfixturevalue(f"pg{version}")), transport)
    source.start()
    do(
        source.dsn,
        "SET pgddl.skip = on; CREATE SCHEMA shop; CREATE SCHEMA private; CREATE TABLE private.precious (id int)",
        "DO $$BEGIN CREATE ROLE clerk; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END$$",
        "SET pgddl.skip = on; GRANT ALL ON SCHEMA shop TO clerk",
        "DO $$BEGIN EXECUTE format('GRANT CREATE, TEMP ON DATABASE %I TO clerk', current_database()); END$$",
    )
    yield source
    source.stop()
    do(source.dsn, "DROP OWNED BY clerk CASCADE")


def clerk(dsn: str, *, role: str = "clerk") -> psycopg.Connection[Any]:
    conn = psycopg.connect(dsn, autocommit=True)
    conn.execute(sql.SQL("SET SESSION AUTHORIZATION {}").format(sql.Identifier(role)))
    return conn


def set_to(conn: psycopg.Connection[Any], name: str, value: str) -> None:
    conn.execute("SELECT set_config(%s, %s, false)", [name, value])


def is_known(dsn: str, name: str) -> bool:
    """Not every version has every setting; what has a dot in its name can be set in any."""
    return "." in name or bool(one(dsn, "SELECT EXISTS (SELECT FROM pg_settings WHERE name = %s)", name))


def told(events: Sequence[CapturedEvent], *, without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Events without what is another one each time, and with oids in the order of their first appearance."""
    left_out = {"id", "xid", "seq", "lsn", "at", "batch", "settings", "kept_snapshot", *without}
    text = json.dumps([{k: v for k, v in e.items() if k not in left_out} for e in events], sort_keys=True)
    oids = dict[str, str]()
    text = re.sub(r"\b\d{5,}\b", lambda m: oids.setdefault(m[0], f"10{len(oids)}"), text)
    return cast("list[dict[str, Any]]", json.loads(text))


def recorded(source: Source, conn: psycopg.Connection[Any], commands: Sequence[str] = COMMANDS) -> list[CapturedEvent]:
    for command in commands:
        conn.execute(command.encode())
    return source.events()  # which wants no row in pgddl.exceptions


def plain(source: Source, **options: Any) -> list[dict[str, Any]]:
    with clerk(source.dsn, **options) as conn:
        return told(recorded(source, conn))


def test_our_own_settings_are_as_if_not_set_whatever_is_in_them(source: Source) -> None:
    expected = plain(source)
    assert len(expected) == 14
    different = []
    for name in OURS:
        with clerk(source.dsn) as conn:
            for value in JUNK:
                set_to(conn, name, value)
                if told(recorded(source, conn)) != expected:
                    different.append((name, value))
                assert conn.execute("SELECT current_setting(%s)", [name]).fetchone() == (value,)
    assert different == []


def test_the_server_s_settings_change_nothing_that_is_recorded(source: Source) -> None:
    for role, settings in {"clerk": STANDARD, "postgres": STANDARD | OF_SUPERUSERS}.items():
        expected = plain(source, role=role)
        different = []
        for name, values in settings.items():
            for value in values:
                with clerk(source.dsn, role=role) as conn:
                    if not is_known(source.dsn, name):
                        continue
                    set_to(conn, name, value)
                    if told(recorded(source, conn)) != expected:
                        different.append((name, value))
        assert different == [], role


def test_quoting_all_identifiers_quotes_what_was_dropped_and_nothing_else(source: Source) -> None:
    """The server has printed these names before anybody asks us."""
    with clerk(source.dsn) as conn:
        expected = told(recorded(source, conn))
        conn.execute("SET quote_all_identifiers = on")
        quoted = told(recorded(source, conn))

    def bare(events: list[dict[str, Any]]) -> str:
        dropped = [json.dumps(d).replace('\\"', "") for e in events for d in e["dropped"]]
        return json.dumps([dropped, [e | {"dropped": []} for e in events]])

    assert bare(quoted) == bare(expected)


TRAPS = (Path(__file__).parent / "traps.sql").read_text(encoding="utf-8")
IN_FRONT = "SET search_path = pg_temp, trap, shop, pg_catalog"
SPELLED = (
    "CREATE TABLE shop.goods (id pg_catalog.int8 PRIMARY KEY, price pg_catalog.float8)",
    "ALTER TABLE shop.goods ADD seen pg_catalog.date DEFAULT '2026-02-01'",
    "ALTER TABLE shop.goods DROP price",
    "ALTER TABLE shop.goods ALTER id TYPE pg_catalog.numeric",
    "DO $$BEGIN ALTER TABLE shop.goods ADD nested pg_catalog.date; END$$",
    "DROP TABLE shop.goods CASCADE",
)


def test_what_a_client_puts_in_front_of_our_names_is_never_looked_at(source: Source) -> None:
    with clerk(source.dsn) as conn:
        conn.execute(f"SET pgddl.skip = on; {TRAPS}; RESET pgddl.skip".encode())
        expected = recorded(source, conn, SPELLED)
        conn.execute(IN_FRONT.encode())
        with pytest.raises(psycopg.errors.RaiseException, match="trapped"):
            conn.execute("SELECT current_setting('search_path', true)")
        hostile = recorded(source, conn, SPELLED)
        assert {e["role"] for e in hostile} == {"clerk"}
        assert {tuple(e["path"])[1:] for e in hostile} == {("trap", "shop", "pg_catalog")}
        # The client's own path is what its words mean.
        own = ("path", "names", "functions")
        assert told(hostile, without=own) == told(expected, without=own)


def test_what_may_be_run_in_a_read_only_transaction_still_may(source: Source) -> None:
    """From 17 on REINDEX comes to event triggers, which cannot write there; it changes nothing that follows."""
    with clerk(source.dsn) as conn:
        recorded(source, conn, ["CREATE TABLE shop.mine (id int PRIMARY KEY)"])
        conn.execute("SET default_transaction_read_only = on")
        assert recorded(source, conn, ["REINDEX TABLE shop.mine"]) == []


# Who it was


CLAIMS = (
    "SET LOCAL pgddl.client = '{forged}'; ALTER TABLE shop.mine ADD a int",
    "DO $$BEGIN PERFORM set_config('pgddl.client', '{forged}', true); ALTER TABLE shop.mine ADD a int; END$$",
    """
    CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE plpgsql AS
        $$BEGIN PERFORM set_config('pgddl.client', '{forged}', false); RETURN 1; END$$;
    ALTER TABLE shop.mine ADD a int DEFAULT pg_temp.f() CHECK (pg_temp.f() = 1)
    """,
    "SELECT shop.claiming()",
)


@pytest.mark.parametrize("ending", ["", '\n{"role": "postgres"}'])
def test_nobody_can_claim_to_be_somebody_else(source: Source, ending: str) -> None:
    forged = '{"role": "postgres", "path": ["private"], "settings": {}}' + ending
    do(
        source.dsn,
        "SET pgddl.skip = on; CREATE FUNCTION shop.claiming() RETURNS void LANGUAGE sql"
        f" SET pgddl.client = '{forged}' AS 'ALTER TABLE shop.mine ADD a int'",
    )
    for commands in CLAIMS:
        with clerk(source.dsn) as conn:
            recorded(source, conn, ["CREATE TABLE shop.mine (id int)", "INSERT INTO shop.mine VALUES (1)"])
            conn.execute(f"BEGIN; {commands.replace('{forged}', forged)}; COMMIT".encode())
            (event,) = source.events()
            recorded(source, conn, ["DROP TABLE shop.mine CASCADE"])
        assert (event["tag"], event["role"], event["session_role"]) == ("ALTER TABLE", "clerk", "clerk"), commands
        assert "public" in event["path"] and event["settings"]["TimeZone"], commands


def test_a_function_with_its_owner_s_rights_is_its_owner_still(source: Source) -> None:
    do(
        source.dsn,
        "CREATE FUNCTION public.made() RETURNS void LANGUAGE sql SECURITY DEFINER"
        " AS 'CREATE TABLE private.made (id int)'",
    )
    source.events()
    with clerk(source.dsn) as conn:
        (event,) = recorded(source, conn, ["SELECT public.made()"])
    assert (event["role"], event["session_role"]) == ("postgres", "clerk")


def test_commands_of_an_event_trigger_between_ours_are_its_own(source: Source) -> None:
    """An administrator's trigger has its own rights and path; the client's command keeps the client's."""
    do(
        source.dsn,
        "SET pgddl.skip = on; CREATE FUNCTION private.noted() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER"
        " SET search_path = private AS $$BEGIN IF tg_tag = 'ALTER TABLE' THEN CREATE TABLE IF NOT EXISTS note (id int);"
        " COMMENT ON TABLE note IS 'x'; END IF; END$$;"
        "CREATE EVENT TRIGGER pgddl_1_noted ON ddl_command_end EXECUTE FUNCTION private.noted();"
        "CREATE EVENT TRIGGER pgddl_0_noted ON ddl_command_start WHEN TAG IN ('ALTER TABLE')"
        " EXECUTE FUNCTION private.noted()",
    )
    with clerk(source.dsn) as conn:
        events = recorded(source, conn, ["CREATE TABLE shop.mine (id int)", "ALTER TABLE shop.mine ADD a int"])
    do(source.dsn, "DROP EVENT TRIGGER pgddl_1_noted; DROP EVENT TRIGGER pgddl_0_noted")
    assert [(e["tag"], e["role"], "private" in e["path"]) for e in events] == [
        ("CREATE TABLE", "clerk", False),
        ("CREATE TABLE", "postgres", True),
        ("COMMENT", "postgres", True),
        ("COMMENT", "postgres", True),
        ("ALTER TABLE", "clerk", False),
    ]


# What a command has dropped or rewritten


def test_what_a_client_reads_of_the_stash_gives_it_no_way_to_add_to_it(source: Source) -> None:
    """In the middle of a command that rewrites, and in the string of commands behind it, under the same key."""
    entry = '{"dropped": [{"classid": "pg_class", "objid": 1, "identity": "private.precious"}]}'
    seen = "current_setting('shop.stash')"
    do(
        source.dsn,
        "SET pgddl.skip = on; CREATE FUNCTION shop.read(id int) RETURNS bigint LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM set_config('shop.stash', current_setting('pgddl.stash'), false); RETURN id; END$$",
    )
    for forged in (
        f"left({seen}, 32) || '{entry}'",
        f"{seen} || '{entry}'",
        f'replace({seen}, \'{{\', \'{{"dropped": [{{"identity": "private.precious"}}], \')',
        f"md5(left({seen}, 32) || md5(left({seen}, 32) || '{entry}')) || '{entry}'",
        f"'{{\"' || left({seen}, 32) || '\": {entry}}}'",
    ):
        with clerk(source.dsn) as conn:
            recorded(source, conn, ["CREATE TABLE shop.mine (id int)", "INSERT INTO shop.mine VALUES (1)"])
            conn.execute(
                "BEGIN; ALTER TABLE shop.mine ALTER id TYPE bigint USING shop.read(id);"
                f"SELECT set_config('pgddl.stash', {forged}, true); ALTER TABLE shop.mine ADD b int; COMMIT".encode()
            )
            assert len(str(one_value(conn, "SELECT current_setting('shop.stash')"))) > 32
            rewriting, adding = source.events()
            recorded(source, conn, ["DROP TABLE shop.mine"])
        assert len(rewriting["rewritten"]) == 1 and rewriting["dropped"] == []
        assert adding["rewritten"] == adding["dropped"] == []


def one_value(conn: psycopg.Connection[Any], query: str) -> Any:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def test_a_zone_set_in_the_middle_loses_nothing(source: Source) -> None:
    """C9: with TimeZone other than ours, what a command dropped was not found again."""
    with clerk(source.dsn) as conn:
        events = recorded(
            source,
            conn,
            [
                "CREATE TABLE shop.mine (id int, b int)",
                "SET TimeZone = 'Asia/Tokyo'; ALTER TABLE shop.mine DROP b",
                "SET TimeZone = 'UTC'; SET DateStyle = 'German'; DROP TABLE shop.mine",
            ],
        )
    assert [[d["identity"] for d in e["dropped"]] for e in events] == [[], ["shop.mine.b"], ["shop.mine"]]


# Rows


@pytest.mark.parametrize("version", [16, 18])
def test_rows_are_logged_and_fenced_the_same(version: int, request: pytest.FixtureRequest, database: Database) -> None:
    source = Source(database(request.getfixturevalue(f"pg{version}")), "queue")
    source.start()
    do(source.dsn, "CREATE TABLE rows (id int, code text, body text, PRIMARY KEY (id, code))")
    with source.session() as session:
        oid = catalog.oid_of(session, "public", "rows")
        assert oid is not None
        prepared = change_log.prepare(session, source.pipeline, [oid], 1.0)[oid]
        change_log.start(session, source.pipeline, prepared, 1.0)

    def logged(*before: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(source.dsn, autocommit=True) as writer:
            for statement in before:
                writer.execute(statement.encode())
            writer.execute("INSERT INTO public.rows VALUES (1, 'a', 'x'), (2, 'b', 'x')")
            writer.execute("UPDATE public.rows SET code = 'c', body = 'y'")
            writer.execute("DELETE FROM public.rows WHERE body OPERATOR(pg_catalog.=) 'y'")
            writer.execute("TRUNCATE public.rows")
        with source.session() as reader:
            table = change_log.log_table(prepared.log)
            query = sql.SQL("SELECT op, leaf, old_1, old_2, new_1, new_2 FROM {} ORDER BY ctid").format(table)
            rows = reader.execute(query).fetchall()
            reader.execute(sql.SQL("DELETE FROM {}").format(table))
        return rows

    expected = logged()
    assert [row[0] for row in expected] == ["I", "I", "U", "U", "D", "D", "T"]
    assert logged(TRAPS, "SET search_path = pg_temp, trap, public, pg_catalog") == expected
    settings = {**STANDARD, **OF_SUPERUSERS, **dict.fromkeys(OURS, JUNK), "session_replication_role": ("replica",)}
    for name, values in settings.items():
        for value in values:
            if is_known(source.dsn, name):
                assert logged(f"SELECT set_config('{name}', $v${value}$v$, false)") == expected, (name, value)
    with source.session() as session:
        fence.raise_fence(session, source.pipeline, ("public", "rows"))
    with psycopg.connect(source.dsn, autocommit=True) as writer:
        writer.execute("SET search_path = pg_temp, trap, public, pg_catalog")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="pipeline shop has moved it"):
            writer.execute("INSERT INTO public.rows VALUES (1, 'a', 'x')")
    assert one(source.dsn, "SELECT count(*) FROM pgddl.exceptions") == 0


@pytest.mark.parametrize("version", [16, 18])
def test_a_table_leaves_its_publication_whatever_is_set(
    version: int, request: pytest.FixtureRequest, database: Database, lifecycle: Callable[..., Lifecycle]
) -> None:
    """Each command of a string in its turn, also where the zone changes in between."""
    source = database(request.getfixturevalue(f"pg{version}"))
    do(source, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    shop = lifecycle(
        source,
        database(request.getfixturevalue(f"pg{version}")),
        tables={"include": ["public.*"]},
        capture={"rows": "wal"},
    )
    shop.run_all(until="snapshot")
    for name in OURS:
        with psycopg.connect(source) as conn:
            for value in JUNK:
                set_to(conn, name, value)
                conn.execute(
                    "ALTER TABLE a ALTER id TYPE bigint; SET LOCAL TimeZone = 'Asia/Tokyo';"
                    "ALTER TABLE b ALTER id TYPE bigint"
                )
                assert conn.execute("SELECT count(*) FROM pg_publication_rel").fetchone() == (0,), (name, value)
                conn.rollback()
    assert one(source, "SELECT count(*) FROM pgddl.exceptions") == 0
