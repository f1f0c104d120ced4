"""`pgddl schema …` on two real servers: what it shows, what it leaves alone, and what --apply does to the target."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo

from tests.integration.lifecycle import Lifecycle, execute, left_behind, wait_until
from tests.integration.shells import SchemaShell

SOURCE = """
CREATE TABLE users (id int PRIMARY KEY, name text NOT NULL, phone_number varchar(20));
CREATE TABLE products (id int PRIMARY KEY, price numeric(10,2));
CREATE TABLE orders (id int PRIMARY KEY, note text);
"""
TARGET = """
CREATE TABLE users (name text NOT NULL, id bigint PRIMARY KEY, created_by_system text DEFAULT 'pgddl');
CREATE TABLE products (id int PRIMARY KEY, price int);
CREATE TABLE orders (id int PRIMARY KEY, note text);
"""
TABLES = {"tables": {"include": ["public.*"], "existing": "adopt"}}
ADD = "ALTER TABLE public.users ADD COLUMN phone_number character varying(20);"
RETYPE = "ALTER TABLE public.products ALTER COLUMN price TYPE numeric(10,2);"

Between = Callable[..., SchemaShell]


@pytest.fixture
def between(
    lifecycle: Callable[..., Lifecycle],
    source_dsn: str,
    target_dsn: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Between:
    """``between(source, target, schema={...})``: both sides with these tables, and nothing set up."""

    def make(source: str = SOURCE, target: str = TARGET, *, as_role: str | None = None, **sections: Any) -> SchemaShell:
        execute(source_dsn, source)
        execute(target_dsn, target)
        dsn = make_conninfo(target_dsn, user=as_role, password="mover") if as_role else target_dsn
        return SchemaShell(lifecycle(source_dsn, dsn, **(TABLES | sections)), tmp_path / "shop.yaml", capsys)

    return make


def status(found: dict[str, Any]) -> dict[str, str]:
    return {table["table"]: table["status"] for table in found["tables"]}


def columns(shell: SchemaShell, table: str) -> dict[str, str]:
    query = (
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        f"WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    return dict(shell.on_target(query))


# --- looking --------------------------------------------------------------------------------------------------------


def test_validation_needs_no_setup_and_leaves_nothing_behind(between: Between) -> None:
    shell = between()
    code, found = shell("validate")
    assert code == 3
    assert status(found) == {
        "public.orders": "compatible",
        "public.products": "schema_mismatch",
        "public.users": "schema_mismatch",
    }
    assert found["summary"] == {"compatible": 1, "warning": 0, "mismatch": 2}
    users = found["tables"][2]
    assert users["error"] == "Source has new column 'phone_number' not in target"
    assert users["resolution"] == "Add column to target or use --skip-columns"
    assert (users["source_columns"], users["target_columns"]) == (3, 3)
    assert {(f["kind"], f["severity"]) for f in users["findings"]} == {
        ("source_added_column", "mismatch"),
        ("safe_cast", "info"),
        ("target_added_column", "warning"),
    }
    assert left_behind(shell.move.source) == left_behind(shell.move.target) == []


def test_people_get_a_box(between: Between) -> None:
    code, said = between().say("validate")
    assert code == 3
    lines = said.splitlines()
    assert lines[1].split() == ["║", "Schema", "Validation", "Report", "║"]
    assert lines[3].split() == ["║", "public.orders", "✓", "OK", "║"]
    assert "║   All 2 columns match perfectly" in said
    assert "Source has 'phone_number' (not in target) - WILL STOP SYNC" in said
    assert "Type mismatch: price (numeric(10,2) vs integer)" in said
    assert "Recommendation: Fix issues before running sync" in said
    assert "\x1b" not in said


def test_only_some_tables_are_looked_at(between: Between) -> None:
    shell = between()
    code, found = shell("validate", "--tables", "public.orders")
    assert (code, status(found)) == (0, {"public.orders": "compatible"})
    code, said = shell.say("validate", "--tables", "public.order")
    assert code == 2
    assert "public.order is not a table of pipeline" in said


def test_tables_that_the_snapshot_will_make_are_no_mismatch(between: Between) -> None:
    code, found = between(target="")("validate")
    assert (code, found["summary"]["mismatch"]) == (0, 0)


def test_a_diff_shows_both_sides(between: Between) -> None:
    shell = between()
    code, said = shell.say("diff", "--table", "users")
    assert code == 3
    for line in (
        "Table: public.users",
        "  ✓ name (text) - types match",
        "  + phone_number  character varying(20)  ⚠ Data loss risk",
        "  + created_by_system  text DEFAULT 'pgddl'::text  ✓ Safe (has default)",
        "Sync status: INCOMPATIBLE",
        "Reason: Source has columns not in target (data loss risk)",
        f"  {ADD}",
    ):
        assert line in said.splitlines()
    code, found = shell("diff", "--table", "public.users")
    assert code == 3
    assert found["source"]["columns"]["phone_number"]["type"] == "character varying(20)"
    assert len(found["source_fingerprint"]) == len(found["target_fingerprint"]) == 64


@pytest.mark.parametrize("table", ["public.nothing", "nothing", "a.b.c", '"'])
def test_a_diff_of_no_table_is_bad_usage(between: Between, table: str) -> None:
    code, said = between().say("diff", "--table", table)
    assert code == 2
    assert said.startswith("pgddl: ")


def test_a_view_where_a_table_is_expected_is_a_verdict(between: Between) -> None:
    shell = between("CREATE TABLE a (id int PRIMARY KEY)", "CREATE VIEW a AS SELECT 1 AS id")
    code, found = shell("validate")
    assert code == 3
    assert found["tables"][0]["findings"][0]["kind"] == "not_a_table"
    code, found = shell("sync", "--apply")
    assert code == 3
    assert found["tables"][0]["statements"] == []
    assert len(found["tables"][0]["left_out"]) == 1


def test_names_of_any_kind_are_found_and_shown(between: Between) -> None:
    made = 'CREATE TABLE "Order Items" (id int PRIMARY KEY{}); CREATE TABLE "a.b" (id int PRIMARY KEY)'
    shell = between(made.format(', "the \nNote" text'), made.format(""))
    assert shell("diff", "--table", 'public."Order Items"')[0] == 3
    assert shell("diff", "--table", "public.a.b")[0] == 0
    code, said = shell.say("validate")
    assert code == 3
    assert len({len(line) for line in said.partition("\n\n")[0].splitlines() if "❌" not in line}) == 1
    assert shell("sync", "--apply")[0] == 0


# --- the policy's flags ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "code", "of_users"),
    [
        (["--skip-columns=users.phone_number"], 0, "warning"),
        (["--schema-validation=warn-only"], 0, "warning"),
        (["--allow-schema-drift=source_superset", "--force"], 0, "warning"),
        (["--schema-validation=strict"], 3, "schema_mismatch"),
    ],
)
def test_flags_change_the_verdict(between: Between, flags: list[str], code: int, of_users: str) -> None:
    assert_verdict(between()("validate", "--tables", "public.users", *flags), code, of_users)


def assert_verdict(answer: tuple[int, dict[str, Any]], code: int, of_users: str) -> None:
    assert (answer[0], status(answer[1])) == (code, {"public.users": of_users})


def test_a_flag_that_loses_data_needs_force(between: Between) -> None:
    code, said = between().say("validate", "--allow-schema-drift=source_superset")
    assert code == 2
    assert "--force" in said


# --- aligning -------------------------------------------------------------------------------------------------------


def test_a_dry_run_executes_nothing(between: Between) -> None:
    shell = between()
    code, said = shell.say("sync", "--dry-run")
    assert code == 3
    assert said.splitlines() == [
        "[DRY RUN] Would execute on target:",
        "",
        "-- Table: public.products",
        RETYPE,
        "",
        "-- Table: public.users",
        ADD,
        "",
        "-- Apply with:",
        f"pgddl schema sync -p {shell.file} --apply",
    ]
    assert "phone_number" not in columns(shell, "public.users")
    assert columns(shell, "public.products")["price"] == "integer"


def test_sync_wants_to_know_which(between: Between) -> None:
    shell = between()
    for args in ([], ["--dry-run", "--apply"]):
        code, said = shell.say("sync", *args)
        assert code == 2
        assert "give --dry-run, or --apply" in said


def test_apply_aligns_the_target(between: Between) -> None:
    shell = between()
    code, said = shell.say("sync", "--apply")
    assert code == 0, said
    assert said.splitlines() == [
        "[INFO] Aligning target schema with source...",
        "[INFO] Altering column public.products.price",
        "[INFO] Adding column public.users.phone_number",
        "[SUCCESS] Target schema now matches source",
        "[SUCCESS] Run 'pgddl run setup' to record schema fingerprints",
    ]
    assert columns(shell, "public.users")["phone_number"] == "character varying(20)"
    assert columns(shell, "public.products")["price"] == "numeric(10,2)"
    assert left_behind(shell.move.target) == []
    code, said = shell.say("sync", "--dry-run")
    assert (code, said) == (0, "[DRY RUN] Nothing to execute\n")


def test_what_is_only_warned_of_is_aligned_as_well(between: Between) -> None:
    shell = between()
    assert shell("sync", "--apply", "--schema-validation=warn-only")[0] == 0
    assert "phone_number" in columns(shell, "public.users")


def test_a_column_that_the_policy_leaves_out_is_not_added(between: Between) -> None:
    shell = between()
    assert shell("sync", "--apply", "--skip-columns=users.phone_number")[0] == 0
    assert "phone_number" not in columns(shell, "public.users")


def test_what_could_lose_something_on_the_target_waits_for_force(between: Between) -> None:
    shell = between(
        "CREATE TABLE a (id int PRIMARY KEY, n int); CREATE TABLE b (id int PRIMARY KEY, n int)",
        "CREATE TABLE a (id int PRIMARY KEY, n numeric(10,2)); INSERT INTO a VALUES (1, 19.99);"
        "CREATE TABLE b (id int PRIMARY KEY, n int CHECK (n > 0))",
    )
    code, found = shell("sync", "--apply")
    assert code == 1
    assert [table["applied"] for table in found["tables"]] == [False, False]
    assert "a value that the target has would change" in found["errors"][0]["what"]
    assert "--force runs: ALTER TABLE public.b DROP CONSTRAINT b_n_check;" in found["tables"][1]["left_out"][0]
    assert columns(shell, "public.a")["n"] == "numeric(10,2)"
    code, found = shell("sync", "--apply", "--force")
    assert (code, found["summary"]["mismatch"]) == (0, 0)
    assert columns(shell, "public.a")["n"] == "integer"


def test_a_type_is_changed_where_every_value_stays_what_it_is(between: Between) -> None:
    shell = between(
        "CREATE TABLE a (id int PRIMARY KEY, n int)",
        "CREATE TABLE a (id int PRIMARY KEY, n numeric(10,2)); INSERT INTO a VALUES (1, 19), (2, NULL)",
    )
    assert shell("sync", "--apply")[0] == 0
    assert shell.on_target("TABLE public.a") == [(1, 19), (2, None)]


def test_a_table_whose_values_do_not_fit_stops_alone_and_shows_none_of_them(between: Between) -> None:
    shell = between(
        "CREATE TABLE a (id int PRIMARY KEY, n int); CREATE TABLE b (id int PRIMARY KEY, note text)",
        "CREATE TABLE a (id int PRIMARY KEY, n text); CREATE TABLE b (id int PRIMARY KEY);"
        "INSERT INTO a VALUES (1, 'hush-hush')",
        schema={"type_mismatches": "stop", "safe_casts_allowed": False},
    )
    code, said = shell.say("sync", "--apply", "--force")
    assert code == 1
    assert "public.a: values in it do not fit" in said
    assert "hush" not in said
    assert columns(shell, "public.a")["n"] == "text"
    assert "note" in columns(shell, "public.b")


def test_a_table_of_somebody_else_is_named_with_what_its_owner_has_to_run(between: Between) -> None:
    roles = """
    DO $$ BEGIN CREATE ROLE schema_owner; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
    DO $$ BEGIN CREATE ROLE schema_mover LOGIN PASSWORD 'mover'; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
    """
    theirs = """
    ALTER TABLE users OWNER TO schema_owner;
    ALTER TABLE products OWNER TO schema_mover;
    ALTER TABLE orders OWNER TO schema_mover;
    GRANT ALL ON users TO schema_mover;
    """
    shell = between(SOURCE, roles + TARGET + theirs, as_role="schema_mover")
    code, said = shell.say("sync", "--apply")
    assert code == 1
    assert "public.users: role schema_mover may not alter it: its owner is schema_owner" in said
    assert f"  {ADD}" in said.splitlines()
    assert columns(shell, "public.products")["price"] == "numeric(10,2)"


# Makes its owner a superuser where it runs with the rights of one.
GUEST = """
DO $$ BEGIN CREATE ROLE schema_guest; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
CREATE SCHEMA guests AUTHORIZATION schema_guest;
CREATE FUNCTION guests.take(text) RETURNS int LANGUAGE plpgsql AS $f$ BEGIN
    PERFORM pg_catalog.set_config('role', 'none', true);
    IF pg_catalog.current_setting('application_name') LIKE 'pgddl:%' THEN
        ALTER ROLE schema_guest SUPERUSER;
    END IF;
    RETURN 1;
EXCEPTION WHEN OTHERS THEN RETURN 1;
END $f$;
ALTER FUNCTION guests.take(text) OWNER TO schema_guest;
CREATE TABLE guests.a (id int PRIMARY KEY, n {} CHECK (guests.take(n::text) > 0));
INSERT INTO guests.a VALUES (1, 1);
ALTER TABLE guests.a OWNER TO schema_guest;
"""


@pytest.mark.parametrize("trusted", [False, True], ids=["not trusted", "trusted"])
def test_a_table_is_aligned_as_its_owner_whose_code_that_runs(between: Between, trusted: bool) -> None:
    shell = between(
        GUEST.format("bigint"), GUEST.format("int"), tables={"include": ["guests.*"], "existing": "adopt"},
        trusted_roles=["schema_guest"] if trusted else [],
    )  # fmt: skip
    code, said = shell.say("sync", "--apply")
    gained = shell.on_target("SELECT rolsuper FROM pg_roles WHERE rolname = 'schema_guest'")
    execute(shell.move.target, "ALTER ROLE schema_guest NOSUPERUSER")
    assert (code, gained) == (0, [(trusted,)]), said
    assert columns(shell, "guests.a")["n"] == "bigint"


# --- locks ----------------------------------------------------------------------------------------------------------


@contextmanager
def reading(dsn: str, table: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody in a transaction that has read the table."""
    with psycopg.connect(dsn, application_name="report") as conn:
        conn.execute(f"TABLE {table}".encode())
        yield conn


def test_who_holds_the_table_is_named_once_patience_ends(between: Between) -> None:
    shell = between(ddl={"lock_timeout": "400ms", "retry_for": "200ms"})
    with reading(shell.move.target, "public.users"):
        code, said = shell.say("sync", "--apply")
    assert code == 5, said
    assert "public.users: could not get at the table" in said
    assert "report" in said
    assert columns(shell, "public.products")["price"] == "numeric(10,2)"
    assert shell("sync", "--apply")[0] == 0


def test_a_lock_is_waited_for_again_and_again(between: Between) -> None:
    shell = between(ddl={"lock_timeout": "50ms", "retry_for": "60s"})
    answers: list[tuple[int, dict[str, Any]]] = []
    with reading(shell.move.target, "public.users") as reader:
        work = threading.Thread(target=lambda: answers.append(shell("sync", "--apply", "--tables", "public.users")))
        work.start()
        tries = "SELECT count(*) FROM pg_locks WHERE relation = 'public.users'::regclass AND NOT granted"
        wait_until(lambda: shell.on_target(tries)[0][0])
        wait_until(lambda: not shell.on_target(tries)[0][0])  # nobody queues behind us between two tries
        reader.rollback()
        work.join(60)
    assert answers[0][0] == 0
    assert "phone_number" in columns(shell, "public.users")


# --- with a run under way -------------------------------------------------------------------------------------------


@pytest.fixture
def replayed(between: Between) -> SchemaShell:
    """A pipeline that follows, with an application that has added a column which nobody adds to the target."""
    rows = "INSERT INTO users SELECT n, 'user ' || n FROM generate_series(1, 50) n"
    shell = between(SOURCE + rows, "", capture={"ddl": "off"}, tables={"include": ["public.*"]})
    shell.move.run_all(until="replay")
    execute(shell.move.source, "ALTER TABLE users ADD email text")
    execute(shell.move.source, "INSERT INTO users VALUES (51, 'user 51', NULL, 'u51@example.com')")
    return shell


def test_apply_refreshes_the_journal_and_every_row_arrives(replayed: SchemaShell) -> None:
    shell = replayed
    shell.move.run("replay")
    code, found = shell("validate")
    assert code == 3
    assert status(found)["public.users"] == "schema_mismatch"
    assert next(t for t in found["tables"] if t["table"] == "public.users")["since"]
    code, found = shell("sync", "--apply")
    assert (code, found["recorded"]) == (0, True)
    ((recorded, source, target),) = shell.on_target(
        "SELECT status, source_fingerprint, target_fingerprint FROM pgddl.schema_status WHERE table_name = 'users'"
    )
    assert (recorded, source) == ("compatible", target)
    assert not shell.move.run("replay").blocked
    everything = "SELECT id, name, phone_number, email FROM public.users ORDER BY id"
    assert shell.on_target(everything) == shell.move.on_source(everything)


def test_a_column_that_the_source_has_lost_is_dropped_only_where_the_policy_says_so(replayed: SchemaShell) -> None:
    shell = replayed
    shell("sync", "--apply")
    execute(shell.move.source, "ALTER TABLE users DROP COLUMN phone_number")
    code, found = shell("sync", "--apply")
    assert code == 3
    assert "phone_number" in columns(shell, "public.users")
    (table,) = found["tables"]
    assert "its values would be gone" in table["left_out"][0]
    content = shell.move.content | {"schema": {"source_removed_columns": "drop", "force": True}}
    shell.file.write_text(yaml.safe_dump(content))
    assert shell("sync", "--apply")[0] == 0
    assert "phone_number" not in columns(shell, "public.users")


def test_who_is_in_the_way_is_signalled_where_the_pipeline_asks_for_it(replayed: SchemaShell) -> None:
    shell = replayed
    content = shell.move.content | {"ddl": {"signal_blockers": "terminate", "lock_timeout": "100ms"}}
    shell.file.write_text(yaml.safe_dump(content))
    with reading(shell.move.target, "public.users") as reader:
        assert shell("sync", "--apply")[0] == 0
        with pytest.raises(psycopg.OperationalError):
            reader.execute("SELECT 1")
    assert shell.on_target("SELECT application_name, signal, event_id FROM pgddl.killed_blockers") == [
        ("report", "terminate", None)
    ]
