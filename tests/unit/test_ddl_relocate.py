"""Statements for a copy: names rewritten in the tree; where a live name stays, nothing is run (C22)."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.ddl.events import events_from_dump
from airflow_provider_pgddl.engine.ddl.parse import deparse, parse
from airflow_provider_pgddl.engine.ddl.relocate import alter_copy, copy_schema, moving, old_schema, relocate
from airflow_provider_pgddl.engine.errors import StageFailed

MOVING = {
    ("shop", "orders"): "pgddl_copy_shop",
    ("Shop", 'or"d.ers'): "pgddl_copy_Shop",
    ("shop", "orders_i"): "pgddl_copy_shop",
    ("shop", "orders_stats"): "pgddl_copy_shop",
    ("shop", "ident_seq"): "pgddl_copy_shop",
}

# @ stands for the schema that a name has and is to have.
REWRITTEN = [
    "CREATE TABLE @.orders (id int)",
    "CREATE UNLOGGED TABLE @.orders (id int) INHERITS (shop.other)",
    "ALTER TABLE ONLY @.orders ALTER a SET STORAGE external",
    "ALTER TABLE @.orders OWNER TO x",
    "ALTER TABLE @.orders ADD CONSTRAINT k PRIMARY KEY (shop, orders)",
    "ALTER TABLE @.orders ADD CONSTRAINT k UNIQUE USING INDEX i",
    "ALTER TABLE @.orders ADD CONSTRAINT k CHECK (a > 0)",
    "ALTER TABLE @.orders ADD CONSTRAINT k EXCLUDE USING gist (a WITH &&)",
    "ALTER TABLE @.orders ADD CONSTRAINT k FOREIGN KEY (a) REFERENCES @.orders (shop, orders)",
    "ALTER TABLE @.orders CLUSTER ON i",
    "ALTER TABLE @.orders REPLICA IDENTITY USING INDEX i",
    "CREATE INDEX orders_i ON @.orders (shop.orders(a))",
    "ALTER INDEX @.orders_i ALTER COLUMN 1 SET STATISTICS 5",
    "CREATE STATISTICS @.st ON a, b FROM @.orders",
    "ALTER STATISTICS @.orders_stats SET STATISTICS 7",
    "ALTER STATISTICS @.orders_stats OWNER TO x",
    "ALTER TABLE @.orders ALTER id ADD GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME @.ident_seq START 7)",
    "ALTER SEQUENCE shop.n OWNED BY @.orders.id",
    "ALTER TABLE @.orders ALTER id SET DEFAULT nextval('shop.orders_id_seq'::regclass)",
    "COMMENT ON TABLE @.orders IS 'see shop.orders'",
    "COMMENT ON COLUMN @.orders.note IS 'x'",
    "COMMENT ON CONSTRAINT k ON @.orders IS 'x'",
    "COMMENT ON INDEX @.orders_i IS 'x'",
    "GRANT select (a) ON @.orders TO x",
    "CREATE TRIGGER t BEFORE UPDATE OF shop, orders ON @.orders EXECUTE FUNCTION shop.f('orders')",
    "DROP INDEX @.orders_i",
    # Names that are only like it.
    "CREATE TABLE shop.orders2 (a int DEFAULT nextval('shop.orders2'))",
    "ALTER TABLE shop.x ALTER a SET DEFAULT 'other.orders, shop.order, shop.orders_, orders, shop'",
    "ALTER TABLE shop.x ALTER a SET DEFAULT nextval('\"Shop\".orders')",
    "CREATE TABLE other.orders (shop other.orders2)",
]


@pytest.mark.parametrize("statement", REWRITTEN)
def test_c22_names_move_in_the_tree(statement: str) -> None:
    live, copy = statement.replace("@", "shop"), statement.replace("@", "pgddl_copy_shop")
    assert relocate(live, MOVING) == deparse(parse(copy))


def test_c22_names_of_any_letters_move() -> None:
    moved = relocate('CREATE INDEX "I" ON "Shop"."or""d.ers" ("a;")', MOVING)
    assert moved == 'CREATE INDEX "I" ON "pgddl_copy_Shop"."or""d.ers" USING btree ("a;")'


HIDDEN = [
    "ALTER TABLE shop.orders ADD CONSTRAINT k CHECK (shop.orders.a > 0)",
    "ALTER TABLE shop.orders ALTER a SET DEFAULT 'shop.orders'::regclass",
    "ALTER TABLE shop.orders ALTER a SET DEFAULT f('shop.\"orders\"')",
    "ALTER TABLE shop.orders ALTER a SET DEFAULT f('\"shop\".orders')",
    "ALTER TABLE shop.orders ALTER a SET DEFAULT f('SHOP . Orders')",
    'ALTER TABLE shop.orders ALTER a SET DEFAULT f(\'"Shop"."or""d.ers"\')',
    "ALTER TABLE shop.orders ALTER a SET DEFAULT f('db.shop.orders')",
    "ALTER TABLE shop.orders ALTER a SET DEFAULT f('select max(id) from shop.orders where true')",
    'ALTER TABLE shop.orders ALTER a SET DEFAULT f($$6" in shop.orders$$)',
    "ALTER TABLE shop.orders ALTER a SET DEFAULT E'shop.\\x6frders'",
    "CREATE INDEX i ON shop.orders ((a::shop.orders))",
    "CREATE INDEX i ON shop.orders (a) WHERE b = 'shop.orders'",
    "CREATE TABLE shop.orders (parent shop.orders[])",
    "CREATE STATISTICS shop.st ON (f('shop.orders')), a FROM shop.orders",
    "CREATE TRIGGER t BEFORE UPDATE ON shop.orders EXECUTE FUNCTION shop.f('shop.orders')",
    "CREATE FUNCTION shop.f() RETURNS int LANGUAGE sql AS 'SELECT 1 FROM shop.orders'",
    "CREATE FUNCTION shop.f(o shop.orders) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "ALTER TABLE shop.orders ALTER a SET DEFAULT nextval('shop.ident_seq')",
]


@pytest.mark.parametrize("statement", HIDDEN)
def test_c22_a_hidden_live_name_stops_the_statement(statement: str) -> None:
    with pytest.raises(StageFailed) as stopped:
        relocate(statement, MOVING)
    assert "would still name the live" in stopped.value.what
    assert statement.split()[2] in stopped.value.what


def test_c22_a_name_of_63_bytes_is_found_though_the_text_is_longer() -> None:
    name = "ž" * 31
    with pytest.raises(StageFailed):
        relocate(f"ALTER TABLE s.x ALTER a SET DEFAULT f('s.{name}žž')", {("s", name): "pgddl_copy_s"})


def test_what_goes_along_with_a_table() -> None:
    events = events_from_dump(
        "CREATE TABLE shop.orders (id int); CREATE SEQUENCE shop.serial;"
        "ALTER SEQUENCE shop.serial OWNED BY shop.orders.id;"
        "ALTER TABLE shop.orders ALTER x ADD GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME other.ident);"
        "CREATE TABLE shop.items (id int)",
        "CREATE INDEX i ON shop.orders (id); CREATE INDEX j ON shop.items (id);"
        "ALTER TABLE ONLY shop.orders ADD CONSTRAINT k PRIMARY KEY (id);"
        "CREATE STATISTICS other.st ON a, b FROM shop.orders",
    )
    assert moving(events, [("shop", "orders")]) == {
        ("shop", "orders"): "pgddl_copy_shop",
        ("other", "ident"): "pgddl_copy_other",
        ("shop", "i"): "pgddl_copy_shop",
        ("shop", "k"): "pgddl_copy_shop",
        ("other", "st"): "pgddl_copy_shop",  # with its table
    }


@pytest.mark.parametrize("schema", ["shop", "x" * 52, "x" * 53, "x" * 63, "ž" * 31, 'We"ird. schema'])
def test_c22_schemas_of_copies_have_names_of_their_own_that_fit(schema: str) -> None:
    for made, prefix in ((copy_schema(schema), "pgddl_copy_"), (old_schema(schema), "pgddl_old_")):
        assert made.startswith(prefix)
        assert len(made.encode()) <= 63
        assert made == prefix + schema or len((prefix + schema).encode()) > 63
    assert copy_schema(schema) != old_schema(schema)
    assert copy_schema("ž" * 31) != copy_schema("ž" * 30 + "y")


def test_actions_become_statements_on_the_copy() -> None:
    assert alter_copy(['ALTER COLUMN id TYPE bigint USING id + 1, DROP COLUMN "X"'], "shop", "Or") == [
        'ALTER TABLE ONLY pgddl_copy_shop."Or" ALTER COLUMN id TYPE bigint',
        'ALTER TABLE ONLY pgddl_copy_shop."Or" DROP "X"',
    ]
