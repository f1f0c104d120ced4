"""Developers run DDL on a table while it is rewritten in place: the copy goes along, and the swap loses nothing."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.sql import queries
from airflow_provider_pgddl.engine.stages import STAGES
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.sessions import one

SHOP = """
CREATE TABLE public.customers (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE public.orders (
    id int PRIMARY KEY, customer int REFERENCES public.customers, total numeric(10,2), note text, quantity int);
CREATE INDEX ON public.orders (customer);
CREATE TABLE public.lines (id int PRIMARY KEY, o int REFERENCES public.orders);
INSERT INTO public.customers SELECT i, 'c' || i FROM generate_series(1, 500) i;
INSERT INTO public.orders SELECT i, i % 500 + 1, i, 'n' || i, i FROM generate_series(1, 5000) i;
INSERT INTO public.lines SELECT i, i FROM generate_series(1, 100) i;
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
        ALTER TABLE public.orders ADD COLUMN code uuid DEFAULT gen_random_uuid()
        INSERT INTO public.orders (id) VALUES (9001)""",
    "rename column": """
        ALTER TABLE public.orders RENAME note TO remark
        UPDATE public.orders SET remark = 'x' WHERE id % 7 = 0""",
    "retype": """
        ALTER TABLE public.orders ALTER quantity TYPE text USING (quantity * 2)::text
        INSERT INTO public.orders (id, quantity) VALUES (9003, 'many')""",
    "drop column": """
        ALTER TABLE public.orders DROP COLUMN note
        DELETE FROM public.orders WHERE id > 4000""",
    "index": """
        CREATE INDEX by_note ON public.orders (note)
        DROP INDEX public.orders_customer_idx""",
    "unique": """
        ALTER TABLE public.orders ADD CONSTRAINT named UNIQUE (note)
        ALTER TABLE public.orders ADD CHECK (id > 0)
        UPDATE public.orders SET note = note || '-' || id WHERE id < 9""",
    "foreign key": """
        ALTER TABLE public.orders DROP CONSTRAINT orders_customer_fkey
        ALTER TABLE public.lines ADD COLUMN o2 int REFERENCES public.orders""",
    "trigger": """
        CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.note := 1; RETURN NEW; END'
        CREATE TRIGGER t BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION public.f()
        GRANT SELECT ON public.orders TO PUBLIC
        COMMENT ON COLUMN public.orders.note IS 'a note'
        ALTER TABLE public.orders ENABLE ROW LEVEL SECURITY
        INSERT INTO public.orders (id, note) VALUES (9006, 'low')""",
    "triggers off": """
        ALTER TABLE public.orders DISABLE TRIGGER ALL
        UPDATE public.orders SET note = 'unseen' WHERE id % 11 = 0
        ALTER TABLE public.orders ENABLE TRIGGER ALL""",
    "elsewhere": """
        CREATE TABLE public.other (id int PRIMARY KEY)
        ALTER TABLE public.customers ADD COLUMN x int
        CREATE VIEW public.others AS SELECT * FROM public.other""",
    "in a block": """
        DO $$ BEGIN ALTER TABLE public.orders ADD b int DEFAULT 4; INSERT INTO public.orders (id) VALUES (9005); END $$
        UPDATE public.orders SET b = 5 WHERE id % 13 = 0""",
}

FACTS = """
SELECT format('column %s %s %s %s', attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid))
FROM pg_attribute LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
WHERE attrelid = 'public.orders'::regclass AND attnum > 0 AND NOT attisdropped
UNION ALL SELECT 'index ' || pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'public.orders'::regclass
UNION ALL
SELECT format('constraint %s on %s: %s %s', conname, conrelid::regclass, pg_get_constraintdef(oid), convalidated)
FROM pg_constraint WHERE contype <> 'n' AND 'public.orders'::regclass IN (conrelid, confrelid)
UNION ALL SELECT 'trigger ' || pg_get_triggerdef(oid) || tgenabled::text FROM pg_trigger
WHERE tgrelid = 'public.orders'::regclass AND NOT tgisinternal AND tgname !~ '^pgddl'
UNION ALL SELECT format('%s %s %s %s', relname, relrowsecurity, relacl, relowner::regrole)
FROM pg_class WHERE oid = 'public.orders'::regclass
UNION ALL SELECT format('comment %s: %s', objsubid, description) FROM pg_description
WHERE objoid = 'public.orders'::regclass AND classoid = 'pg_class'::regclass
ORDER BY 1
"""


def facts(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as conn:
        return [row[0] for row in conn.execute(FACTS)]


def rows(dsn: str) -> str:
    query = "SELECT md5(string_agg(t::text, ',' ORDER BY id)) FROM public.orders t"
    return str(one(dsn, query))


WHEN = ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify")
# Behind which of three stages, by turns.
TURNS = {change: WHEN[n % 2 :: 2] for n, change in enumerate(CHANGES)}


@pytest.mark.parametrize("turn", matrix(0, 1, 2))
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_at_any_time(lifecycle: Callable[..., Lifecycle], source_dsn: str, change: str, turn: int) -> None:
    execute(source_dsn, SHOP)
    before = one(source_dsn, "SELECT 'public.orders'::regclass::oid")
    pipeline = lifecycle(source_dsn, rewrite={"public.orders": {}})
    for stage in STAGES:
        if stage == "swap":
            expected, expected_rows = facts(source_dsn), rows(source_dsn)
        result = pipeline.run(stage)
        assert not result.blocked, f"{stage}: {result.blocked}"
        if stage == TURNS[change][turn]:
            for statement in CHANGES[change].strip().splitlines():
                execute(source_dsn, statement)
    assert one(source_dsn, "SELECT 'public.orders'::regclass::oid") != before
    assert facts(source_dsn) == expected
    assert rows(source_dsn) == expected_rows
    assert left_behind(source_dsn) == ["schema pgddl"]  # the journal, which keeps the audit


def test_a_rename_stops_the_rewrite(lifecycle: Callable[..., Lifecycle], source_dsn: str) -> None:
    """A copy cannot know under which name applications will look for it."""
    execute(source_dsn, SHOP)
    pipeline = lifecycle(source_dsn, rewrite={"public.orders": {}})
    pipeline.run_all(until="replay")
    execute(source_dsn, "ALTER TABLE public.orders RENAME TO purchases")
    assert pipeline.run("replay").blocked
    with pytest.raises(PgddlError, match=r"is unhandled: .*orders"):
        pipeline.run("swap")
    assert one(source_dsn, "SELECT count(*) FROM public.purchases") == 5000


@pytest.mark.parametrize(
    "unseen",
    [
        "ALTER TABLE public.orders SET (fillfactor = 70)",
        "ALTER TABLE public.orders SET (toast.autovacuum_enabled = off)",
        "ALTER TABLE public.orders ALTER note SET STORAGE EXTERNAL",
        "ALTER TABLE public.orders ALTER note SET STATISTICS 7",
    ],
)
def test_what_no_event_tells_of_a_table_that_another_was_about_is_seen(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, unseen: str
) -> None:
    """Events say why, and prove nothing: what they were about has come to the copy, or the swap is refused."""
    execute(source_dsn, SHOP)
    pipeline = lifecycle(source_dsn, rewrite={"public.orders": {}})
    pipeline.run_all(until="replay")
    execute(source_dsn, "ALTER TABLE public.orders ADD COLUMN more int, SET (fillfactor = 90)")
    pipeline.run("replay")
    pipeline.run("verify")
    execute(source_dsn, f"SET pgddl.skip = on; {unseen}")
    assert not pipeline.refused("swap").retryable
    execute(source_dsn, f"SET pgddl.skip = on; {unseen.replace('public.', 'pgddl_copy_public.')}")
    with connect(source_dsn, purpose="test") as conn:
        settings = queries("catalog")["table_settings"]
        expected = conn.execute(settings, ("public", "orders")).fetchall()
        pipeline.run_all(after="verify")
        assert conn.execute(settings, ("public", "orders")).fetchall() == expected
