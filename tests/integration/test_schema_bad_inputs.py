"""What people get wrong with two schemas: a verdict or a clear error with its exit code, never an exception's text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.commands import schema
from airflow_provider_pgddl.engine.errors import EXIT_BLOCKED, EXIT_DONE, EXIT_FAILED, EXIT_REFUSED, EXIT_USAGE
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.schema_commands import PASSWORD, Shop, rows, shop_of


@pytest.fixture
def shop(
    lifecycle: Callable[..., Lifecycle],
    source_dsn: str,
    target_dsn: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> Shop:
    """``shop(source, target, role=…, schema={...})``: both sides with these tables, and nothing set up."""
    return shop_of(lifecycle, (source_dsn, target_dsn), tmp_path, capfd)


ROLES = "DO $$ BEGIN CREATE ROLE {0} {1}; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
MOVER, OTHER, GUEST = "bad_mover", "bad_other", "bad_guest"


@pytest.fixture
def roles(source_dsn: str, target_dsn: str) -> Iterator[None]:
    """One that moves and owns what it makes, one that owns other things, one that may do nothing; no superuser."""
    for dsn in (source_dsn, target_dsn):
        for role, login in (
            (MOVER, f"LOGIN PASSWORD '{PASSWORD}'"),
            (GUEST, f"LOGIN PASSWORD '{PASSWORD}'"),
            (OTHER, ""),
        ):
            execute(dsn, ROLES.format(role, login))
        name = conninfo_to_dict(dsn)["dbname"]
        execute(dsn, f"GRANT ALL ON DATABASE {name} TO {MOVER}; GRANT ALL ON SCHEMA public TO {MOVER}, {OTHER}")
    yield
    for dsn in (source_dsn, target_dsn):
        execute(dsn, f"DROP OWNED BY {MOVER}, {OTHER}, {GUEST} CASCADE")


# --- one pipeline, everything wrong at once ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Bad:
    """What somebody does to table `{0}` behind the pipeline's back, and the words of the verdict; `heal` is what puts
    it right on the target, or "sync", or "fix": the statements of the report, by whoever may."""

    words: str
    target: str = ""
    source: str = ""
    heal: str = "sync"
    kind: str = "not_a_table"


def instead(made: str, drop: str) -> Bad:
    """Something that is no table in the place of one."""
    away = f"ALTER TABLE {{0}} RENAME TO was_{{0}}; {made}"
    return Bad("", away, heal=f"DROP {drop} {{0}}; ALTER TABLE was_{{0}} RENAME TO {{0}}")


RIGHTS = "SELECT, INSERT, UPDATE, DELETE, TRUNCATE"
BAD: Mapping[str, Bad] = {
    "a_view": replace(instead("CREATE VIEW {0} AS TABLE was_{0}", "VIEW"), words="is a view on the target"),
    "a_matview": replace(
        instead("CREATE MATERIALIZED VIEW {0} AS TABLE was_{0}", "MATERIALIZED VIEW"),
        words="is a materialized view on the target",
    ),
    "a_foreign": replace(
        instead(
            "CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;"
            " CREATE FOREIGN TABLE {0} (id int, note text) SERVER nowhere",
            "FOREIGN TABLE",
        ),
        words="is a foreign table on the target",
    ),
    "a_sequence": replace(instead("CREATE SEQUENCE {0}", "SEQUENCE"), words="is a sequence on the target"),
    "an_index": replace(instead("CREATE INDEX {0} ON was_{0} (note)", "INDEX"), words="is an index on the target"),
    "a_type": replace(instead("CREATE TYPE {0} AS (id int)", "TYPE"), words="is a composite type on the target"),
    "theirs": Bad(
        f"Our role lacks {RIGHTS} on public.theirs of the target", f"ALTER TABLE {{0}} OWNER TO {OTHER}",
        heal="fix", kind="privileges",
    ),
    "theirs_to_read": Bad(
        "Our role lacks INSERT, UPDATE, DELETE, TRUNCATE on", f"ALTER TABLE {{0}} OWNER TO {OTHER};"
        f"GRANT SELECT ON {{0}} TO {MOVER}", heal="fix", kind="privileges",
    ),
    "theirs_to_write": Bad(
        "Source has new column 'x' not in target", f"ALTER TABLE {{0}} OWNER TO {OTHER}; GRANT ALL ON {{0}} TO {MOVER}",
        "ALTER TABLE {0} ADD COLUMN x int DEFAULT 7", heal="fix", kind="source_added_column",
    ),
    "not_to_read": Bad(
        "Our role lacks SELECT on public.not_to_read of the source", source=f"REVOKE SELECT ON {{0}} FROM {MOVER}",
        heal="-- source", kind="privileges",
    ),
    "letters": Bad("they differ only in case", 'ALTER TABLE {0} RENAME note TO "Note"', kind="column_case"),
    "letters_too": Bad(
        "Source has renamed column 'note' to 'NOTE'", source='ALTER TABLE {0} RENAME note TO "NOTE"',
        kind="renamed_column",
    ),
    "an_enum": Bad(
        "nor does the target have type public.mood", source="CREATE TYPE mood AS ENUM ('sad', 'ok');"
        " ALTER TABLE {0} ADD one mood, ADD two mood NOT NULL DEFAULT 'ok'", kind="source_added_column",
    ),
    "an_enum_too": Bad(
        "nor does the target have type public.mood", source="ALTER TABLE {0} ADD moods mood[] DEFAULT '{{ok}}'",
        kind="source_added_column",
    ),
    "a_domain": Bad(
        "nor does the target have types public.mood, public.few",
        source="CREATE DOMAIN few AS mood[] CHECK (cardinality(VALUE) < 3); ALTER TABLE {0} ADD d few",
        kind="source_added_column",
    ),
    "a_vector": Bad(
        "nor does the target have type public.vector", heal="fix", kind="source_added_column",
        source="CREATE EXTENSION vector; ALTER TABLE {0} ADD v vector(3)",
    ),
    "a_vector_instead": Bad(
        "Type mismatch on public.a_vector_instead.note: public.vector(3) on the source, text on the target",
        source="ALTER TABLE {0} ALTER note TYPE vector(3) USING '[1,2,3]'", kind="type_mismatch",
        heal="ALTER TABLE {0} ALTER note TYPE public.vector(3) USING NULL",
    ),
    "gone": Bad("does not exist on the target", "DROP TABLE {0}", heal="fix", kind="missing_on_target"),
}  # fmt: skip


def test_each_is_a_verdict_and_every_row_arrives_once_it_is_right(
    shop: Shop, roles: None, source_dsn: str, target_dsn: str
) -> None:
    names = [*BAD, "healthy"]
    made = "".join(f"CREATE TABLE {n} (id int PRIMARY KEY, note text); INSERT INTO {n} VALUES (1, 'x');" for n in names)
    pgddl = shop(f"SET ROLE {MOVER}; {made}", role=MOVER)
    pgddl.move.run_all(until="replay")
    for name, bad in BAD.items():
        execute(source_dsn, bad.source.format(name))
        execute(target_dsn, bad.target.format(name))
    for name in names:
        execute(source_dsn, f"INSERT INTO {name} (id) VALUES (2); UPDATE {name} SET id = 3 WHERE id = 1")

    wrong = {f"public.{name}": bad.words for name, bad in BAD.items()}
    code, found = pgddl.asked("schema", "validate")
    assert code == EXIT_BLOCKED
    assert_verdicts(found, wrong)
    for name, bad in BAD.items():
        code, one = pgddl.asked("schema", "diff", "--table", name)
        assert (code, bad.words in one["error"], one["findings"][0]["kind"]) == (EXIT_BLOCKED, True, bad.kind), name
        assert pgddl("schema", "diff", "--table", name)[0] == EXIT_BLOCKED
    assert pgddl("schema", "validate")[0] == EXIT_BLOCKED
    reports = pgddl.gate()
    assert_verdicts({"tables": [r.to_json() for r in reports.values()]}, wrong)
    for stage in ("replay", "verify"):
        code, said = pgddl.stage(stage)
        assert code == EXIT_BLOCKED
        for table, words in wrong.items():
            assert any(line.startswith(f"pgddl: blocked: {table}: ") and words in line for line in said.splitlines())
        assert "blocked: public.healthy" not in said
    assert rows(target_dsn, "healthy") == rows(source_dsn, "healthy")

    code, _ = pgddl("schema", "sync", "--dry-run")
    assert code == EXIT_BLOCKED
    code, done = pgddl.asked("schema", "sync", "--apply")
    assert code == EXIT_FAILED
    of_others = {"public.theirs", "public.theirs_to_read", "public.theirs_to_write"}
    assert {e["table"] for e in done["errors"]} == {*of_others, "public.a_vector", "public.a_vector_instead"}
    assert all(f"its owner is {OTHER}" in e["what"] for e in done["errors"] if e["table"] in of_others)
    applied = {plan["table"] for plan in done["tables"] if plan["applied"]}
    assert applied == {f"public.{name}" for name, bad in BAD.items() if bad.heal == "sync"}
    for name, bad in BAD.items():
        if bad.heal == "fix":
            fix = reports[f"public.{name}"].findings[0].fix
            execute(target_dsn, f"SET ROLE {MOVER}; {fix[0]}" if name == "gone" else "".join(fix))
        elif bad.heal == "-- source":
            (grant,) = reports[f"public.{name}"].findings[0].fix
            execute(source_dsn, grant.removeprefix("-- on the source: "))
        elif bad.heal != "sync":
            execute(target_dsn, bad.heal.format(name))
    code, said = pgddl.stage("replay")
    assert (code, "blocked" in said) == (EXIT_DONE, False)
    assert pgddl("schema", "validate")[0] == EXIT_DONE
    for name in names:
        assert rows(target_dsn, name) == rows(source_dsn, name), name
    assert {r.status for r in pgddl.gate().values()} <= {"compatible", "warning"}


def assert_verdicts(found: Mapping[str, Any], wrong: Mapping[str, str]) -> None:
    """Each table has its error, and no other table any."""
    told = {t["table"]: t for t in found["tables"]}
    assert len(told) == len(found["tables"])
    for table, words in wrong.items():
        assert told[table]["status"] == "schema_mismatch", table
        assert words in told[table]["error"], table
    assert {t for t, one in told.items() if one["status"] != "schema_mismatch"} == {"public.healthy"}


# --- before setup, and without rights ---------------------------------------------------------------------------------

NO_TABLES = {
    "a view": "CREATE VIEW t AS SELECT 1 AS id",
    "a materialized view": "CREATE MATERIALIZED VIEW t AS SELECT 1 AS id",
    "a sequence": "CREATE SEQUENCE t",
}


@pytest.mark.parametrize("what", NO_TABLES)
def test_what_is_no_table_is_refused_before_anything_is_touched(shop: Shop, what: str) -> None:
    pgddl = shop("CREATE TABLE t (id int PRIMARY KEY)", NO_TABLES[what])
    code, found = pgddl.asked("schema", "validate")
    assert (code, found["tables"][0]["error"]) == (
        EXIT_BLOCKED,
        f"public.t is {what} on the target, where a table is expected",
    )
    assert pgddl("schema", "diff", "--table", "t")[0] == EXIT_BLOCKED
    assert pgddl("schema", "sync", "--apply")[0] == EXIT_BLOCKED
    assert pgddl.gate() == {}
    code, said = pgddl.stage("setup")
    assert code == EXIT_REFUSED
    assert f"public.t): {what} of that name is on the target already" in said


def test_tables_of_one_type_get_it_once(shop: Shop) -> None:
    """Also where the first of them cannot be altered, and where somebody has made the type meanwhile."""
    pgddl = shop(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE other AS ENUM ('x');"
        "CREATE TABLE a (id int PRIMARY KEY, m mood, n mood[], c date);"
        "CREATE TABLE b (id int PRIMARY KEY, m mood, o other); CREATE TABLE c (id int PRIMARY KEY, m mood)",
        "CREATE TABLE a (id int PRIMARY KEY, c int); INSERT INTO a VALUES (1, 5);"
        "CREATE TABLE b (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY)",
    )
    code, said = pgddl("schema", "sync", "--dry-run")
    assert code == EXIT_BLOCKED
    assert (said.count("CREATE TYPE public.mood"), said.count("CREATE TYPE public.other")) == (1, 1)
    code, done = pgddl.asked("schema", "sync", "--apply", "--force")
    assert (code, [e["table"] for e in done["errors"]]) == (EXIT_FAILED, ["public.a"])
    assert {v["table"]: v["status"] for v in done["verdicts"]} == {
        "public.a": "schema_mismatch", "public.b": "compatible", "public.c": "compatible",
    }  # fmt: skip
    execute(pgddl.move.target, "UPDATE public.a SET c = NULL")
    assert pgddl("schema", "sync", "--apply", "--force")[0] == EXIT_DONE


def test_a_type_that_came_meanwhile_is_taken(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    made = "CREATE TYPE mood AS ENUM ('sad', 'ok')"
    pgddl = shop(f"{made}; CREATE TABLE a (id int PRIMARY KEY, m mood)", "CREATE TABLE a (id int PRIMARY KEY)")
    plan_sync = schema.plan_sync

    def and_then(*args: Any, **options: Any) -> Any:
        plans = plan_sync(*args, **options)
        execute(pgddl.move.target, made)
        return plans

    monkeypatch.setattr(schema, "plan_sync", and_then)
    assert pgddl("schema", "sync", "--apply")[0] == EXIT_DONE


def test_types_of_extensions_that_the_target_lacks(shop: Shop, pg15: Cluster, database: Database) -> None:
    """Of Debian's contrib: plain, as an array, in a domain, and of an extension that is in a schema of its own."""
    source, target = database(pg15), database(pg15)
    execute(
        source,
        "CREATE SCHEMA ours; CREATE EXTENSION hstore SCHEMA ours; CREATE EXTENSION citext;"
        "CREATE DOMAIN mail AS citext CHECK (VALUE LIKE '%@%');"
        "CREATE TABLE t (id int PRIMARY KEY, h ours.hstore, c citext[], m mail, m2 mail)",
    )
    execute(target, "CREATE TABLE t (id int PRIMARY KEY)")
    pgddl = shop("", sides=(source, target))
    code, found = pgddl.asked("schema", "validate")
    assert (code, len(found["tables"][0]["findings"])) == (EXIT_BLOCKED, 4)
    assert pgddl("schema", "sync", "--apply")[0] == EXIT_DONE
    assert pgddl("schema", "validate")[0] == EXIT_DONE


def test_the_policy_adds_columns_of_one_type(shop: Shop) -> None:
    """Two columns, and two tables, that begin with the same CREATE TYPE."""
    pgddl = shop("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)",
                 schema={"source_added_columns": "add"})  # fmt: skip
    pgddl.move.run_all(until="replay")
    execute(
        pgddl.move.source,
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); INSERT INTO a VALUES (1); INSERT INTO b VALUES (1);"
        "ALTER TABLE a ADD m mood DEFAULT 'ok', ADD n mood[]; ALTER TABLE b ADD m mood DEFAULT 'sad'",
    )
    assert pgddl.stage("replay")[0] == EXIT_DONE
    for table in ("a", "b"):
        assert rows(pgddl.move.target, table) == rows(pgddl.move.source, table)


def test_a_role_without_rights_is_told_what_it_lacks(shop: Shop, roles: None) -> None:
    """Before setup a verdict, since catalogs can be read by everybody; afterwards the journal cannot."""
    made = "CREATE TABLE t (id int PRIMARY KEY)"
    owner = shop(made, made)
    guest = owner.as_role(GUEST)
    code, found = guest.asked("schema", "validate")
    assert code == EXIT_BLOCKED
    assert [f["kind"] for f in found["tables"][0]["findings"]] == ["privileges", "privileges"]
    assert guest("schema", "diff", "--table", "t")[0] == EXIT_BLOCKED
    code, said = guest("schema", "sync", "--apply")
    assert code == EXIT_FAILED
    assert f"role {GUEST} may not alter it" in said
    assert guest.gate() == {}
    assert guest("status")[0] == guest("metrics")[0] == EXIT_DONE
    assert guest.stage("setup")[0] == EXIT_REFUSED
    execute(owner.move.target, "DROP TABLE t")
    owner.move.run_all(until="replay")
    for command in (
        ["schema", "validate"], ["schema", "diff", "--table", "t"], ["schema", "sync", "--dry-run"],
        ["schema", "sync", "--apply"], ["status"], ["metrics"],
    ):  # fmt: skip
        code, said = guest(*command)
        assert (code, "permission denied for schema pgddl" in said) == (EXIT_FAILED, True), command
        assert "grant the missing right" in said
    assert guest.stage("replay")[0] == EXIT_FAILED
    assert owner.stage("replay")[0] == EXIT_DONE


def test_a_target_that_has_lost_its_journal_is_not_set_up(shop: Shop) -> None:
    pgddl = shop("CREATE TABLE t (id int PRIMARY KEY)")
    pgddl.move.run_all(until="replay")
    execute(pgddl.move.target, "DROP SCHEMA pgddl CASCADE")
    assert pgddl("schema", "validate")[0] == EXIT_DONE
    assert pgddl("schema", "diff", "--table", "t")[0] == EXIT_DONE
    assert pgddl("schema", "sync", "--apply")[0] == EXIT_DONE
    assert pgddl.gate() == {}
    code, said = pgddl("status")
    assert (code, "not set up" in said) == (EXIT_DONE, True)
    assert pgddl("metrics")[0] == EXIT_DONE
    code, said = pgddl.stage("replay")
    assert (code, "run stage setup first" in said) == (EXIT_USAGE, True)
