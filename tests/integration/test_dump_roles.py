"""Roles that the target lacks, or calls otherwise, in what a dump of the source brings; and whose rights come when."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import compare_catalogs, differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import do, one

Make = Callable[..., Lifecycle]
_numbers = itertools.count(1)

TENANTS = """
CREATE SCHEMA shop;
CREATE TABLE shop.orders (id int PRIMARY KEY, tenant int NOT NULL);
INSERT INTO shop.orders SELECT n, n % 3 FROM generate_series(1, 90) n;
ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY;
CREATE POLICY everything ON shop.orders TO {app} USING (true);
CREATE POLICY own ON shop.orders AS RESTRICTIVE TO {app}, {legacy} USING (tenant = 1);
GRANT USAGE ON SCHEMA shop TO {app}, {legacy};
GRANT SELECT ON shop.orders TO {app}, {legacy};
"""


def role(name: str, *clusters: Cluster) -> str:
    name = f"dump_roles_{name}_{next(_numbers)}"
    for cluster in clusters:
        do(cluster.conninfo(), f"CREATE ROLE {name}")
    return name


def seen(dsn: str, name: str) -> int:
    """How many orders a role sees."""
    with psycopg.connect(dsn) as conn:
        conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(name)))
        row = conn.execute("SELECT count(*) FROM shop.orders").fetchone()
        assert row is not None
        return int(row[0])


def moving(lifecycle: Make, source: str, target: str, **sections: Any) -> Lifecycle:
    return lifecycle(source, target, **{"tables": {"include": ["shop.*"]}, "backfill": {"workers": 1}, **sections})


@pytest.mark.parametrize("ddl", ["queue", "off"])
def test_a_policy_for_several_roles_holds_for_those_that_the_target_has(
    lifecycle: Make, pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, ddl: str
) -> None:
    app, legacy = role("app", pg16, pg18), role("legacy", pg16)
    execute(source_dsn, TENANTS.format(app=app, legacy=legacy))
    move = moving(lifecycle, source_dsn, target_dsn, capture={"ddl": ddl})
    move.run_all(until="verify")
    if ddl != "off":
        do(source_dsn, "ALTER POLICY own ON shop.orders USING (tenant = 2 AND id < 9)")
    move.run_all(after="verify", until="swap")
    assert seen(target_dsn, app) == seen(source_dsn, app) == (30 if ddl == "off" else 3)
    roles = "SELECT roles::text FROM pg_policies WHERE policyname = 'own'"
    assert one(target_dsn, roles) == f"{{{app}}}"


def test_a_followed_target_has_such_a_policy_once_and_keeps_it(
    lifecycle: Make, pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    app, legacy = role("app", pg16, pg18), role("legacy", pg16)
    execute(source_dsn, TENANTS.format(app=app, legacy=legacy))
    move = moving(lifecycle, source_dsn, target_dsn, follow={"finish": True}, capture={"ddl": "queue"})
    move.run_all(until="replay")
    assert seen(target_dsn, app) == 30
    capsys.readouterr()
    do(source_dsn, "COMMENT ON TABLE shop.orders IS 'what is bought'")
    move.run("replay")
    said = capsys.readouterr().out
    assert "COMMENT ON TABLE" in said and "POLICY IF EXISTS" not in said
    do(source_dsn, "ALTER POLICY own ON shop.orders USING (tenant = 2 AND id < 9)")
    assert not move.run("replay").blocked
    assert seen(target_dsn, app) == 3
    move.run_all(after="replay", until="swap")
    assert seen(target_dsn, app) == 3


@pytest.mark.parametrize("finish", [False, True], ids=["", "finish"])
def test_a_mapping_puts_other_roles_into_what_the_dump_brings(
    lifecycle: Make, pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, finish: bool
) -> None:
    app, there, reader = role("app", pg16), role("there", pg18), role("reader", pg16, pg18)
    execute(
        source_dsn,
        TENANTS.format(app=app, legacy=reader)
        + f"ALTER TABLE shop.orders OWNER TO {app}; ALTER SCHEMA shop OWNER TO {app};"
        f"CREATE VIEW shop.first AS SELECT * FROM shop.orders WHERE id < 9; ALTER VIEW shop.first OWNER TO {app};"
        "CREATE TABLE shop.other (id int PRIMARY KEY);"
        "CREATE FUNCTION shop.one() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    )
    move = moving(
        lifecycle, source_dsn, target_dsn, ddl={"missing_role": {app: there}}, follow={"finish": finish},
        capture={"ddl": "queue"},
    )  # fmt: skip
    move.run_all(until="replay")
    # Both dumps show it, by another name on the target.
    do(source_dsn, f"ALTER TABLE shop.other OWNER TO {app}", f"GRANT SELECT ON shop.other TO {app}",
       f"ALTER FUNCTION shop.one() OWNER TO {app}")  # fmt: skip
    assert not move.run("replay").blocked
    move.run_all(after="replay", until="swap")
    assert differences(source_dsn, target_dsn) == []
    owners = "SELECT string_agg(DISTINCT relowner::regrole::text, ' ') FROM pg_class WHERE relname IN %s"
    relations = owners.replace("%s", "('orders', 'first', 'other')")
    assert (one(source_dsn, relations), one(target_dsn, relations)) == (app, there)
    assert one(
        target_dsn,
        "SELECT roles @> %s AND cardinality(roles) = 2 FROM pg_policies WHERE policyname = 'own'",
        [[there, reader]],
    )


# --- rights on what everybody may use ---------------------------------------------------------------------------------

CLOSED = """
CREATE SCHEMA shop;
GRANT USAGE ON SCHEMA shop TO PUBLIC;
CREATE TABLE shop.orders (id int PRIMARY KEY, tenant int NOT NULL);
INSERT INTO shop.orders SELECT n, n % 3 FROM generate_series(1, 90) n;
CREATE FUNCTION shop.all_of(lowest int) RETURNS SETOF shop.orders LANGUAGE sql SECURITY DEFINER
    AS 'SELECT * FROM shop.orders WHERE id >= lowest';
CREATE FUNCTION shop.by_key() RETURNS SETOF int LANGUAGE sql SECURITY DEFINER
    BEGIN ATOMIC SELECT tenant FROM shop.orders GROUP BY id; END;
CREATE PROCEDURE shop.empty() LANGUAGE sql SECURITY DEFINER AS 'DELETE FROM shop.orders';
CREATE AGGREGATE shop.most(int) (SFUNC = int4larger, STYPE = int);
CREATE TYPE shop.mood AS ENUM ('good');
CREATE DOMAIN shop.amount AS int;
REVOKE ALL ON FUNCTION shop.all_of(int), shop.by_key(), shop.most(int) FROM PUBLIC;
REVOKE ALL ON PROCEDURE shop.empty() FROM PUBLIC;
REVOKE ALL ON TYPE shop.mood, shop.amount FROM PUBLIC;
GRANT EXECUTE ON FUNCTION shop.all_of(int) TO {app};
"""
RIGHTS = """
SELECT coalesce(string_agg(name || ' ' || open, ', ' ORDER BY name), '') FROM (
    SELECT proname::text, has_function_privilege('{app}', oid, 'EXECUTE')
    FROM pg_proc WHERE pronamespace = 'shop'::regnamespace
    UNION ALL SELECT typname::text, has_type_privilege('{app}', oid, 'USAGE')
    FROM pg_type WHERE typnamespace = 'shop'::regnamespace AND typname IN ('mood', 'amount')
) r(name, open)
"""


@pytest.mark.parametrize("ddl", ["queue", "off"])
def test_what_is_closed_to_all_is_closed_from_the_snapshot_on(
    lifecycle: Make, pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, ddl: str
) -> None:
    app = role("app", pg16, pg18)
    execute(source_dsn, CLOSED.format(app=app))
    rights = RIGHTS.format(app=app)
    closed = "all_of true, amount false, {}empty false, mood false, most false"
    move = moving(lifecycle, source_dsn, target_dsn, capture={"ddl": ddl})
    move.run_all(until="snapshot")
    assert one(target_dsn, rights) == closed.format("")
    move.run_all(after="snapshot", until="replay")
    assert one(target_dsn, rights) == one(source_dsn, rights) == closed.format("by_key false, ")
    if ddl != "off":
        do(
            source_dsn,
            "CREATE FUNCTION shop.late() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'",
            "REVOKE ALL ON FUNCTION shop.late() FROM PUBLIC",
            f"REVOKE ALL ON FUNCTION shop.all_of(int) FROM {app}",
            "GRANT EXECUTE ON PROCEDURE shop.empty() TO PUBLIC",
        )
        move.run("replay")
        assert one(target_dsn, rights) == one(source_dsn, rights)
        assert "late false" in str(one(target_dsn, rights))
    move.run_all(after="replay", until="swap")
    assert one(target_dsn, rights) == one(source_dsn, rights)
    assert compare_catalogs(source_dsn, target_dsn, ["shop"]) == []


def test_what_the_source_opens_again_is_open_after_the_swap_whatever_ddl_follows(
    lifecycle: Make, pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str
) -> None:
    """Grants are not among the tags that follow: the dump of the swap has them, and lacks what is to be taken back."""
    app = role("app", pg16, pg18)
    execute(source_dsn, CLOSED.format(app=app))
    goes = "CREATE FUNCTION shop.all_of(int, int) RETURNS int LANGUAGE sql AS 'SELECT $1'"
    do(source_dsn, goes, "REVOKE ALL ON FUNCTION shop.all_of(int, int) FROM PUBLIC")
    move = moving(lifecycle, source_dsn, target_dsn, capture={"ddl": "queue"}, ddl={"tags": "pgl_ddl_deploy"})
    move.run_all(until="verify")
    do(source_dsn, "DROP FUNCTION shop.all_of(int, int)")
    do(source_dsn, "GRANT ALL ON FUNCTION shop.by_key(), shop.all_of(int) TO PUBLIC",
       "GRANT USAGE ON TYPE shop.mood TO PUBLIC", f"REVOKE ALL ON FUNCTION shop.all_of(int) FROM {app}")  # fmt: skip
    move.run_all(after="verify", until="swap")
    assert compare_catalogs(source_dsn, target_dsn, ["shop"]) == []


def test_what_the_target_had_keeps_its_rights_until_the_swap(
    lifecycle: Make, pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str
) -> None:
    app = role("app", pg16, pg18)
    execute(source_dsn, CLOSED.format(app=app))
    there, rest = CLOSED.format(app=app).split("CREATE FUNCTION shop.by_key")
    execute(target_dsn, there.replace("INSERT INTO shop.orders", "--"))
    assert rest
    move = moving(
        lifecycle, source_dsn, target_dsn, tables={"include": ["shop.*"], "existing": "adopt"}, capture={"ddl": "queue"}
    )
    do(target_dsn, "REVOKE ALL ON FUNCTION shop.all_of(int) FROM PUBLIC")
    before = one(target_dsn, RIGHTS.format(app=app))
    assert before == "all_of false"
    move.run_all(until="verify")
    closed = "all_of {}, amount false, by_key false, empty false, mood false, most false"
    assert one(target_dsn, RIGHTS.format(app=app)) == closed.format("false")
    move.run("swap")
    assert one(target_dsn, RIGHTS.format(app=app)) == closed.format("true")


# --- what would belong to us ------------------------------------------------------------------------------------------

OWNED = {
    "routine shop.tell()": "CREATE FUNCTION shop.tell() RETURNS bigint LANGUAGE sql SECURITY DEFINER"
    " AS 'SELECT count(*) FROM shop.orders'; ALTER FUNCTION shop.tell() OWNER TO {owner}",
    "view shop.all_of_it": "CREATE VIEW shop.all_of_it AS SELECT * FROM shop.orders;"
    " ALTER VIEW shop.all_of_it OWNER TO {owner}",
    "materialized view shop.counted": "CREATE MATERIALIZED VIEW shop.counted AS SELECT count(*) FROM shop.orders;"
    " ALTER MATERIALIZED VIEW shop.counted OWNER TO {owner}",
    "rule also on shop.hers": "CREATE TABLE shop.hers (id int PRIMARY KEY); ALTER TABLE shop.hers OWNER TO {owner};"
    " CREATE RULE also AS ON UPDATE TO shop.hers DO ALSO DELETE FROM shop.orders",
}
HARMLESS = """
CREATE TABLE shop.own (id int PRIMARY KEY);
CREATE FUNCTION shop.plain() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM shop.orders';
CREATE VIEW shop.invoked WITH (security_invoker = true) AS SELECT * FROM shop.orders;
CREATE TABLE public.elsewhere (id int);
CREATE VIEW public.beyond AS SELECT * FROM public.elsewhere;
ALTER TABLE shop.own OWNER TO {owner};
ALTER FUNCTION shop.plain() OWNER TO {owner};
ALTER VIEW shop.invoked OWNER TO {owner};
ALTER VIEW public.beyond OWNER TO {owner};
"""
ORDERS = "CREATE SCHEMA shop; CREATE TABLE shop.orders (id int PRIMARY KEY, tenant int);"


def test_code_of_an_owner_that_the_target_lacks_is_refused(
    lifecycle: Make, pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str
) -> None:
    """Before anything is touched, and where it came behind the check."""
    owner, trusted = role("owner", pg16), role("trusted", pg16)
    execute(source_dsn, ORDERS + HARMLESS.format(owner=owner))
    execute(source_dsn, "CREATE VIEW shop.theirs AS SELECT 1 AS n; ALTER VIEW shop.theirs OWNER TO " + trusted)
    move = moving(lifecycle, source_dsn, target_dsn, trusted_roles=[trusted], capture={"ddl": "queue"})
    move.run("setup")
    for made in OWNED.values():
        execute(source_dsn, made.format(owner=owner))
        assert f"no role {owner}" in str(move.refused("snapshot", StageFailed))
        assert one(target_dsn, "SELECT count(*) FROM pg_namespace WHERE nspname = 'shop'") == 0
        name = made.split("ALTER ")[1].split(" OWNER")[0].replace("()", "")
        execute(source_dsn, f"DROP {name}")
    stages.reset(load_pipeline(move.content), source_dsn, target_dsn)
    for made in OWNED.values():
        execute(source_dsn, made.format(owner=owner))
    said = str(move.refused("setup", PreflightRefused))
    assert ", ".join(sorted(OWNED)) in said and f"CREATE ROLE {owner};" in said
    assert "beyond" not in said and "invoked" not in said and "theirs" not in said
    move.content["trusted_roles"].append(owner)
    move.run_all(until="swap")
    assert one(target_dsn, "SELECT relowner::regrole::text FROM pg_class WHERE relname = 'all_of_it'") == "postgres"
