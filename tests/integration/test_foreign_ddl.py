"""DDL of a role that we do not trust runs its code as that role and never as us; an ordinary application lives on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import compare_catalogs, differences
from airflow_provider_pgddl.engine.errors import OwnerChanged, PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.stages import STAGES
from tests.conftest import Database
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.sessions import do, one

MALLORY, APP = "pgddl_ddl_mallory", "pgddl_ddl_app"
TAGS = ["ALTER TABLE", "CREATE TABLE", "CREATE TABLE AS", "CREATE VIEW", "CREATE FUNCTION", "CREATE INDEX",
        "CREATE TYPE", "CREATE MATERIALIZED VIEW", "CREATE SEQUENCE", "ALTER SEQUENCE", "CREATE SCHEMA"]  # fmt: skip
DROPS = ["DROP TABLE", "DROP VIEW", "DROP FUNCTION", "DROP INDEX", "DROP SEQUENCE", "DROP MATERIALIZED VIEW"]


@pytest.fixture(autouse=True)
def roles(pg16: Cluster, pg18: Cluster) -> Iterator[None]:
    """Ordinary roles, which may log in and own a schema, on both servers."""
    for cluster in (pg16, pg18):
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            for role in (MALLORY, APP):
                if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone():
                    make = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
                    admin.execute(make.format(sql.Identifier(role), sql.Literal(cluster.password)))
    yield
    for cluster in (pg16, pg18):
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            admin.execute(f"ALTER ROLE {MALLORY} NOSUPERUSER")


def login(dsn: str, role: str) -> str:
    """A session of its own: one that was taken on by SET ROLE could be left."""
    return make_conninfo(**{**conninfo_to_dict(dsn), "user": role})


def became_superuser(dsn: str) -> bool:
    """Whether she has; she is none any more afterwards."""
    found = one(dsn, "SELECT rolsuper FROM pg_roles WHERE rolname = %s", MALLORY)
    do(dsn, f"ALTER ROLE {MALLORY} NOSUPERUSER")
    return bool(found)


def events(pipeline: Lifecycle) -> list[tuple[str, str]]:
    """(status, why) of every captured event of this run, in their order."""
    query = (
        "SELECT status, coalesce(note, CASE WHEN status = 'skipped' THEN rule END, '') FROM pgddl.ddl_events"
        " WHERE captured_id IS NOT NULL AND pipeline = %s ORDER BY seq"
    )
    return [(status, why) for status, why in pipeline.journal(query, [pipeline.name])]


# --- what mallory tries -----------------------------------------------------------------------------------------------

# Leaves her role and makes herself a superuser. Where she may not, nobody notices.
TAKE = f"""
CREATE FUNCTION evil.take() RETURNS int LANGUAGE plpgsql VOLATILE AS $f$ BEGIN
    PERFORM pg_catalog.set_config('role', 'none', true);
    ALTER ROLE {MALLORY} SUPERUSER;
    RETURN 1;
EXCEPTION WHEN OTHERS THEN RETURN 1;
END $f$;
CREATE FUNCTION evil.same(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM evil.take(); RETURN n; END';
CREATE FUNCTION evil.refuse(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $f$ BEGIN
    IF pg_catalog.current_setting('application_name') LIKE 'pgddl:%' AND current_user = '{MALLORY}' THEN
        RAISE insufficient_privilege USING MESSAGE = 'permission denied for table t';
    END IF;
    RETURN evil.same(n);
END $f$;
CREATE DOMAIN evil.checked AS int CHECK (evil.same(VALUE) > 0);
CREATE TYPE evil.pair AS (n evil.checked);
CREATE TABLE evil.parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE evil.first PARTITION OF evil.parted FOR VALUES FROM (-10) TO (0);
"""
# Behind it, whether it gets her somewhere as soon as she is trusted.
WAYS = {
    "default": ("ALTER TABLE evil.t ADD COLUMN d int DEFAULT evil.take()", True),
    "type": ("ALTER TABLE evil.t ALTER COLUMN n TYPE bigint USING evil.same(n)", True),
    "check": ("ALTER TABLE evil.t ADD CHECK (evil.same(id) > 0)", True),
    "literal": ("CREATE VIEW evil.v AS SELECT '(1)'::evil.pair AS p", True),
    "bound": ("CREATE TABLE evil.part PARTITION OF evil.parted FOR VALUES FROM (0) TO (evil.same(10))", True),
    "table as": ("CREATE TABLE evil.made AS SELECT evil.take() AS n", False),
    "materialized view": ("CREATE MATERIALIZED VIEW evil.mv AS SELECT evil.take() AS n", False),
    "index": ("CREATE INDEX CONCURRENTLY by_same ON evil.t (evil.same(id))", False),
    "index with a literal": (
        "CREATE INDEX CONCURRENTLY by_pair ON evil.t (id) WHERE '(1)'::evil.pair IS NOT NULL", True),
}  # fmt: skip
# What nothing keeps from running as us where rows are written: the table that has it stops.
STOPS = "index with a literal"


def lair(dsn: str) -> None:
    do(dsn, f"CREATE SCHEMA evil AUTHORIZATION {MALLORY}")
    execute(login(dsn, MALLORY), TAKE)
    made = (
        "CREATE TABLE evil.t (id int PRIMARY KEY, n int); INSERT INTO evil.t SELECT i, i FROM generate_series(1, 9) i"
    )
    execute(login(dsn, MALLORY), made)


@pytest.mark.parametrize("trusted", [False, True], ids=["not trusted", "trusted"])
def test_her_code_runs_as_her_wherever_her_ddl_reaches_it(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str, trusted: bool
) -> None:
    lair(source_dsn)
    pipeline = lifecycle(
        source_dsn,
        target_dsn,
        tables={"include": ["evil.*"]},
        capture={"ddl": "queue"},
        ddl={"create_tags": TAGS, "drop_tags": DROPS},
        trusted_roles=[MALLORY] if trusted else [],
    )
    pipeline.run_all(until="replay")
    became_superuser(target_dsn)  # trusted, her types and checks have run as us with the rows already
    for way, (statement, gets_through) in WAYS.items():
        do(login(source_dsn, MALLORY), statement)
        if way == STOPS:  # by the first row that is written or read
            do(login(source_dsn, MALLORY), "INSERT INTO evil.t VALUES (10, 10)")
        blocked = {b["table"] for b in pipeline.run("replay").blocked} - {"evil.made"}  # which has no key
        assert bool(blocked) == (not trusted and way == STOPS), way
        assert became_superuser(target_dsn) == (trusted and gets_through), way
    assert not became_superuser(source_dsn)
    statuses = [status for status, _ in events(pipeline)]
    assert statuses == ["applied"] * len(WAYS)
    notes = [note for (note,) in pipeline.journal("SELECT notes::text FROM pgddl.ddl_events WHERE no_transaction")]
    assert all(("run without CONCURRENTLY" in note) != trusted for note in notes) and len(notes) == 2


@pytest.mark.parametrize("way", ["index", STOPS, "check"])
@pytest.mark.parametrize("in_place", [False, True], ids=["across", "in place"])
def test_verify_looks_for_her_code_on_a_table_that_nobody_writes_to(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str, in_place: bool, way: str
) -> None:
    """Its plan was made when there was none, and no window has moved a row of it since."""
    dsns = (target_dsn,) if in_place else (source_dsn, target_dsn)
    lair(dsns[0])
    scope = {"rewrite": {"evil.t": {}}} if in_place else {"tables": {"include": ["evil.*"]}}
    ddl = {"create_tags": TAGS, "drop_tags": DROPS}
    pipeline = lifecycle(*dsns, **scope, capture={"ddl": "queue"}, ddl=ddl)
    pipeline.run_all(until="replay")
    do(login(dsns[0], MALLORY), WAYS[way][0])
    assert not any(map(became_superuser, dsns))
    blocked = {b["table"] for b in pipeline.run("verify").blocked} - {"evil.made"}
    assert bool(blocked) == (way == STOPS)
    assert not any(map(became_superuser, dsns))


def test_what_raises_the_error_of_missing_rights_is_not_given_ours(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str
) -> None:
    lair(source_dsn)
    pipeline = lifecycle(source_dsn, target_dsn, tables={"include": ["evil.*"]}, capture={"ddl": "queue"})
    pipeline.run_all(until="replay")
    do(login(source_dsn, MALLORY), "ALTER TABLE evil.t ADD CHECK (evil.refuse(id) > 0)")
    assert pipeline.run("replay").blocked
    ((status, why),) = events(pipeline)
    assert (status, "permission denied for table t" in why, "GRANT" in why) == ("failed", True, False)
    assert not became_superuser(target_dsn)


def test_a_view_that_the_snapshot_makes_reads_no_value_by_her_code(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str
) -> None:
    """Parsing its text is enough to run a CHECK of hers."""
    lair(source_dsn)
    do(login(source_dsn, MALLORY), WAYS["literal"][0])
    pipeline = lifecycle(source_dsn, target_dsn, tables={"include": ["evil.t"]}, capture={"ddl": "queue"})
    pipeline.run("setup")
    error = pipeline.refused("snapshot", StageFailed)
    assert f"domain evil.checked of role {MALLORY}" in str(error)
    assert not became_superuser(target_dsn)
    trusting = lifecycle(
        source_dsn, target_dsn, tables={"include": ["evil.t"]}, capture={"ddl": "queue"}, trusted_roles=[MALLORY]
    )
    do(target_dsn, "DROP SCHEMA evil CASCADE")
    trusting.run_all(until="snapshot")
    assert became_superuser(target_dsn)


@pytest.mark.parametrize("in_place", [False, True], ids=["across", "in place"])
def test_a_table_that_becomes_hers_meanwhile_is_not_read_again_as_us(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str, at: At, in_place: bool
) -> None:
    """Without DDL that would tell of it, and without a change: no window has to do with it."""
    dsns = (target_dsn,) if in_place else (source_dsn, target_dsn)
    lair(dsns[0])
    do(dsns[0], "ALTER TABLE evil.t OWNER TO CURRENT_USER")
    scope = {"rewrite": {"evil.t": {}}} if in_place else {"tables": {"include": ["evil.t"]}}
    pipeline = lifecycle(*dsns, **scope, capture={"ddl": "off"})
    pipeline.run_all(until="replay")

    def becomes_hers() -> None:
        do(dsns[0], f"ALTER TABLE evil.t OWNER TO {MALLORY}")
        # What makes it to be read again, and something constant that planning that evaluates.
        new_values = "ALTER TABLE evil.t ALTER COLUMN n TYPE int USING n + 1"
        execute(login(dsns[0], MALLORY), f"{new_values}; CREATE INDEX ON evil.t (id) WHERE evil.same(1) = 1")

    with at("replay.after_lock", once(becomes_hers)):
        pipeline.refused("replay", OwnerChanged)
    assert not any(map(became_superuser, dsns))
    pipeline.run("replay")
    assert not any(map(became_superuser, dsns))
    assert differences(dsns[0], dsns[-1], [("evil", "t")]) == []
    one(dsns[0], "SELECT count(*) FROM evil.t WHERE id = 1")
    assert became_superuser(dsns[0]), "whoever else reads it meets it"


@pytest.mark.parametrize("trusted", [False, True], ids=["not trusted", "trusted"])
def test_in_place_her_code_runs_as_her(lifecycle: Callable[..., Lifecycle], target_dsn: str, trusted: bool) -> None:
    lair(target_dsn)
    execute(login(target_dsn, MALLORY), "CREATE TABLE evil.u AS TABLE evil.t; ALTER TABLE evil.u ADD PRIMARY KEY (id)")
    pipeline = lifecycle(
        target_dsn,
        rewrite={"evil.t": {}, "evil.u": {}},
        capture={"ddl": "queue"},
        trusted_roles=[MALLORY] if trusted else [],
    )
    pipeline.run_all(until="replay")
    became_superuser(target_dsn)
    for way in ("check", "default", "type", "index with a literal"):
        statement, _ = WAYS[way]
        do(login(target_dsn, MALLORY), statement)
        if way == STOPS:
            do(login(target_dsn, MALLORY), "INSERT INTO evil.t (id, n) VALUES (10, 10)")
        assert not became_superuser(target_dsn), way
        blocked = {b["table"] for b in pipeline.run("replay").blocked} - {"evil.made"}  # which has no key
        assert bool(blocked) == (not trusted and way == STOPS), way
        assert became_superuser(target_dsn) == trusted, way
    do(login(target_dsn, MALLORY), "ALTER TABLE evil.u ADD CHECK (evil.refuse(id) > 0)")
    blocked = {entry["table"] for entry in pipeline.run("replay").blocked}
    assert blocked == (set() if trusted else {"evil.t", "evil.u"})
    assert [status for status, _ in events(pipeline)] == [*["applied"] * 4, "applied" if trusted else "failed"]
    assert became_superuser(target_dsn) == trusted
    open_to_her = f"SELECT has_schema_privilege('{MALLORY}', 'pgddl_copy_evil', 'CREATE')"
    assert one(target_dsn, open_to_her) is False


def test_a_role_that_the_target_lacks_gets_our_rights_only_where_the_source_trusts_it(
    lifecycle: Callable[..., Lifecycle], pg16: Cluster, source_dsn: str, target_dsn: str
) -> None:
    """What it makes would be ours, and what is ours is trusted."""
    pipeline = lifecycle(
        source_dsn, target_dsn, tables={"include": ["shared.*"]}, capture={"ddl": "queue"}, ddl={"ddl_only": True}
    )
    made = {"pgddl_ddl_guest": "", "pgddl_ddl_boss": "SUPERUSER"}
    for role, rights in made.items():
        do(source_dsn, f"DROP ROLE IF EXISTS {role}", f"CREATE ROLE {role} {rights} LOGIN PASSWORD '{pg16.password}'")
    try:
        do(source_dsn, "CREATE SCHEMA shared", "GRANT ALL ON SCHEMA shared TO PUBLIC", "CREATE TABLE shared.t (id int)")
        pipeline.run_all(until="snapshot")
        for role in reversed(made):
            function = f"CREATE FUNCTION shared.of_{role}() RETURNS int LANGUAGE sql AS 'SELECT 1'"
            do(login(source_dsn, role), function)
        pipeline.run("replay")
        told = events(pipeline)
        assert [status for status, _ in told] == ["applied", "failed"]
        assert 'CREATE ROLE "pgddl_ddl_guest";' in told[1][1] and "trusted_roles" in told[1][1]
        there = "SELECT array_agg(proname::text) FROM pg_proc WHERE pronamespace = 'shared'::regnamespace"
        assert one(target_dsn, there) == ["of_pgddl_ddl_boss"]
        # A person decides to trust it.
        assert not pipeline.run("replay", trusted_roles=["pgddl_ddl_guest"]).blocked
        assert [status for status, _ in events(pipeline)] == ["applied", "applied"]
    finally:
        for role in made:
            do(source_dsn, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


# --- the life of an ordinary application ------------------------------------------------------------------------------

APPLICATION = """
CREATE FUNCTION app.low(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'select lower($1)';
CREATE FUNCTION app.norm(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'select app.low($1)';
CREATE TABLE app.u (id int PRIMARY KEY, email text);
CREATE INDEX ON app.u (app.norm(email));
CREATE TABLE app.orders (
    id serial PRIMARY KEY, u int REFERENCES app.u, total numeric(10,2) CHECK (total >= 0), note text);
INSERT INTO app.u SELECT i, 'U' || i FROM generate_series(1, 300) i;
INSERT INTO app.orders (u, total, note) SELECT i, i, 'N' || i FROM generate_series(1, 300) i
"""
CHANGES = [
    "CREATE TABLE app.lines (id bigserial PRIMARY KEY, o int REFERENCES app.orders, what text)",
    "INSERT INTO app.lines (o, what) SELECT i, 'w' || i FROM generate_series(1, 50) i",
    "ALTER TABLE app.orders ADD COLUMN state text NOT NULL DEFAULT 'new'",
    "ALTER TABLE app.orders ADD COLUMN at timestamptz DEFAULT clock_timestamp()",
    "UPDATE app.orders SET state = 'old' WHERE id % 3 = 0",
    "ALTER TABLE app.orders ALTER COLUMN note TYPE varchar(40) USING app.norm(note)",
    "CREATE INDEX CONCURRENTLY s ON app.orders (state)",
    "CREATE FUNCTION app.twice(n int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2 * n'",
    "CREATE VIEW app.doubled AS SELECT id, app.twice(id) AS twice FROM app.orders",
    "CREATE MATERIALIZED VIEW app.states AS SELECT state, count(*) AS n FROM app.orders GROUP BY state",
    "CREATE TYPE app.mood AS ENUM ('good')",
    "ALTER TABLE app.u ADD COLUMN mood app.mood DEFAULT 'good'",
    "CREATE VIEW app.passing AS SELECT 1 AS n",
    "DROP VIEW app.passing",
    "ALTER TABLE app.u RENAME COLUMN email TO mail",
    "DROP INDEX CONCURRENTLY app.s",
]


def application(dsn: str) -> None:
    do(dsn, f"CREATE SCHEMA app AUTHORIZATION {APP}", f"GRANT USAGE ON SCHEMA app TO {MALLORY}")
    execute(login(dsn, APP), APPLICATION)


@pytest.mark.parametrize("when", ["backfill", "replay"])
def test_an_application_goes_on_with_its_ddl_while_it_moves(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str, when: str
) -> None:
    application(source_dsn)
    pipeline = lifecycle(
        source_dsn,
        target_dsn,
        tables={"include": ["app.*"]},
        capture={"ddl": "queue"},
        ddl={"create_tags": TAGS, "drop_tags": DROPS},
    )
    for stage in STAGES:
        result = pipeline.run(stage)
        assert not result.blocked, f"{stage}: {result.blocked}, {events(pipeline)}"
        if stage == when:
            do(login(source_dsn, APP), *CHANGES)
    assert differences(source_dsn, target_dsn) == []
    assert compare_catalogs(source_dsn, target_dsn, ["app"]) == []
    assert left_behind(source_dsn) == []
    owners = "SELECT array_agg(DISTINCT relowner::regrole::text) FROM pg_class WHERE relnamespace = 'app'::regnamespace"
    assert one(target_dsn, owners) == [APP]


def test_an_application_goes_on_with_its_ddl_while_its_table_is_rewritten(
    lifecycle: Callable[..., Lifecycle], target_dsn: str
) -> None:
    application(target_dsn)
    pipeline = lifecycle(
        target_dsn, rewrite={"app.orders": {"alter": ["ALTER COLUMN id TYPE bigint"]}}, capture={"ddl": "queue"}
    )
    own = tuple(f"{verb} app.orders" for verb in ("ALTER TABLE", "UPDATE", "CREATE INDEX CONCURRENTLY s ON"))
    for stage in STAGES:
        result = pipeline.run(stage)
        assert not result.blocked, f"{stage}: {result.blocked}, {events(pipeline)}"
        if stage == "replay":
            do(login(target_dsn, APP), *(change for change in CHANGES if change.startswith(own)))
    assert one(target_dsn, "SELECT count(*) FROM app.orders WHERE state = 'old'") == 100
    facts = "SELECT relowner::regrole::text FROM pg_class WHERE oid = 'app.orders'::regclass"
    assert one(target_dsn, facts) == APP


# --- the rights on schemas --------------------------------------------------------------------------------------------


def schema_rights(dsn: str) -> Any:
    return one(
        dsn, "SELECT nspowner::regrole || ' ' || coalesce(nspacl::text, '') FROM pg_namespace WHERE nspname = 'app'"
    )


def test_a_schema_that_the_snapshot_makes_is_the_applications_from_the_start(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str
) -> None:
    application(source_dsn)
    pipeline = lifecycle(source_dsn, target_dsn, tables={"include": ["app.*"]}, capture={"ddl": "queue"})
    pipeline.run_all(until="snapshot")
    assert schema_rights(target_dsn) == schema_rights(source_dsn)
    # What the source takes back until then is taken back at the cut-over.
    do(login(source_dsn, APP), f"REVOKE USAGE ON SCHEMA app FROM {MALLORY}", "GRANT CREATE ON SCHEMA app TO PUBLIC")
    pipeline.run_all(after="snapshot", until="swap")
    assert one(target_dsn, f"SELECT has_schema_privilege('{MALLORY}', 'app', 'USAGE')") is False
    assert one(target_dsn, f"SELECT has_schema_privilege('{MALLORY}', 'app', 'CREATE')") is True


@pytest.mark.parametrize("trusted", [[], [APP]], ids=["", "trusted"])
def test_a_schema_that_was_there_keeps_its_owner_and_grants_until_the_cut_over(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str, trusted: list[str]
) -> None:
    application(source_dsn)
    do(target_dsn, "CREATE SCHEMA app")
    pipeline = lifecycle(
        source_dsn, target_dsn, tables={"include": ["app.*"]}, capture={"ddl": "queue"}, trusted_roles=trusted
    )
    refused = str(pipeline.refused("setup", PreflightRefused))
    grant = f"GRANT USAGE ON SCHEMA app TO {APP};"
    assert refused.count(grant) == 1
    do(target_dsn, grant)
    before = schema_rights(target_dsn)
    pipeline.run_all(until="verify")
    assert schema_rights(target_dsn) == before
    pipeline.run("swap")
    assert schema_rights(target_dsn).startswith(APP)


def test_a_grant_on_a_schema_does_not_wait_for_the_swap(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str
) -> None:
    """The DDL that comes behind it needs it."""
    application(source_dsn)
    pipeline = lifecycle(
        source_dsn,
        target_dsn,
        tables={"include": ["app.*"]},
        capture={"ddl": "queue"},
        ddl={"create_tags": [*TAGS, "GRANT"]},
    )
    pipeline.run_all(until="replay")
    do(login(source_dsn, APP), f"GRANT CREATE ON SCHEMA app TO {MALLORY}", "GRANT SELECT ON app.u TO PUBLIC")
    do(login(source_dsn, MALLORY), "CREATE TABLE app.hers (id int PRIMARY KEY)")
    pipeline.run_all(after="schema_sync")
    assert [status for status, _ in events(pipeline)] == ["applied", "skipped", "applied"]
    assert compare_catalogs(source_dsn, target_dsn, ["app"]) == []


def test_what_an_ordinary_owner_lacks_on_the_target_is_named_and_a_retry_goes_on(
    lifecycle: Callable[..., Lifecycle], database: Database, pg16: Cluster, pg18: Cluster
) -> None:
    source, target = database(pg16), database(pg18)
    application(source)
    do(target, "CREATE SCHEMA app", f"GRANT USAGE ON SCHEMA app TO {APP}")  # by hand, without CREATE
    pipeline = lifecycle(source, target, tables={"include": ["app.*"]}, capture={"ddl": "queue"})
    pipeline.run_all(until="replay")
    do(login(source, APP), "CREATE TABLE app.more (id int PRIMARY KEY)")
    assert pipeline.run("replay").blocked or events(pipeline)[0][0] == "failed"
    grant = f'GRANT CREATE ON SCHEMA "app" TO "{APP}";'
    assert grant in events(pipeline)[0][1]
    do(target, grant)
    pipeline.run_all(after="schema_sync")
    assert compare_catalogs(source, target, ["app"]) == []
