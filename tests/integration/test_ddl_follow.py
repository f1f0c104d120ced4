"""Developers run DDL while a pipeline moves their tables: everything goes on, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_pgddl.demo.compare import compare_catalogs, differences
from airflow_provider_pgddl.engine.stages import STAGES
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle, execute, left_behind

SHOP = """
CREATE TYPE public.mood AS ENUM ('good');
CREATE TABLE public.customers (id int PRIMARY KEY, name text NOT NULL, city text, mood public.mood);
CREATE TABLE public.orders (
    id bigint PRIMARY KEY, customer int REFERENCES public.customers, total numeric(10,2), note text, quantity int);
CREATE INDEX ON public.orders (customer);
CREATE TABLE public.lines (id int PRIMARY KEY, text text);
CREATE TABLE public.events (id int PRIMARY KEY, what text) PARTITION BY RANGE (id);
CREATE TABLE public.events_1 PARTITION OF public.events FOR VALUES FROM (0) TO (100);
CREATE VIEW public.totals AS SELECT customer, sum(total) AS total FROM public.orders GROUP BY customer;
INSERT INTO public.customers SELECT i, 'c' || i, 'town', 'good' FROM generate_series(1, 500) i;
INSERT INTO public.orders SELECT i, i % 500 + 1, i, 'n' || i, i FROM generate_series(1, 5000) i;
INSERT INTO public.lines SELECT i, 'l' FROM generate_series(1, 100) i;
INSERT INTO public.events SELECT i, 'e' FROM generate_series(0, 99) i;
"""

# One statement a line, each in a transaction of its own.
CHANGES = {
    "add": """
        ALTER TABLE public.orders ADD COLUMN state text DEFAULT 'new'
        UPDATE public.orders SET state = 'old' WHERE id < 100""",
    "make strict": """
        ALTER TABLE public.orders ADD COLUMN filled int
        UPDATE public.orders SET filled = id
        ALTER TABLE public.orders ALTER filled SET NOT NULL""",
    "add volatile": """
        ALTER TABLE public.orders ADD COLUMN at timestamptz DEFAULT clock_timestamp()
        INSERT INTO public.orders (id) VALUES (9001)""",
    "add stable": """
        ALTER TABLE public.orders ADD COLUMN at timestamptz DEFAULT now()
        INSERT INTO public.orders (id) VALUES (9002)""",
    "rename column": """
        ALTER TABLE public.orders RENAME note TO remark
        UPDATE public.orders SET remark = 'x' WHERE id % 7 = 0""",
    "rename key": """
        ALTER TABLE public.orders RENAME id TO number
        UPDATE public.orders SET total = 1 WHERE number % 7 = 0""",
    "retype": """
        ALTER TABLE public.orders ALTER quantity TYPE text USING (quantity * 2)::text
        INSERT INTO public.orders (id, quantity) VALUES (9003, 'many')""",
    "retype key": """
        ALTER TABLE public.customers ALTER id TYPE bigint
        INSERT INTO public.customers VALUES (9004, 'new')""",
    "drop column": """
        ALTER TABLE public.orders DROP COLUMN note
        DELETE FROM public.orders WHERE id % 9 = 0""",
    "rename table": """
        ALTER TABLE public.orders RENAME TO purchases
        ALTER TABLE public.purchases RENAME CONSTRAINT orders_pkey TO purchases_pkey
        CREATE UNIQUE INDEX numbered ON public.purchases (total, id)
        ALTER TABLE public.purchases REPLICA IDENTITY USING INDEX purchases_pkey
        UPDATE public.purchases SET total = 3 WHERE id % 5 = 0""",
    "new table": """
        CREATE TABLE public.extra (id int PRIMARY KEY, o bigint REFERENCES public.orders)
        INSERT INTO public.extra SELECT i, i FROM generate_series(1, 300) i""",
    "keys checked late": """
        CREATE TABLE public.refunds (id int PRIMARY KEY, o int REFERENCES public.orders DEFERRABLE INITIALLY DEFERRED)
        ALTER TABLE public.lines ADD o bigint UNIQUE DEFERRABLE REFERENCES public.orders DEFERRABLE INITIALLY DEFERRED
        ALTER TABLE public.lines ALTER CONSTRAINT lines_o_fkey NOT DEFERRABLE
        INSERT INTO public.refunds SELECT i, i FROM generate_series(1, 300) i""",
    "table as": """
        CREATE TABLE public.copied AS SELECT * FROM public.orders WHERE id < 50
        ALTER TABLE public.copied ADD PRIMARY KEY (id)""",
    "drop table": """
        CREATE TABLE public.short (id int PRIMARY KEY)
        INSERT INTO public.short VALUES (1)
        DROP TABLE public.short
        DROP TABLE public.lines""",
    "swap names": """
        CREATE TABLE public.orders_new (id bigint PRIMARY KEY, total numeric)
        INSERT INTO public.orders_new SELECT id, total FROM public.orders
        ALTER TABLE public.orders RENAME TO orders_old
        ALTER TABLE public.orders_new RENAME TO orders
        INSERT INTO public.orders VALUES (9007, 5)""",
    "another key": """
        ALTER TABLE public.customers ADD COLUMN code uuid NOT NULL DEFAULT gen_random_uuid()
        ALTER TABLE public.orders DROP CONSTRAINT orders_customer_fkey
        ALTER TABLE public.customers DROP CONSTRAINT customers_pkey
        ALTER TABLE public.customers ADD PRIMARY KEY (code)
        UPDATE public.customers SET name = 'y' WHERE id % 3 = 0""",
    "triggers off": """
        ALTER TABLE public.orders DISABLE TRIGGER ALL
        UPDATE public.orders SET note = 'unseen' WHERE id % 11 = 0
        ALTER TABLE public.orders ENABLE TRIGGER ALL""",
    "in a block": """
        CREATE PROCEDURE public.p() LANGUAGE plpgsql AS 'BEGIN ALTER TABLE public.orders ADD b int DEFAULT 4; END'
        CALL public.p()
        DO $$BEGIN EXECUTE 'ALTER TABLE public.orders RENAME note TO n'; INSERT INTO public.orders VALUES (-1); END $$
        UPDATE public.orders SET n = 'z' WHERE id % 13 = 0""",
    "view": """
        CREATE OR REPLACE VIEW public.totals AS SELECT customer, sum(total) total, 1 x FROM public.orders GROUP BY 1
        CREATE VIEW public.on_it AS SELECT x FROM public.totals""",
    "unique": """
        ALTER TABLE public.customers ADD CONSTRAINT named UNIQUE (name)
        ALTER TABLE public.customers ADD CHECK (id > 0)
        UPDATE public.customers SET name = name || '-' || id WHERE id < 9""",
    "trigger": """
        CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.note := 1; RETURN NEW; END'
        CREATE TRIGGER t BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.f()
        INSERT INTO public.orders (id, note) VALUES (9006, 'low')""",
    "enum": """
        ALTER TYPE public.mood ADD VALUE 'bad'
        UPDATE public.customers SET mood = 'bad' WHERE id % 3 = 0""",
    "partitions": """
        CREATE TABLE public.events_2 PARTITION OF public.events FOR VALUES FROM (100) TO (200)
        INSERT INTO public.events SELECT i, 'e' FROM generate_series(100, 150) i
        CREATE TABLE public.loaded (id int PRIMARY KEY, what text)
        INSERT INTO public.loaded SELECT i, 'l' FROM generate_series(200, 250) i
        ALTER TABLE public.events ATTACH PARTITION public.loaded FOR VALUES FROM (200) TO (300)
        UPDATE public.events SET what = 'u' WHERE id % 4 = 0""",
    "left partition": """
        ALTER TABLE public.events DETACH PARTITION public.events_1
        UPDATE public.events_1 SET what = 'd' WHERE id % 4 = 0""",
    "index": """
        CREATE INDEX by_note ON public.orders (note)
        DROP INDEX public.orders_customer_idx""",
}


TAGS = ["ALTER TABLE", "CREATE TABLE", "CREATE VIEW", "ALTER TYPE", "CREATE FUNCTION", "CREATE PROCEDURE"]


def moved(
    lifecycle: Callable[..., Lifecycle], source: str, target: str, change: str, when: str, **capture: str
) -> Lifecycle:
    """The whole life of a pipeline, with a change of its tables behind the stage `when`."""
    execute(source, SHOP)
    pipeline = lifecycle(
        source, target, tables={"include": ["public.*"]}, capture={"ddl": "queue", **capture},
        ddl={"create_tags": TAGS},
    )  # fmt: skip
    for stage in STAGES:
        result = pipeline.run(stage)
        assert not result.blocked, f"{stage}: {result.blocked}"
        if stage == when:
            for statement in CHANGES[change].strip().splitlines():
                execute(source, statement)
    return pipeline


WHEN = ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify")
# Behind which of three stages: the first, third and fifth, or the second, fourth and sixth, by turns.
TURNS = {change: WHEN[n % 2 :: 2] for n, change in enumerate(CHANGES)}


@pytest.mark.parametrize("turn", matrix(0, 1, 2))
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_at_any_time(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str, change: str, turn: int
) -> None:
    moved(lifecycle, source_dsn, target_dsn, change, TURNS[change][turn])
    assert differences(source_dsn, target_dsn) == []
    assert compare_catalogs(source_dsn, target_dsn, ["public"]) == []
    assert left_behind(source_dsn) == []
