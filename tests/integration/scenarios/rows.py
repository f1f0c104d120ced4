"""Pipelines that move rows: which tables are theirs decides as well. Nothing is cleaned up between these scenarios."""

from __future__ import annotations

from tests.integration.scenarios import Scenario
from tests.integration.scenarios.scopes import RESOLVED
from tests.integration.scenarios.tables import TWO

NARROW = "replicated tables"
LATER = "skipped: the dump that is taken when its time has come shows it"

SCENARIOS = {
    "replicated tables: altered": Scenario(
        ["ALTER TABLE app.our_orders ADD a int DEFAULT 5", "ALTER TABLE app.our_orders RENAME note TO remark",
         "ALTER TABLE app.our_orders ALTER remark TYPE varchar(9), DROP COLUMN a",
         "COMMENT ON TABLE app.our_orders IS 'x'", "COMMENT ON COLUMN app.our_orders.remark IS 'x'"],
        group=NARROW, expect=["applied", "applied", "applied", LATER, LATER], differs="- comment on table",
    ),
    "replicated tables: all other commands": Scenario(
        ["CREATE TABLE app.our_new_one (id int)", "CREATE INDEX ON app.our_orders (id)", "DROP TABLE app.our_new_one",
         "ALTER TABLE app.unlisted ADD a int", "COMMENT ON TABLE other.orders IS 'x'", "CREATE VIEW app.v AS SELECT 1",
         "COMMENT ON SCHEMA app IS 'x'", "ALTER INDEX app.our_orders_id_idx RENAME TO x", "DROP VIEW app.v",
         "CREATE SCHEMA app_more"],
        group=NARROW,
        expect=["skipped: tag CREATE TABLE is not in create_tags", "skipped: tag CREATE INDEX is not in create_tags",
                "skipped: tag DROP TABLE is not in drop_tags",
                "skipped: scope: app.unlisted is not one of the replicated tables",
                "skipped: scope: other.orders is not one of the replicated tables",
                "skipped: tag CREATE VIEW is not in create_tags",
                "skipped: scope: it is not one of the replicated tables",
                "skipped: tag ALTER INDEX is not in create_tags", "skipped: tag DROP VIEW is not in drop_tags",
                "skipped: tag CREATE SCHEMA is not in create_tags"],
        differs=["- app.our_orders index", "- app.unlisted column 2 a", "- comment on schema app: x",
                 "- grant CREATE on schema app_more", "- grant USAGE on schema app_more"],
    ),
    "replicated tables: renamed": Scenario(
        ["ALTER TABLE app.our_renamed RENAME TO our_named", "ALTER TABLE app.our_named ADD a int"], group=NARROW,
        expect=TWO,
    ),
    "replicated tables: moved": Scenario(
        ["ALTER TABLE app.our_moved SET SCHEMA app_two", "ALTER TABLE app_two.our_moved ADD a int"], group=NARROW,
        expect=TWO,
    ),
    "replicated tables: partitions": Scenario(
        ["CREATE TABLE app.our_events_2 PARTITION OF app.our_events FOR VALUES FROM (100) TO (200)",
         "ALTER TABLE app.our_events ADD a int", "INSERT INTO app.our_events VALUES (150)"], group=NARROW,
        expect=["skipped: tag CREATE TABLE is not in create_tags", "applied"],
        blocked="Source has partition app.our_events_2, and the target has none of this name",
        differs="our_events_2",
    ),
    "replicated tables: a key to another": Scenario(
        "ALTER TABLE app.our_customers ADD o int REFERENCES other.orders, ADD b int", group=NARROW,
        notes="foreign key to other.orders, which is out of scope, left out",
        differs=["- app.our_customers constraint our_customers_o_fkey"],
    ),
    "replicated tables: their schema renamed": Scenario(
        "ALTER SCHEMA app_three RENAME TO app_four", group=NARROW, expect=(
            "unhandled: tag ALTER SCHEMA is not in create_tags, but the schema holds tables of this pipeline"
        ), by_hand=[RESOLVED, "ALTER SCHEMA app_three RENAME TO app_four"], then="resolved",
    ),
    "listed tables: altered": Scenario(
        ["ALTER TABLE app.our_orders ADD a int DEFAULT 5", "ALTER TABLE app.unlisted ADD a int",
         "ALTER TABLE other.orders ADD a int", "CREATE VIEW app.v AS SELECT id FROM app.our_orders"],
        group="rows",
        expect=["applied", "skipped: tables: app.unlisted is not among the tables of this pipeline",
                "skipped: scope: schema other does not match", "applied"],
        differs=["- app.unlisted column 2 a"],
    ),
    "listed tables: made": Scenario(
        ["CREATE TABLE app.our_new_one (id int PRIMARY KEY)", "CREATE TABLE app.unheard_of (id int PRIMARY KEY)",
         "INSERT INTO app.our_new_one VALUES (1), (2)"],
        group="rows", expect=["applied", "skipped: tables: app.unheard_of is not among the tables of this pipeline"],
        differs="app.unheard_of", check=("SELECT count(*) FROM app.our_new_one", 2),
    ),
    "listed tables: renamed out of the list": Scenario(
        "ALTER TABLE app.our_leaving RENAME TO left_behind", group="rows", expect="applied",
    ),
    "listed tables: renamed within the list": Scenario(
        ["ALTER TABLE app.our_renamed RENAME TO our_named", "ALTER TABLE app.our_named ADD a int"], group="rows",
        expect=TWO,
    ),
    "listed tables: dropped": Scenario("DROP TABLE app.our_dropped, app.unlisted", group="rows"),
}  # fmt: skip
