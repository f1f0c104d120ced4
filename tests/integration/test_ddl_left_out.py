"""Live DDL about or over what a narrow pipeline leaves out: left out as by the snapshot, and nothing waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgddl.demo.compare import differences
from tests.combinations import matrix
from tests.failpoints import At, once
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import one

SHOP = """
CREATE SCHEMA shop;
CREATE TABLE shop.orders (id int PRIMARY KEY, note text);
CREATE TABLE shop.audit (id serial PRIMARY KEY, order_id int);
CREATE TABLE shop.log (id int, at int) PARTITION BY RANGE (at);
CREATE TABLE shop.log_1 PARTITION OF shop.log FOR VALUES FROM (0) TO (100);
CREATE VIEW shop.kept AS SELECT id FROM shop.orders;
CREATE VIEW shop.old AS SELECT order_id FROM shop.audit;
CREATE VIEW shop.over_old AS SELECT order_id FROM shop.old;
CREATE VIEW shop.old_part AS SELECT id FROM shop.log_1;
CREATE MATERIALIZED VIEW shop.old_sum AS SELECT count(*) FROM shop.audit;
CREATE FUNCTION shop.old_f(a shop.audit) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION shop.old_f(a int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE TYPE shop.old_type AS (a shop.audit);
CREATE SCHEMA aside;
CREATE FUNCTION shop.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END';
INSERT INTO shop.orders SELECT i, 'o' || i FROM generate_series(1, 50) i;
"""

# What was left out by the snapshot, then what comes new; each by itself, as a person or a migration would run it.
LEFT_OUT = """
COMMENT ON VIEW shop.old IS 'x'
ALTER VIEW shop.old RENAME TO older
ALTER VIEW shop.older RENAME COLUMN order_id TO o
CREATE VIEW shop.over_older AS SELECT o FROM shop.older
CREATE INDEX old_i ON shop.old_sum (count)
ALTER INDEX shop.old_i RENAME TO older_i
REFRESH MATERIALIZED VIEW shop.old_sum
ALTER MATERIALIZED VIEW shop.old_sum SET SCHEMA aside
GRANT SELECT ON shop.older, shop.old_part TO PUBLIC
COMMENT ON FUNCTION shop.old_f(shop.audit) IS 'x'
ALTER FUNCTION shop.old_f(shop.audit) COST 7
COMMENT ON TYPE shop.old_type IS 'x'
CREATE VIEW shop.v AS SELECT o.id FROM shop.orders o JOIN shop.audit a ON a.order_id = o.id
CREATE OR REPLACE VIEW shop.v AS SELECT o.id FROM shop.orders o JOIN shop.audit a ON a.order_id = o.id WHERE a.id > 0
CREATE RULE r AS ON INSERT TO shop.v DO INSTEAD NOTHING
ALTER VIEW shop.v SET (security_barrier = on)
CREATE VIEW shop.w AS WITH audit AS (SELECT 1) SELECT v.id FROM shop.v
CREATE MATERIALIZED VIEW shop.m AS SELECT * FROM shop.audit
CREATE UNIQUE INDEX m_i ON shop.m (id)
SET search_path = shop; CREATE VIEW short AS SELECT * FROM audit
DO $$ BEGIN EXECUTE 'CREATE VIEW shop.nested AS SELECT * FROM shop.audit'; END $$
CREATE TABLE shop.log_2 PARTITION OF shop.log FOR VALUES FROM (100) TO (200)
CREATE VIEW shop.part AS SELECT * FROM shop.log_2
CREATE TABLE shop.audit_2 (id serial PRIMARY KEY)
ALTER SEQUENCE shop.audit_2_id_seq RESTART 7
CREATE VIEW shop.v2 AS SELECT * FROM shop.audit_2
CREATE FUNCTION shop.f() RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM shop.audit; END
CREATE OR REPLACE FUNCTION shop.g(a shop.audit) RETURNS int LANGUAGE sql AS 'SELECT 2'
ALTER FUNCTION shop.f() RENAME TO f2
CREATE VIEW shop.by_f AS SELECT shop.f2() AS n
CREATE TYPE shop.pair AS (one shop.audit, two int)
ALTER TYPE shop.pair RENAME TO pairs
CREATE TRIGGER t INSTEAD OF DELETE ON shop.v FOR EACH ROW EXECUTE FUNCTION shop.nothing()
CREATE POLICY p ON shop.orders USING (EXISTS (SELECT FROM shop.audit a WHERE a.order_id = orders.id))
ALTER POLICY p ON shop.orders RENAME TO p2
DROP POLICY p2 ON shop.orders
CREATE VIEW shop.gone AS SELECT * FROM shop.audit
DROP VIEW shop.gone
DROP VIEW shop.over_old, shop.over_older
DROP FUNCTION shop.old_f(shop.audit)
DROP TYPE shop.old_type
DROP MATERIALIZED VIEW aside.old_sum
DROP TABLE shop.audit_2 CASCADE
"""

COVERED = """
CREATE VIEW shop.also_kept AS SELECT note FROM shop.orders
COMMENT ON VIEW shop.kept IS 'kept'
CREATE FUNCTION shop.body() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM shop.audit'
ALTER FUNCTION shop.old_f(int) COST 3
ALTER TABLE shop.orders ADD COLUMN audit int REFERENCES shop.audit
CREATE SEQUENCE shop.s OWNED BY shop.audit.id
ALTER TABLE shop.orders ADD COLUMN more int DEFAULT 5
CREATE VIEW shop.later AS SELECT more FROM shop.orders
"""


@pytest.fixture(params=matrix("queue", "wal"))
def shop(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str, request: pytest.FixtureRequest
) -> Callable[..., Lifecycle]:
    def made(**pipeline: Any) -> Lifecycle:
        execute(source_dsn, SHOP)
        content: dict[str, Any] = {"tables": {"include": ["shop.orders"]}, "capture": {"ddl": request.param}}
        return lifecycle(source_dsn, target_dsn, **{**content, **pipeline})

    return made


def each(pipeline: Lifecycle, statements: str) -> None:
    for statement in statements.strip().splitlines():
        execute(pipeline.source, statement)


def judged(pipeline: Lifecycle) -> dict[str, tuple[str, str]]:
    """Statement: (status, rule), of what was captured."""
    rows = pipeline.journal("SELECT captured ->> 'statement', status, rule FROM pgddl.ddl_events ORDER BY id")
    return {statement: (status, rule) for statement, status, rule in rows if statement}


def killed() -> None:
    raise KeyboardInterrupt


# Of the table itself, or of what no tag lets through: these are left out as they always were.
BY_OTHER_RULES = ("REFRESH", "GRANT", "CREATE TABLE", "DROP TABLE")
VIEWS = """
SELECT coalesce(string_agg(relname, ' ' ORDER BY relname), '') FROM pg_class
WHERE relkind IN ('v', 'm') AND relnamespace IN ('shop'::regnamespace, 'aside'::regnamespace)"""


def test_what_needs_a_table_that_is_left_out_is_left_out_and_nothing_waits(
    shop: Callable[..., Lifecycle], at: At
) -> None:
    pipeline = shop()
    pipeline.run_all(until="replay")
    each(pipeline, LEFT_OUT)
    each(pipeline, COVERED)
    with pytest.raises(KeyboardInterrupt), at("follow.before_events_commit", once(killed)):
        pipeline.run("replay")
    assert not pipeline.run("replay").blocked
    found = judged(pipeline)
    for statement in LEFT_OUT.strip().splitlines():
        assert found[statement][0] == "skipped", (statement, found[statement])
        assert "leaves out" in found[statement][1] or statement.startswith(BY_OTHER_RULES), (
            statement,
            found[statement],
        )
    for statement in COVERED.strip().splitlines():
        assert found[statement][0] == "applied" or statement.startswith("COMMENT"), (statement, found[statement])
    assert one(pipeline.target, VIEWS) == "also_kept kept later"
    assert differences(pipeline.source, pipeline.target, [("shop", "orders")]) == []
    pipeline.run_all(after="schema_sync")
    assert one(pipeline.target, VIEWS) == "also_kept kept later"
    assert one(pipeline.target, "SELECT obj_description('shop.kept'::regclass)") == "kept"


def test_a_view_goes_out_of_what_is_covered_and_comes_into_it(shop: Callable[..., Lifecycle]) -> None:
    """What the target has is taken away by nobody but a person; what it gets is what the source has by now."""
    pipeline = shop()
    pipeline.run_all(until="replay")
    execute(pipeline.target, "CREATE TABLE shop.audit (order_id int)")  # there after all: nothing is left out
    each(pipeline, """
        CREATE VIEW shop.by_hand AS SELECT order_id FROM shop.audit
        COMMENT ON VIEW shop.old IS 'x'""")  # fmt: skip
    assert not pipeline.run("replay").blocked
    assert one(pipeline.target, VIEWS) == "by_hand kept"
    execute(pipeline.target, "DROP VIEW shop.by_hand; DROP TABLE shop.audit")
    each(
        pipeline,
        """
        CREATE OR REPLACE VIEW shop.old AS SELECT id AS order_id FROM shop.orders
        ALTER VIEW shop.old RENAME TO covered
        CREATE VIEW shop.over AS SELECT order_id FROM shop.covered
        CREATE OR REPLACE FUNCTION shop.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'""",
    )
    assert not pipeline.run("replay").blocked
    assert one(pipeline.target, VIEWS) == "covered kept over"
    assert one(pipeline.target, "SELECT count(*) FROM shop.over") == 50
    each(pipeline, """
        CREATE OR REPLACE VIEW shop.kept AS SELECT id FROM shop.orders WHERE id IN (SELECT order_id FROM shop.audit)
        ALTER TABLE shop.orders ADD COLUMN behind int""")  # fmt: skip
    (waits,) = [each for each in pipeline.run("replay").blocked if each["table"] == "shop.kept"]
    assert "shop.audit, which the pipeline leaves out" in waits["reason"]
    assert one(pipeline.target, "SELECT to_regclass('shop.kept') IS NOT NULL")
    execute(pipeline.target, "DROP VIEW shop.kept")
    execute(pipeline.target, "UPDATE pgddl.ddl_events SET status = 'skipped' WHERE status = 'unhandled'")
    each(pipeline, "ALTER VIEW shop.kept RENAME TO kept_no_more")
    assert not pipeline.run("replay").blocked
    assert judged(pipeline)["ALTER VIEW shop.kept RENAME TO kept_no_more"][0] == "skipped"
    assert differences(pipeline.source, pipeline.target, [("shop", "orders")]) == []
    pipeline.run_all(after="schema_sync", until="verify")
    assert "shop.over_old" in str(
        pipeline.refused("swap")
    )  # left out with what it stands on, and it could be there now
    notes = "SELECT notes::text FROM pgddl.ddl_events WHERE notes::text LIKE '%by hand%'"
    assert "shop.over_old" in one(pipeline.target, notes)
    execute(pipeline.target, "CREATE VIEW shop.over_old AS SELECT order_id FROM shop.covered")
    pipeline.run_all(after="verify")
    assert one(pipeline.target, VIEWS) == "covered over over_old"


def test_a_covered_table_that_needs_what_is_left_out_waits_as_ever(shop: Callable[..., Lifecycle]) -> None:
    """In a run that an older version has begun, too, which has noted nothing of what is left out."""
    pipeline = shop(tables={"include": ["shop.orders", "shop.new*"]})
    execute(pipeline.source, "CREATE TABLE shop.new_0 (id int PRIMARY KEY)")
    pipeline.run_all(until="replay")
    execute(pipeline.target, "UPDATE pgddl.pipelines SET ddl_left_out = NULL")
    each(pipeline, """
        ALTER VIEW shop.old RENAME TO older
        CREATE VIEW shop.short_lived AS SELECT * FROM shop.audit
        DROP VIEW shop.short_lived
        CREATE TABLE shop.new (id int PRIMARY KEY) INHERITS (shop.audit)""")  # fmt: skip
    assert pipeline.run("replay").blocked
    assert [status for status, _ in judged(pipeline).values()] == ["skipped", "skipped", "skipped", "unhandled"]
