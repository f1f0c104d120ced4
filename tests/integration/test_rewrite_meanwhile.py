"""A rewrite in place keeps what comes, changes or goes meanwhile, and whoever reads, inherits or subscribes goes on."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.swapping import in_place
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.calls import before_each, once
from tests.integration.faults import Faults, until_done
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.rewritten_orders import ORDERS, TO_BIGINT, old_is_gone
from tests.integration.sessions import do, one, rounds

Make = Callable[..., Lifecycle]


@pytest.fixture(params=matrix(16, 18))
def server(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(f"pg{request.param}")
    return cluster


@pytest.fixture
def orders(server: Cluster, database: Database, lifecycle: Make) -> Callable[..., Lifecycle]:
    """A rewrite of public.orders; what is given is the pipeline's."""
    made = database(server)
    execute(made, ORDERS)

    def make(table: dict[str, Any] | None = None, **pipeline: Any) -> Lifecycle:
        return lifecycle(made, rewrite={"public.orders": table or {}}, backfill={"workers": 1}, **pipeline)

    return make


# What comes, changes or goes while the rewrite is under way.
LATE = {
    "a new view": ["CREATE VIEW late AS SELECT o.note, c.name FROM orders o JOIN customers c USING (id)"],
    "another definition": [
        "CREATE OR REPLACE VIEW listed AS SELECT id, note, 'more' AS more FROM orders WHERE id > 3",
        "GRANT SELECT ON listed TO PUBLIC",
    ],
    "a view less": ["DROP VIEW noted", "DROP VIEW listed"],
    "another name and schema": [
        "CREATE SCHEMA away",
        "ALTER VIEW listed RENAME TO seen",
        "ALTER VIEW seen SET SCHEMA away",
    ],
    "a function": ["CREATE FUNCTION f(orders) RETURNS text LANGUAGE sql AS 'SELECT $1.note'"],
    "a publication": ["CREATE PUBLICATION late FOR TABLE orders WHERE (id > 5)"],
    "a column": ["ALTER TABLE orders ADD late int DEFAULT 7", "CREATE VIEW with_it AS SELECT * FROM orders"],
    "a policy": ["CREATE POLICY late ON customers USING (id IN (SELECT id FROM orders))"],
}  # fmt: skip


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
@pytest.mark.parametrize("table", [{}, TO_BIGINT], ids=["same", "bigint"])
def test_ddl_meanwhile_goes_over_as_it_is_at_the_swap(
    orders: Callable[..., Lifecycle], table: dict[str, Any], late: list[str]
) -> None:
    move = orders(table)
    move.run_all(until="verify")
    do(move.source, *late)
    before = catalog_lines(move.source)
    move.run("swap")
    do(move.source, "INSERT INTO orders (id, note) VALUES (1000, 'written after it')")
    changed = diff_catalogs(before, catalog_lines(move.source))
    wanted = ["- public.orders column 1 id: integer not null", "+ public.orders column 1 id: bigint not null"]
    kept = [line for line in changed if " column 1 id: " not in line and "NULL::" not in line]
    assert kept == []
    assert set(wanted if table else []) <= set(changed)
    if "DROP VIEW listed" not in late:
        view = "away.seen" if "CREATE SCHEMA away" in late else "listed"
        assert one(move.source, f"SELECT note FROM {view} WHERE id = 1000") == "written after it"
        assert one(move.source, "SELECT count(*) FROM noted WHERE note = 'written after it'") == 1
    assert old_is_gone(move)


@pytest.mark.parametrize("table", [{}, TO_BIGINT], ids=["same", "bigint"])
def test_a_view_that_comes_between_the_look_and_the_lock_goes_over(
    orders: Callable[..., Lifecycle], monkeypatch: pytest.MonkeyPatch, table: dict[str, Any]
) -> None:
    move = orders(table)
    move.run_all(until="verify")
    tries = before_each(
        monkeypatch, in_place, "lock_all", once("CREATE VIEW late AS SELECT id FROM orders", dsn=move.source)
    )
    move.run("swap")
    assert len(tries) == 2
    do(move.source, "INSERT INTO orders (id, note) VALUES (1000, '')")
    assert one(move.source, "SELECT count(*) FROM late WHERE id = 1000") == 1
    assert old_is_gone(move)


def test_a_dependent_that_nobody_can_carry_is_refused_at_the_swap_as_well(orders: Callable[..., Lifecycle]) -> None:
    move = orders()
    move.run_all(until="verify")
    do(move.source, "CREATE TABLE holder (kept orders)")
    assert "column kept of table holder" in str(move.refused("swap", PreflightRefused)).replace("public.", "")
    do(move.source, "DROP TABLE holder", "CREATE MATERIALIZED VIEW late AS SELECT id FROM orders")
    assert "recreate_materialized_views" in str(move.refused("swap", PreflightRefused))
    move.run("swap", swap={"recreate_materialized_views": True})
    do(move.source, "INSERT INTO orders (id, note) VALUES (1000, '')", "REFRESH MATERIALIZED VIEW late")
    assert one(move.source, "SELECT max(id) FROM late") == 1000
    assert old_is_gone(move)


@pytest.mark.parametrize("table", [{}, TO_BIGINT], ids=["same", "bigint"])
def test_readers_through_a_view_meet_no_deadlock(orders: Callable[..., Lifecycle], table: dict[str, Any]) -> None:
    """They lock the view before the table; whoever comes from the table meets them half-way."""
    move = orders(table)
    do(move.source, "CREATE VIEW joined AS SELECT l.id, c.name FROM listed l LEFT JOIN customers c USING (id)")
    move.run_all(until="verify")
    over, failures, reads = threading.Event(), list[str](), [0] * 4

    def read(number: int) -> None:
        with psycopg.connect(move.source, autocommit=True) as conn:
            for _ in rounds(over):
                try:
                    conn.execute("SELECT count(*) FROM joined", prepare=False)
                    reads[number] += 1
                except psycopg.Error as error:
                    failures.append(str(error))

    readers = [threading.Thread(target=read, args=[number]) for number in range(len(reads))]
    for reader in readers:
        reader.start()
    try:
        wait_until(lambda: min(reads) > 5)
        move.run("swap")
        seen = list(reads)
        wait_until(lambda: all(now > then for now, then in zip(reads, seen, strict=True)) or failures)
    finally:
        over.set()
        for reader in readers:
            reader.join(120)
    assert failures == []


def test_default_privileges_do_not_leak_onto_what_is_made_again(orders: Callable[..., Lifecycle]) -> None:
    move = orders(TO_BIGINT)
    do(
        move.source,
        "CREATE FUNCTION f(orders) RETURNS text LANGUAGE sql AS 'SELECT $1.note'",
        "CREATE FUNCTION g(orders) RETURNS text LANGUAGE sql AS 'SELECT $1.note'",
        "REVOKE ALL ON FUNCTION g FROM PUBLIC",
        "REVOKE ALL ON noted FROM CURRENT_USER",
        "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO pg_monitor",
        "ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO pg_monitor",
        "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC",
    )
    before = [line for line in catalog_lines(move.source) if line.startswith("grant")]
    move.run_all(until="swap")
    assert [line for line in catalog_lines(move.source) if line.startswith("grant")] == before


def test_an_unlogged_table_stays_unlogged(orders: Callable[..., Lifecycle]) -> None:
    move = orders()
    do(move.source, "ALTER TABLE orders SET UNLOGGED")
    before = catalog_lines(move.source)
    move.run_all()
    assert diff_catalogs(before, catalog_lines(move.source)) == []
    assert one(move.source, "SELECT relpersistence FROM pg_class WHERE relname = 'orders'") == "u"


def test_children_stay_with_their_rows_and_are_not_copied(orders: Callable[..., Lifecycle]) -> None:
    """C4: what a parent's SELECT shows of its children is theirs."""
    move = orders()
    do(
        move.source,
        "CREATE TABLE child (extra int) INHERITS (orders)",
        "INSERT INTO child SELECT n, 'child', n, n FROM generate_series(1, 20) n",
    )
    move.run_all(until="schema_sync")
    do(
        move.source,
        "UPDATE orders SET amount = -1 WHERE id < 9",
        "DELETE FROM orders WHERE id = 3",
        "INSERT INTO child VALUES (2000, 'late child', 1, 1)",
    )
    move.run_all(after="schema_sync", until="swap")
    assert one(move.source, "SELECT count(*) FROM ONLY orders") == 59
    assert one(move.source, "SELECT count(*) FROM orders") == 59 + 20
    assert one(move.source, "SELECT count(*) FROM orders WHERE amount = -1") == 14
    do(move.source, "ALTER TABLE orders ADD later int DEFAULT 5, DROP amount")
    assert one(move.source, "SELECT sum(later) FROM child") == 100
    left = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'child'::regclass AND attname = 'amount'"
    assert one(move.source, left) == 0, "a column that nobody passes on any more"
    assert old_is_gone(move)


def test_a_crash_right_behind_the_commit_leaves_nothing_half(orders: Callable[..., Lifecycle]) -> None:
    move = orders(TO_BIGINT, swap={"recreate_materialized_views": True})
    do(
        move.source,
        "CREATE MATERIALIZED VIEW stored AS SELECT id FROM orders",
        "CREATE PUBLICATION pub FOR TABLE orders (id, note) WHERE (id > 0)",
        "CREATE FUNCTION f(orders) RETURNS text LANGUAGE sql AS 'SELECT $1.note'",
        "ALTER TABLE customers ADD o int CONSTRAINT to_orders REFERENCES orders",
    )
    before = catalog_lines(move.source)
    move.run_all(until="verify")
    seed = random.SystemRandom().getrandbits(32)
    faults = Faults(seed, one_in=80)
    until_done(move, "swap", faults)
    until_done(move, "cleanup", faults)
    print(f"seed {seed}: {dict(faults.lost)}")
    changed = [
        line for line in diff_catalogs(before, catalog_lines(move.source)) if not re.search(r"column 1 id: ", line)
    ]
    assert changed == []
    assert one(move.source, "SELECT rowfilter FROM pg_publication_tables") == "(id > 0)"
    assert one(move.source, "SELECT bool_and(convalidated) FROM pg_constraint WHERE contype = 'f'") is True
    assert one(move.source, "SELECT f(o) FROM orders o WHERE id = 7") == "note 7"


def test_a_subscriber_goes_on_and_sees_no_row_that_the_swap_wrote(
    pg16: Cluster, pg18: Cluster, database: Database, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the table by its name. What replay and the swap itself write into the copy is not published."""
    publisher, subscriber = database(pg16), database(pg18)
    do(
        publisher,
        "CREATE TABLE orders (id int PRIMARY KEY, note text NOT NULL, amount int)",
        "CREATE PUBLICATION listed FOR TABLE orders (id, note) WHERE (id < 5000)",
        "CREATE PUBLICATION whole FOR TABLES IN SCHEMA public",
        "SELECT pg_create_logical_replication_slot(s, 'pgoutput') FROM unnest('{listed,whole}'::name[]) s",
    )
    do(subscriber, "CREATE TABLE orders (id bigint PRIMARY KEY, note text NOT NULL, amount int)")
    do(
        subscriber,
        "CREATE TABLE log (no bigserial, op text, id bigint)",
        "CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN INSERT INTO public.log (op, id) VALUES (TG_OP, coalesce(NEW.id, OLD.id)); RETURN NULL; END'",
        "CREATE TRIGGER log AFTER INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION log()",
        "ALTER TABLE orders ENABLE ALWAYS TRIGGER log",
        f"CREATE SUBSCRIPTION keeps_listed CONNECTION '{publisher}' PUBLICATION listed"
        " WITH (slot_name = listed, create_slot = false, copy_data = false)",
    )
    try:
        do(publisher, "INSERT INTO orders SELECT n, 'note ' || n, n FROM generate_series(1, 40) n")
        move = lifecycle(publisher, rewrite={"public.orders": TO_BIGINT}, backfill={"workers": 1})
        published = "SELECT string_agg(p::text, ',' ORDER BY p::text) FROM pg_publication_tables p"
        before = one(publisher, published)
        move.run_all(until="verify")
        do(publisher, "UPDATE orders SET note = 'replayed' WHERE id = 1")
        move.run("replay")
        # These the last window writes into the copy, in the swap's own transaction.
        late = "UPDATE orders SET note = 'drained' WHERE id BETWEEN 2 AND 9"
        before_each(monkeypatch, in_place, "lock_all", once(late, "DELETE FROM orders WHERE id = 10", dsn=publisher))
        assert move.run("swap").figures["drained"] == 9
        assert one(publisher, published) == before
        do(
            publisher,
            "UPDATE orders SET note = 'behind it', amount = 3 WHERE id = 11",
            "INSERT INTO orders VALUES (41, 'new'), (6000, 'filtered')",
            "DELETE FROM orders WHERE id = 12",
        )
        move.run("cleanup")
        do(publisher, "INSERT INTO orders VALUES (42, 'the last')")
        wait_until(lambda: one(subscriber, "SELECT count(*) FROM orders WHERE id = 42") == 1)
        rows = "SELECT string_agg(id || note, ',' ORDER BY id) FROM orders WHERE id < 5000"
        assert one(subscriber, rows) == one(publisher, rows)
        assert one(subscriber, "SELECT count(*) FROM orders WHERE id >= 5000") == 0
        seen = "SELECT string_agg(op || id, ' ' ORDER BY no) FROM log WHERE no > 40"
        updates = [f"UPDATE{n}" for n in range(1, 10)]
        assert one(subscriber, seen).split() == [
            *updates, "DELETE10", "UPDATE11", "INSERT41", "DELETE12", "INSERT42"
        ]  # fmt: skip
        # One that comes late, and reads all of it from the log of the publication of the whole schema.
        do(subscriber, "TRUNCATE orders, log RESTART IDENTITY", "ALTER SUBSCRIPTION keeps_listed DISABLE")
        do(
            subscriber,
            f"CREATE SUBSCRIPTION keeps_whole CONNECTION '{publisher}' PUBLICATION whole"
            " WITH (slot_name = whole, create_slot = false, copy_data = false)",
        )
        wait_until(lambda: one(subscriber, "SELECT count(*) FROM orders WHERE id = 42") == 1)
        rows = "SELECT string_agg(o::text, ',' ORDER BY id) FROM orders o"
        assert one(subscriber, rows) == one(publisher, rows)
        assert one(subscriber, "SELECT count(*) FROM log") == 40 + 14 + 1
    finally:
        for name in ("keeps_listed", "keeps_whole"):
            if one(subscriber, f"SELECT count(*) FROM pg_subscription WHERE subname = '{name}'"):
                for end in ("DISABLE", "SET (slot_name = NONE)"):
                    do(subscriber, f"ALTER SUBSCRIPTION {name} {end}")
                do(subscriber, f"DROP SUBSCRIPTION {name}")


LONG_SCHEMA = "a_schema_whose_name_is_cut_where_something_is_put_before_it"


def test_values_that_are_oids_of_a_table_are_told_and_put_right(source_dsn: str, lifecycle: Make) -> None:
    """A regclass is a name to whoever reads it, and the old table's oid in the row."""
    execute(
        source_dsn,
        f"CREATE SCHEMA {LONG_SCHEMA}; CREATE TABLE {LONG_SCHEMA}.far (id int PRIMARY KEY);"
        'CREATE SCHEMA "Works"; CREATE TABLE "Works".orders (id int PRIMARY KEY, of regclass);'
        'CREATE TABLE log (id int PRIMARY KEY, "about it" regclass, kind regtype, several regclass[]);'
        f"""INSERT INTO "Works".orders VALUES (1, '"Works".orders'), (2, 'log'), (3, '{LONG_SCHEMA}.far');"""
        """INSERT INTO log VALUES (1, '"Works".orders', '"Works".orders[]', '{log}'), (2, 'log', 'int', NULL)""",
    )
    move = lifecycle(source_dsn, rewrite={'"Works".orders': {}, f"{LONG_SCHEMA}.far": {}}, backfill={"workers": 1})
    findings = stages.check(load_pipeline(move.content), source_dsn, source_dsn)["findings"]
    told = [f for f in findings if f["code"] == "oids"]
    assert [(f["table"], f["what"].split()[1]) for f in told] == [
        ('"Works".orders', "of"), ("public.log", '"about'), ("public.log", "kind"), ("public.log", "several"),
    ]  # fmt: skip
    log = "SELECT array_agg(concat_ws(' ', \"about it\", kind) ORDER BY id) FROM log"
    orders = 'SELECT array_agg(of::text ORDER BY id) FROM "Works".orders'
    before = [one(source_dsn, log), one(source_dsn, orders)]
    move.run_all(until="swap")
    assert [one(source_dsn, log), one(source_dsn, orders)] != before
    do(source_dsn, *(f["fix"] for f in told if f["fix"].startswith("UPDATE")))
    move.run("cleanup")
    assert [one(source_dsn, log), one(source_dsn, orders)] == before
