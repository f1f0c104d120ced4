"""What of a captured statement waits for its stage is cut out whole; what is left still means what it meant."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.ddl.constraint_nodes import is_not_valid, not_valid
from airflow_provider_pgddl.engine.ddl.deferred_parts import run_now
from airflow_provider_pgddl.engine.ddl.dump_phases import Phase
from airflow_provider_pgddl.engine.ddl.node_names import added_constraints
from airflow_provider_pgddl.engine.ddl.out_of_scope_references import cut_foreign_keys
from airflow_provider_pgddl.engine.ddl.parse import deparse, parse, statement_node, without_locations
from tests.unit.hand_made import event, foreign_key, table

MOVING: set[Phase] = {"foreign_key", "finish"}
FILLING: set[Phase] = {*MOVING, "index"}

# All that Postgres 18 takes behind a foreign key of a column, and as Django writes it.
ATTRIBUTES = [
    "DEFERRABLE INITIALLY DEFERRED",
    "DEFERRABLE",
    "DEFERRABLE INITIALLY IMMEDIATE",
    "INITIALLY DEFERRED",
    "INITIALLY IMMEDIATE",
    "NOT DEFERRABLE",
    "NOT DEFERRABLE INITIALLY IMMEDIATE",
    "ENFORCED",
    "NOT ENFORCED",
    "DEFERRABLE INITIALLY DEFERRED NOT ENFORCED",
]
REFERENCE = "REFERENCES s.r (id) MATCH FULL ON UPDATE CASCADE ON DELETE SET NULL"


def said_now(statement: str, waiting: set[Phase]) -> str | None:
    meta = table(1, "s", "t", ["id", "a"], constraints=[foreign_key("t_a_fkey", ["s", "r"])])
    said = run_now(statement, event("ALTER TABLE", statement, tables=[meta]), waiting)
    return said if said is None else deparse(parse(said))


@pytest.mark.parametrize("attributes", ATTRIBUTES)
def test_a_columns_foreign_key_waits_with_its_attributes(attributes: str) -> None:
    key = f"{REFERENCE} {attributes}"
    assert said_now(f"CREATE TABLE s.t (id int, a int {key})", MOVING) == "CREATE TABLE s.t (id int, a int)"
    assert said_now(f"ALTER TABLE s.t ADD COLUMN a int {key}", MOVING) == "ALTER TABLE s.t ADD COLUMN a int"


@pytest.mark.parametrize("attributes", [*ATTRIBUTES, "NOT VALID", "DEFERRABLE INITIALLY DEFERRED NOT VALID"])
def test_a_tables_foreign_key_waits_with_its_attributes(attributes: str) -> None:
    key = f"CONSTRAINT k FOREIGN KEY (a) {REFERENCE} {attributes}"
    assert said_now(f"CREATE TABLE s.t (id int, {key}, a int)", MOVING) == "CREATE TABLE s.t (id int, a int)"
    assert said_now(f"ALTER TABLE s.t ADD {key}", MOVING) is None
    assert said_now(f"ALTER TABLE s.t ADD {key}, ADD b int", MOVING) == "ALTER TABLE s.t ADD COLUMN b int"


@pytest.mark.parametrize("attributes", ATTRIBUTES)
def test_attributes_of_a_column_stay_with_their_own_constraint(attributes: str) -> None:
    unique = "CONSTRAINT u UNIQUE DEFERRABLE INITIALLY DEFERRED"
    kept = f"a int DEFAULT 1 {unique} NOT NULL CHECK (a > 0) NOT ENFORCED"
    written = f"a int DEFAULT 1 {unique} {REFERENCE} {attributes} NOT NULL CHECK (a > 0) NOT ENFORCED"
    for start, end in (("CREATE TABLE s.t (", ")"), ("ALTER TABLE s.t ADD COLUMN ", "")):
        assert said_now(f"{start}{written}{end}", MOVING) == deparse(parse(f"{start}{kept}{end}"))


@pytest.mark.parametrize("attributes", [a for a in ATTRIBUTES if "ENFORCED" not in a])
def test_a_new_columns_key_waits_with_its_attributes_for_its_index(attributes: str) -> None:
    for key in ("UNIQUE", "PRIMARY KEY"):
        adding = f"ALTER TABLE s.t ADD COLUMN a int DEFAULT 1 {key} {attributes} NOT NULL"
        assert said_now(adding, FILLING) == "ALTER TABLE s.t ADD COLUMN a int DEFAULT 1 NOT NULL"
        assert said_now(adding, MOVING) == deparse(parse(adding))


# What an index-backed constraint can bear, in a column and behind the columns.
KEYS = [
    "UNIQUE NULLS NOT DISTINCT {} INCLUDE (b) WITH (fillfactor=70) USING INDEX TABLESPACE fast DEFERRABLE",
    "UNIQUE NULLS DISTINCT {}",
    "PRIMARY KEY {} INCLUDE (b, c) USING INDEX TABLESPACE fast NOT DEFERRABLE",
    "EXCLUDE USING gist ({} WITH =) INCLUDE (b) WITH (fillfactor=70) USING INDEX TABLESPACE f WHERE (b > 0) DEFERRABLE",
    "EXCLUDE ({} WITH =, (b + 1) WITH OPERATOR(s.=)) WITH (fillfactor=70) WHERE (c = 'it''s') INITIALLY DEFERRED",
    "UNIQUE {} DEFERRABLE INITIALLY DEFERRED",
]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_waits_with_all_that_it_bears_for_its_index(key: str) -> None:
    behind = key.format("a" if "EXCLUDE" in key else "(a)")
    adding = f"ALTER TABLE s.t ADD CONSTRAINT k {behind}, ADD COLUMN d int"
    assert said_now(adding, FILLING) == "ALTER TABLE s.t ADD COLUMN d int"
    assert said_now(adding, MOVING) == deparse(parse(adding))
    creating = f"CREATE TABLE s.t (a int, b int, c int, CONSTRAINT k {behind}, FOREIGN KEY (a) {REFERENCE} DEFERRABLE)"
    assert said_now(creating, MOVING) == deparse(
        parse(f"CREATE TABLE s.t (a int, b int, c int, CONSTRAINT k {behind})")
    )
    if "EXCLUDE" not in key:
        within = key.format("").replace(" INCLUDE (b)", "").replace(" INCLUDE (b, c)", "")
        column = f"ALTER TABLE s.t ADD COLUMN a int {REFERENCE} DEFERRABLE CONSTRAINT k {within} NOT NULL"
        assert said_now(column, FILLING) == "ALTER TABLE s.t ADD COLUMN a int NOT NULL"
        assert said_now(column, MOVING) == deparse(
            parse(f"ALTER TABLE s.t ADD COLUMN a int CONSTRAINT k {within} NOT NULL")
        )


def test_a_key_by_an_index_that_waits_waits_too() -> None:
    adding = "ALTER TABLE s.t ADD CONSTRAINT k UNIQUE USING INDEX i DEFERRABLE INITIALLY DEFERRED"
    assert said_now(adding, FILLING) is None
    assert said_now(adding, MOVING) == deparse(parse(adding))


@pytest.mark.parametrize("attributes", [*ATTRIBUTES, "NOT VALID"])
def test_a_foreign_key_is_added_not_valid_with_its_attributes(attributes: str) -> None:
    key = "ALTER TABLE s.t ADD CONSTRAINT k FOREIGN KEY (a, b) REFERENCES s.r (id, b) ON DELETE SET NULL (b)"
    later = without_locations(parse(not_valid(f"{key} {attributes}")))
    assert is_not_valid(not_valid(f"{key} {attributes}"))
    constraint = added_constraints(statement_node(later))[0]
    before = added_constraints(statement_node(without_locations(parse(f"{key} {attributes}"))))[0]
    for field in ("skip_validation", "initially_valid"):
        before.ClearField(field)
        constraint.ClearField(field)
    assert constraint == before


@pytest.mark.parametrize("attributes", ATTRIBUTES)
def test_a_foreign_key_out_of_the_scope_leaves_none_of_its_attributes(attributes: str) -> None:
    for start, end in (("CREATE TABLE s.t (", ")"), ("ALTER TABLE s.t ADD COLUMN ", "")):
        tree = parse(f"{start}a int UNIQUE DEFERRABLE {REFERENCE} {attributes} NOT NULL{end}")
        assert cut_foreign_keys(statement_node(tree), lambda _: False) == [("s", "r")]
        assert deparse(tree) == f"{start}a int UNIQUE DEFERRABLE NOT NULL{end}"


@pytest.mark.parametrize(
    "constraint", ["CHECK (a > 0) NO INHERIT", "CHECK (a > 0) NOT ENFORCED", "NOT NULL NO INHERIT"]
)
def test_what_the_target_can_take_at_once_does_not_wait(constraint: str) -> None:
    for statement in (f"CREATE TABLE s.t (a int {constraint})", f"ALTER TABLE s.t ADD COLUMN a int {constraint}"):
        assert said_now(statement, FILLING) == deparse(parse(statement))
    at_once = "ALTER TABLE s.t ADD CONSTRAINT c CHECK (a > 0) NO INHERIT"
    assert said_now(at_once, FILLING) == deparse(parse(at_once))


@pytest.mark.parametrize("added", ["CHECK (a > 0) NO INHERIT NOT VALID", "NOT NULL a NOT VALID"])
def test_what_rows_from_before_may_break_waits_for_them(added: str) -> None:
    adding = f"ALTER TABLE s.t ADD CONSTRAINT c {added}, ADD COLUMN d int"
    assert said_now(adding, FILLING) == "ALTER TABLE s.t ADD COLUMN d int"
    assert said_now(adding, MOVING) == deparse(parse(adding))


@pytest.mark.parametrize("validated", [True, False])
def test_what_waited_and_is_proven_is_added(validated: bool) -> None:
    check = foreign_key("c d", ["s", "r"]) | {
        "type": "c", "definition": "CHECK ((a > 0))", "validated": validated
    }  # fmt: skip
    meta = table(1, "s", "t", ["id", "a"], constraints=[check])
    for statement, proven in (
        (
            'ALTER TABLE s.t VALIDATE CONSTRAINT "c d"',
            'ALTER TABLE s.t DROP CONSTRAINT IF EXISTS "c d", ADD CONSTRAINT "c d" CHECK (a > 0)',
        ),
        ('ALTER TABLE s.t RENAME CONSTRAINT b TO "c d"', 'ALTER TABLE s.t RENAME CONSTRAINT b TO "c d"'),
    ):
        now = run_now(statement, event("ALTER TABLE", statement, tables=[meta]), FILLING)
        assert (now and deparse(parse(now))) == (deparse(parse(proven)) if validated else None)
        now = run_now(statement, event("ALTER TABLE", statement, tables=[meta]), MOVING)
        assert now and deparse(parse(now)) == deparse(parse(statement))


def test_what_is_said_of_a_waiting_foreign_key_waits_with_it() -> None:
    for action in (
        "ALTER CONSTRAINT t_a_fkey DEFERRABLE",
        "ALTER CONSTRAINT t_a_fkey NOT ENFORCED",
        "VALIDATE CONSTRAINT t_a_fkey",
    ):
        assert said_now(f"ALTER TABLE s.t {action}", MOVING) is None


@pytest.mark.parametrize(
    ("right", "waits"),
    [
        ("GRANT SELECT ON s.t TO x", True),
        ("GRANT USAGE ON SEQUENCE s.q TO x", True),
        ("GRANT SELECT ON ALL TABLES IN SCHEMA s TO x", True),
        ("GRANT CREATE ON SCHEMA s TO x", False),
        ("REVOKE ALL ON FUNCTION s.f(int) FROM PUBLIC", False),
        ("REVOKE ALL ON ALL ROUTINES IN SCHEMA s FROM PUBLIC", False),
        ("REVOKE ALL ON PROCEDURE s.p() FROM PUBLIC", False),
        ("REVOKE ALL ON TYPE s.mood FROM PUBLIC", False),
        ("REVOKE ALL ON DOMAIN s.amount FROM PUBLIC", False),
        ("REVOKE ALL ON LANGUAGE plperl FROM PUBLIC", False),
    ],
)
def test_a_right_waits_where_a_new_object_is_closed_without_it(right: str, waits: bool) -> None:
    assert (run_now(right, event(right.split(maxsplit=1)[0], right), MOVING) is None) == waits
