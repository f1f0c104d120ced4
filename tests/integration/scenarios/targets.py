"""What the target makes of it: what fails there, what is tried again, and who stands in the way."""

from __future__ import annotations

from tests.integration.scenarios import Scenario
from tests.integration.scenarios.scopes import RESOLVED
from tests.integration.scenarios.tables import CUSTOMERS, EVENTS, ORDERS, TWO

ADD = "ALTER TABLE app.orders ADD COLUMN a int"
SHORT = {"lock_timeout": "100ms", "retry_for": "400ms"}
READING = "SELECT * FROM app.orders"
PUT_OFF = "could not be applied within"
ATTEMPTS = "SELECT string_agg(outcome, ', ' ORDER BY event_id, number) FROM pgddl.ddl_attempts"
KILLED = (
    "SELECT string_agg(signal || CASE WHEN succeeded THEN '' ELSE ' failed' END, ', ' ORDER BY id)"
    " FROM pgddl.killed_blockers"
)

FAILURES = {
    "a table that is there already": Scenario(
        [ORDERS, ADD], target="CREATE TABLE app.orders (x int)",
        expect=['failed: relation "orders" already exists', "pending"], by_hand="DROP TABLE app.orders", then=TWO,
        check=(ATTEMPTS, "failed, applied, applied"),
    ),
    "a failure that stays": Scenario(
        [ADD, CUSTOMERS], before=ORDERS, target="ALTER TABLE app.orders ADD a text",
        expect=['failed: column "a" of relation "orders" already exists', "pending"],
        then=['failed: column "a" of relation "orders" already exists', "pending"],
        check=(ATTEMPTS, "applied, failed, failed"),
        differs="app.",
    ),
    "a failure that a person has done by hand": Scenario(
        [ADD, CUSTOMERS], before=ORDERS, target="ALTER TABLE app.orders ADD a text",
        expect=['failed: column "a" of relation "orders" already exists', "pending"],
        by_hand=["ALTER TABLE app.orders ALTER a TYPE int USING a::int",
                 RESOLVED.replace("'unhandled'", "'failed'")],
        then=["resolved", "applied"],
    ),
    "a type that is missing": Scenario(
        ["ALTER TABLE app.orders ADD m other.mood", "ALTER TABLE app.orders ADD b int"],
        before=[ORDERS, "CREATE TYPE other.mood AS ENUM ('a')"],
        expect=['failed: type "other.mood" does not exist', "pending"],
        by_hand="CREATE TYPE other.mood AS ENUM ('a')", then=TWO,
    ),
    "rows of the target that do not fit": Scenario(
        "ALTER TABLE app.orders ADD CHECK (id > 0)", before=ORDERS, target="INSERT INTO app.orders VALUES (-1)",
        expect='failed: check constraint "orders_id_check"', by_hand="DELETE FROM app.orders", then="applied",
    ),
    "a table that somebody dropped": Scenario(
        [ADD, "DROP TABLE app.orders"], before=ORDERS, target="DROP TABLE app.orders",
        expect=['failed: relation "app.orders" does not exist', "pending"],
        by_hand=[RESOLVED.replace("'unhandled'", "'failed'"), ORDERS], then=["resolved", "applied"],
    ),
    "all of an event or nothing": Scenario(
        "DROP TABLE app.customers CASCADE",
        before=[CUSTOMERS, "CREATE VIEW app.v AS SELECT * FROM app.customers"],
        target="CREATE VIEW other.w AS SELECT * FROM app.customers",
        expect="failed: cannot drop table app.customers because other objects depend on it",
        by_hand=["SELECT FROM app.v", "DROP VIEW other.w"], then="applied",
    ),
    "on_failure: queue, a view": Scenario(
        ["CREATE VIEW app.v AS SELECT * FROM other.t", ORDERS, ADD], blocked="", before="CREATE TABLE other.t (a int)",
        group="single", expect=['failed: relation "other.t" does not exist', *TWO],
        by_hand="CREATE TABLE other.t (a int)", then=["applied"] * 3,
    ),
    "on_failure: queue, a table": Scenario(
        [ORDERS, "CREATE VIEW app.v AS SELECT 1 AS a"], group="single", target="CREATE TABLE app.orders (x int)",
        expect=['failed: relation "orders" already exists', "pending"], by_hand="DROP TABLE app.orders", then=TWO,
    ),
    "switched off": Scenario(
        ["UPDATE pgddl.captures SET ddl_enabled = false", CUSTOMERS, "UPDATE pgddl.captures SET ddl_enabled = true",
         ORDERS],
        expect=["skipped: DDL was switched off for this pipeline", "applied"], by_hand=CUSTOMERS,
        then=["skipped", "applied"],
    ),
}  # fmt: skip

LOCKS = {
    "put off": Scenario(
        [ADD, "ALTER TABLE app.orders ADD b int"], before=ORDERS, holding=READING, ddl=SHORT, stops=PUT_OFF,
        expect=["pending", "pending"], then=TWO,
        check=(ATTEMPTS, "applied, put off, applied, applied"),
    ),
    "put off, without lock_safe": Scenario(
        ADD, before=ORDERS, holding=READING, ddl={**SHORT, "lock_safe": False}, stops=PUT_OFF,
        expect="pending", then="applied",
    ),
    "a drop put off": Scenario(
        "DROP TABLE app.orders", before=ORDERS, holding=READING, ddl=SHORT, stops=PUT_OFF,
        expect="pending", then="applied",
    ),
    "blockers: terminate": Scenario(
        ADD, before=ORDERS, holding=READING, ddl={**SHORT, "retry_for": "20s", "signal_blockers": "terminate"},
        check=(KILLED, "terminate"),
    ),
    "blockers: cancel_then_terminate": Scenario(
        ADD, before=ORDERS, holding=READING,
        ddl={**SHORT, "retry_for": "20s", "signal_blockers": "cancel_then_terminate"},
        check=(KILLED, "cancel, terminate"),
    ),
    "blockers: cancel, which an idle one does not hear": Scenario(
        ADD, before=ORDERS, holding=READING, ddl={**SHORT, "signal_blockers": "cancel"}, stops=PUT_OFF,
        expect="pending", then="applied", check=("SELECT bool_and(signal = 'cancel') FROM pgddl.killed_blockers", True),
    ),
    "blockers: off": Scenario(
        ADD, before=ORDERS, holding=READING, ddl={**SHORT, "signal_blockers": "off"}, stops=PUT_OFF,
        expect="pending", then="applied", check=("SELECT count(*) FROM pgddl.killed_blockers", 0),
    ),
    "blockers of a partition": Scenario(
        "ALTER TABLE app.events ADD a int", before=EVENTS, holding="SELECT * FROM ONLY app.events_1",
        ddl={**SHORT, "retry_for": "20s", "signal_blockers": "terminate"}, check=(KILLED, "terminate"),
    ),
    "blockers of a child": Scenario(
        "ALTER TABLE app.orders ADD a int", before=[ORDERS, "CREATE TABLE app.child () INHERITS (app.orders)"],
        holding="INSERT INTO app.child VALUES (1)", check=(KILLED, "terminate"),
        ddl={**SHORT, "retry_for": "20s", "signal_blockers": "terminate"},
    ),
    "blockers of a drop": Scenario(
        "DROP TABLE app.customers, app.orders CASCADE", before=[ORDERS, CUSTOMERS], holding=READING,
        ddl={**SHORT, "retry_for": "20s", "signal_blockers": "terminate"}, check=(KILLED, "terminate"),
    ),
    "a schema dropped under somebody": Scenario(
        "DROP SCHEMA app CASCADE", before=[ORDERS, "CREATE VIEW app.v AS SELECT * FROM app.orders"],
        holding="SELECT * FROM app.v", ddl={**SHORT, "retry_for": "20s", "signal_blockers": "terminate"},
        check=(KILLED, "terminate"),
    ),
    "an index concurrently, behind somebody who writes": Scenario(
        "CREATE INDEX CONCURRENTLY named ON app.orders (note)", before=ORDERS,
        holding="INSERT INTO app.orders VALUES (1)", check=(KILLED, "terminate"),
        ddl={**SHORT, "retry_for": "20s", "signal_blockers": "terminate"},
    ),
    "who is in nobody's way is left alone": Scenario(
        ADD, before=[ORDERS, CUSTOMERS], holding="LOCK TABLE app.customers",
        ddl={**SHORT, "signal_blockers": "terminate"}, check=("SELECT count(*) FROM pgddl.killed_blockers", 0),
    ),
}  # fmt: skip

SCENARIOS = {**FAILURES, **LOCKS}
