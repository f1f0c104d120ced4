"""Live DDL of a role that nobody trusts, and everything that only looks: neither runs code of hers as somebody else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import yaml

from airflow_provider_pgddl import cli
from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.commands.ddl import record_decision
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.combinations import matrix
from tests.integration.attempts import Attempt
from tests.integration.foreign_code import migration, rewrite
from tests.integration.lifecycle import Lifecycle
from tests.integration.mallory import Mallory
from tests.integration.mallory_kinds import BY_NAME, KINDS, PLAIN, Kind

Make = Callable[..., Lifecycle]


TAGS = {
    "create_tags": ["ALTER TABLE", "CREATE TABLE", "CREATE TABLE AS", "SELECT INTO", "CREATE MATERIALIZED VIEW",
                    "REFRESH MATERIALIZED VIEW", "CREATE INDEX", "CREATE FUNCTION", "CREATE DOMAIN", "ALTER DOMAIN",
                    "CREATE VIEW", "CREATE TYPE", "CREATE STATISTICS", "CREATE TRIGGER", "COMMENT", "CREATE SCHEMA"],
    "on_failure": "queue",
}  # fmt: skip

# What she does to a table of its own, {t}; it says in which way her code would be run.
CHANGES: dict[str, str] = {
    "add_default": "ALTER TABLE {t} ADD COLUMN d bigint DEFAULT m.evil(1, '{w}')",
    "add_volatile_default": "CREATE FUNCTION m.anew_{w}() RETURNS bigint LANGUAGE plpgsql AS"
    " $$ BEGIN PERFORM m.strike('{w}'); RETURN 1; END $$; ALTER TABLE {t} ADD COLUMN d bigint DEFAULT m.anew_{w}()",
    "add_generated": "ALTER TABLE {t} ADD COLUMN g bigint GENERATED ALWAYS AS (m.evil(id, '{w}')) STORED",
    "add_domain": "CREATE DOMAIN m.word_{w} AS text DEFAULT 'x' CHECK (m.told(VALUE, '{w}') IS NOT NULL);"
    " ALTER TABLE {t} ADD COLUMN d m.word_{w}",
    "retype": "ALTER TABLE {t} ALTER v TYPE varchar USING m.told(v, '{w}')",
    "add_check": "ALTER TABLE {t} ADD CHECK (m.evil(id, '{w}') > 0)",
    "validate_check": "ALTER TABLE {t} ADD CONSTRAINT c CHECK (m.evil(id, '{w}') > 0) NOT VALID;"
    " ALTER TABLE {t} VALIDATE CONSTRAINT c",
    "set_not_null": "CREATE INDEX ON {t} (v) WHERE m.evil(1, '{w}') > 0;"
    " ALTER TABLE {t} ADD CHECK (m.evil(1, '{w}') > 0); ALTER TABLE {t} ALTER v SET NOT NULL",
    "index": "CREATE INDEX ON {t} ((m.evil(id, '{w}')))",
    "index_predicate": "CREATE INDEX ON {t} (v) WHERE m.evil(1, '{w}') > 0",
    "exclude": "ALTER TABLE {t} ADD EXCLUDE USING btree ((m.evil(id, '{w}')) WITH =)",
    "statistics": "CREATE STATISTICS m.s_{w} ON (m.evil(id, '{w}')), v FROM {t}",
    "alter_domain": "CREATE DOMAIN m.word_{w} AS text; ALTER TABLE {t} ADD COLUMN d m.word_{w} DEFAULT 'x';"
    " ALTER DOMAIN m.word_{w} ADD CHECK (m.told(VALUE, '{w}') IS NOT NULL)",
    "table_as": "CREATE TABLE m.as_{w} AS SELECT id, m.evil(id, '{w}') AS e FROM {t}",
    "materialized_view": "CREATE MATERIALIZED VIEW m.on_{w} AS SELECT id, m.evil(id, '{w}') AS e FROM {t}",
    "new_table": "CREATE TABLE m.new_{w} (id bigint PRIMARY KEY, v text CHECK (m.told(v, '{w}') IS NOT NULL),"
    " g bigint GENERATED ALWAYS AS (m.evil(id, '{w}')) STORED); INSERT INTO m.new_{w} (id, v) VALUES (1, 'a')",
    "partition_of": "CREATE TABLE m.p_{w} (id bigint, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
    " CREATE TABLE m.p_{w}_1 (id bigint PRIMARY KEY, v text, CHECK (m.evil(id, '{w}') > 0), CHECK (id > 0));"
    " INSERT INTO m.p_{w}_1 VALUES (1, 'a'); ALTER TABLE m.p_{w} ATTACH PARTITION m.p_{w}_1 FOR VALUES FROM (1) TO (9)",
    "denied": "CREATE FUNCTION m.denied_{w}(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN"
    " IF current_user = session_user AND current_user = {name} THEN RETURN v; END IF;"
    " PERFORM m.strike('{w}');"
    " IF current_user = {name} THEN RAISE EXCEPTION 'not as her' USING ERRCODE = '42501'; END IF;"
    " RETURN v; END $$; ALTER TABLE {t} ALTER v TYPE varchar USING m.denied_{w}(v)",
    "table_as_denied": "CREATE FUNCTION m.denied_{w}(n bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN"
    " IF current_user = session_user AND current_user = {name} THEN RETURN n; END IF;"
    " PERFORM m.strike('{w}');"
    " IF current_user = {name} THEN RAISE EXCEPTION 'not as her' USING ERRCODE = '42501'; END IF;"
    " RETURN n; END $$; ALTER TABLE {t} ADD COLUMN d bigint DEFAULT m.denied_{w}(1)",
    "in_a_block": "DO $$ BEGIN EXECUTE 'ALTER TABLE {t} ADD COLUMN d bigint DEFAULT m.evil(1, ''{w}'')'; END $$",
}
# Outside of a transaction.
CONCURRENTLY = {
    "index_concurrently": "CREATE INDEX CONCURRENTLY ON {t} ((m.evil(id, '{w}'))) WHERE m.evil(1, '{w}') > 0",
    "unique_concurrently": "CREATE UNIQUE INDEX CONCURRENTLY ON {t} ((m.evil(id, '{w}')))",
}
ALL = {**CHANGES, **CONCURRENTLY}


def tables(names: list[str]) -> list[Kind]:
    return [Kind(f"ddl_{name}", PLAIN) for name in names]


def change(mallory: Mallory, dsn: str, name: str) -> None:
    """Each statement in a transaction of its own, from a session of hers that is full of traps."""
    kind = Kind(f"ddl_{name}", PLAIN)
    with psycopg.connect(mallory.at(dsn), autocommit=True) as conn:
        if name not in CONCURRENTLY:
            conn.execute("SET search_path = ''; SET standard_conforming_strings = on")
        conn.execute(mallory.named(kind.told(ALL[name])))


def applied_or_left_out(move: Lifecycle) -> None:
    """What cannot be applied is left out by a person: otherwise nothing that is behind it would be tried."""
    waiting = "SELECT id FROM pgddl.ddl_events WHERE status IN ('failed', 'unhandled', 'applying') ORDER BY id LIMIT 1"
    for _ in range(2 * len(ALL)):
        with contextlib.suppress(PgddlError):
            move.run("replay")
        first = move.journal(waiting)
        if not first:
            return
        record_decision(
            load_pipeline(move.content), move.source, move.target, first[0][0], "skipped", "hers", "the test"
        )
    raise AssertionError("there is no end to it")


@pytest.mark.parametrize("when", matrix("backfill", "replay"))
def test_ddl_of_hers_is_applied_with_her_rights_or_not_at_all(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make, when: str
) -> None:
    """Whatever cannot be done as her stops its own table, and nobody does it for her."""
    kinds = tables(list(ALL))
    mallory.makes(on_both[0], kinds)
    attempt = Attempt(mallory, migration(lifecycle, *on_both, kinds, ddl=TAGS), kinds)
    for stage in stages.STAGES[: stages.STAGES.index(when) + 1]:
        attempt.stage(stage)
    for name in ALL:
        change(mallory, on_both[0], name)
    applied_or_left_out(attempt.move)
    attempt.writes()
    applied_or_left_out(attempt.move)
    told = "SELECT status, count(*), min(message) FROM pgddl.ddl_events WHERE tag <> '' GROUP BY status"
    with contextlib.suppress(psycopg.Error):
        print(attempt.move.journal(told))
    attempt.gained_nothing()


IN_PLACE = [
    "add_default", "add_volatile_default", "add_generated", "add_domain", "retype", "add_check", "validate_check",
    "index", "index_predicate", "statistics", "denied", "table_as_denied", "in_a_block", "index_concurrently",
]  # fmt: skip


@pytest.mark.parametrize("rows", matrix("change_log", "direct_trigger"))
def test_ddl_of_hers_on_a_table_that_is_rewritten(
    mallory: Mallory, pg18: Cluster, target_dsn: str, lifecycle: Make, rows: str
) -> None:
    mallory.joins(pg18).moves_in(target_dsn)
    kinds = tables(IN_PLACE)
    mallory.makes(target_dsn, kinds)
    attempt = Attempt(mallory, rewrite(lifecycle, target_dsn, kinds, capture={"rows": rows}), kinds)
    for stage in ("setup", "snapshot", "backfill", "schema_sync"):
        attempt.stage(stage)
    for name in IN_PLACE:
        change(mallory, target_dsn, name)
    applied_or_left_out(attempt.move)
    attempt.writes()
    for stage in ("replay", "replay", "verify", "swap"):
        with contextlib.suppress(PgddlError):
            attempt.move.run(stage)
    attempt.gained_nothing()


# --- what only looks --------------------------------------------------------------------------------------------------

LOOKED_AT = [kind for kind in KINDS if "across" in kind.where]


class Shell:
    """`pgddl …` in this process; whatever it says, it may not run code of hers."""

    def __init__(self, move: Lifecycle, file: Path) -> None:
        self._file = file
        file.write_text(yaml.safe_dump(move.content))

    def __call__(self, *args: str) -> int:
        return cli.main([*args, "-p", str(self._file), "--json"])


def test_whoever_only_looks_runs_no_code_of_hers(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mallory.makes(on_both[0], LOOKED_AT)
    mallory.tells_for_good(on_both[0])
    move = migration(lifecycle, *on_both, LOOKED_AT)
    shell = Shell(move, tmp_path / "hers.yaml")
    for args in (["check"], ["plan"], ["status"], ["schema", "validate"],
                 ["schema", "diff", "--table", "m.index_constant"]):  # fmt: skip
        shell(*args)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert mallory.escalations(on_both[0]) == [], args


SOME = [BY_NAME[name] for name in ("check_constant", "domain", "generated", "index_constant", "statistics_constant",
                                   "index_predicate", "cast_of_enum_implicit")]  # fmt: skip


def test_putting_the_target_right_and_looking_at_a_swap_run_no_code_of_hers(
    mallory: Mallory, on_both: tuple[str, str], lifecycle: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns with defaults of hers, and of types that have code, are added by `schema sync --apply`."""
    mallory.makes(on_both[0], SOME)
    capture = {"ddl": "off"}
    move = migration(
        lifecycle, *on_both, SOME, capture=capture,
        schema={"auto_migrate": {"types": ["add_column", "safe_type_change"]}},
    )  # fmt: skip
    attempt = Attempt(mallory, move, SOME)
    for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay"):
        attempt.stage(stage)
    mallory.does(
        on_both[0],
        "ALTER TABLE m.check_constant ADD COLUMN d bigint DEFAULT m.evil(1, 'synced')",
        "ALTER TABLE m.generated ADD COLUMN d m.word_domain DEFAULT m.told('x', 'synced')",
        "ALTER TABLE m.index_constant ALTER v TYPE varchar USING m.told(v, 'synced')",
    )
    attempt.writes()
    shell = Shell(move, tmp_path / "hers.yaml")
    for args in (
        ["schema", "validate"], ["schema", "diff", "--table", "m.generated"], ["schema", "sync", "--dry-run"],
        ["schema", "sync", "--apply"], ["status"], ["plan"],
    ):  # fmt: skip
        shell(*args)
        print(json.dumps(args), capsys.readouterr().out[-300:])
    added = "SELECT attname FROM pg_attribute WHERE attname = 'd' AND attrelid = 'm.check_constant'::regclass"
    assert len(move.journal(added)) == 1
    for stage in ("replay", "verify"):
        with contextlib.suppress(PgddlError):
            move.run(stage)
    attempt.gained_nothing()


def test_a_rehearsal_of_a_swap_runs_no_code_of_hers(
    mallory: Mallory, pg18: Cluster, target_dsn: str, lifecycle: Make
) -> None:
    mallory.joins(pg18).moves_in(target_dsn)
    more = ("materialized_view", "aggregate", "rule", "policy", "trigger_deferred")
    kinds = [*SOME, *(BY_NAME[name] for name in more)]
    mallory.makes(target_dsn, kinds)
    attempt = Attempt(mallory, rewrite(lifecycle, target_dsn, kinds), kinds)
    for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify"):
        attempt.stage(stage)
    attempt.writes()
    attempt.stays()
    mallory.tells_for_good(target_dsn)
    with contextlib.suppress(PgddlError):  # her sequence's lock may stand in the way of what is refused for it
        attempt.move.dry_run("swap")
    attempt.stays()


def test_a_table_that_becomes_a_view_of_hers_is_not_read(
    mallory: Mallory, pg18: Cluster, target_dsn: str, lifecycle: Make
) -> None:
    """Between two stages the name that we have recorded is another relation, whose reader runs her code."""
    mallory.joins(pg18).moves_in(target_dsn)
    kinds = [BY_NAME["names"], BY_NAME["default"]]
    mallory.makes(target_dsn, kinds)
    attempt = Attempt(mallory, rewrite(lifecycle, target_dsn, kinds), kinds)
    for stage in ("setup", "snapshot"):
        attempt.stage(stage)
    mallory.does(
        target_dsn,
        "ALTER TABLE m.default RENAME TO was; CREATE VIEW m.default AS"
        " SELECT id, v, m.evil(id, 'view') AS d FROM m.was WHERE m.evil(1, 'view') > 0".replace(
            "m.default", 'm."default"'
        ),
    )
    for stage in ("backfill", "schema_sync", "replay", "verify", "swap"):
        with contextlib.suppress(PgddlError):
            attempt.move.run(stage)
    stages.status(load_pipeline(attempt.move.content), target_dsn, target_dsn)
    with contextlib.suppress(PgddlError):
        stages.reset(load_pipeline(attempt.move.content), target_dsn, target_dsn, None)
    attempt.gained_nothing()


def test_c28_a_policy_is_not_asked_whether_a_new_partition_has_rows(
    lifecycle: Make, source_dsn: str, target_dsn: str, request: pytest.FixtureRequest
) -> None:
    """On a managed server, whose administrator's role makes event triggers, our functions belong to a role that
    policies are for. It is made here of a superuser's set: no server of the tests has such a role."""

    def drop() -> None:
        with psycopg.connect(source_dsn, autocommit=True) as last:
            last.execute("DROP SCHEMA IF EXISTS pgddl CASCADE")
            last.execute("REVOKE SET ON PARAMETER lc_messages FROM keeper; DROP OWNED BY keeper, owner_of_m CASCADE")
            last.execute("DROP ROLE keeper, owner_of_m")

    with psycopg.connect(source_dsn, autocommit=True) as conn:
        conn.execute("CREATE ROLE keeper; CREATE ROLE owner_of_m; GRANT owner_of_m TO keeper")
        request.addfinalizer(drop)
        conn.execute("GRANT SET ON PARAMETER lc_messages TO keeper")
        conn.execute("CREATE SCHEMA m AUTHORIZATION owner_of_m; CREATE TABLE m.told (who text)")
        conn.execute("GRANT INSERT ON m.told TO PUBLIC; SET ROLE owner_of_m")
        conn.execute("CREATE TABLE m.root (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        conn.execute("CREATE TABLE m.rest PARTITION OF m.root DEFAULT; RESET ROLE")
        lifecycle(source_dsn, target_dsn, tables={"include": ["m.root"]}, capture={"ddl": "queue"}).run("setup")
        conn.execute("GRANT USAGE, CREATE ON SCHEMA pgddl TO keeper")
        conn.execute("""
            DO $$ DECLARE it record; BEGIN
                FOR it IN SELECT 'TABLE' AS kind, oid::regclass::text AS name FROM pg_class
                          WHERE relnamespace = 'pgddl'::regnamespace AND relkind = 'r'
                          UNION ALL
                          SELECT 'FUNCTION', oid::regprocedure::text FROM pg_proc
                          WHERE pronamespace = 'pgddl'::regnamespace
                            AND (prorettype <> 'event_trigger'::regtype OR proname = 'record_command')
                LOOP EXECUTE format('ALTER %s %s OWNER TO keeper', it.kind, it.name); END LOOP;
            END $$""")
        conn.execute("SET ROLE owner_of_m")
        conn.execute("""
            CREATE FUNCTION m.evil() RETURNS boolean LANGUAGE plpgsql AS
                'BEGIN INSERT INTO m.told VALUES (current_user); RETURN true; END';
            CREATE TABLE m.part (LIKE m.root INCLUDING ALL);
            INSERT INTO m.part VALUES (1);
            ALTER TABLE m.part ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
            CREATE POLICY asked ON m.part USING (m.evil())""")
        conn.execute("ALTER TABLE m.root ATTACH PARTITION m.part FOR VALUES FROM (1) TO (9)")
        conn.execute("RESET ROLE")
        assert conn.execute("SELECT * FROM m.told").fetchall() == []
        assert conn.execute("SELECT what FROM pgddl.exceptions").fetchall() == []
        (log,) = conn.execute("SELECT DISTINCT log_table FROM pgddl.captured").fetchone() or ()
        logged = conn.execute(f"SELECT op, leaf::regclass::text FROM pgddl.{log}".encode()).fetchall()
        assert logged == [("X", "m.part")]
