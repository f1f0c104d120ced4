"""DDL at the worst instant: nothing is lost without a word, and nothing waits for a person that could go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import compare_catalogs, differences
from airflow_provider_pgddl.engine.stages import schema_sync
from airflow_provider_pgddl.engine.swapping import indexes
from tests.combinations import matrix
from tests.failpoints import At, once
from tests.integration.ddl_shop import SHOP, all_through, each, equal, killed
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.sessions import one

Make = Callable[..., Lifecycle]


@pytest.fixture(params=matrix("queue", "wal"))
def make(lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str, request: pytest.FixtureRequest) -> Make:
    def made(schema: str = SHOP, **pipeline: Any) -> Lifecycle:
        execute(source_dsn, schema)
        content: dict[str, Any] = {"tables": {"include": ["public.*"]}, "capture": {"ddl": request.param}}
        return lifecycle(source_dsn, target_dsn, **{**content, **pipeline})

    return made


# --- objects that share a name or a place ----------------------------------------------------------------------------


def test_a_table_dropped_and_made_again_between_two_reads(make: Make) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    each(pipeline.source, """
        DROP TABLE public.lines
        CREATE TABLE public.lines (id int PRIMARY KEY, text text)
        INSERT INTO public.lines VALUES (1, 'again')""")  # fmt: skip
    all_through(pipeline, after="schema_sync")


def test_two_tables_that_trade_names(make: Make) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    execute(pipeline.source, """
        ALTER TABLE public.lines RENAME TO aside;
        ALTER TABLE public.orders RENAME TO lines;
        ALTER TABLE public.aside RENAME TO orders;
        ALTER TABLE public.orders RENAME text TO note;
        ALTER TABLE public.lines RENAME note TO text;
        UPDATE public.orders SET note = 'x' WHERE id % 3 = 0;
        UPDATE public.lines SET text = 'y' WHERE id % 3 = 0""")  # fmt: skip
    all_through(pipeline, after="schema_sync")


def test_a_chain_of_names(make: Make) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    each(pipeline.source, """
        ALTER TABLE public.lines RENAME TO zzz
        ALTER TABLE public.orders RENAME TO lines
        UPDATE public.lines SET note = 'x' WHERE id % 3 = 0
        DELETE FROM public.zzz WHERE id % 3 = 0""")  # fmt: skip
    all_through(pipeline, after="schema_sync")


def test_a_name_that_is_taken_again_while_its_rename_waits(make: Make) -> None:
    """What bears it on the target is still the old table's copy, and not for the new one to be read into."""
    pipeline = make(ddl={"approval": "required"})
    pipeline.run_all(until="replay")
    each(pipeline.source, """
        ALTER TABLE public.orders RENAME TO orders_old
        CREATE TABLE public.orders (id int PRIMARY KEY, note text)
        INSERT INTO public.orders VALUES (1, 'new')
        UPDATE public.orders_old SET note = 'b' WHERE id % 7 = 0
        UPDATE public.lines SET text = 'b' WHERE id % 7 = 0""")  # fmt: skip
    pipeline.run("replay")
    assert one(pipeline.target, "SELECT count(*) FROM public.orders") == 500
    assert one(pipeline.target, "SELECT count(*) FROM public.lines WHERE text = 'b'") == 14
    execute(pipeline.target, "UPDATE pgddl.ddl_events SET status = 'pending' WHERE status = 'awaiting_approval'")
    all_through(pipeline, after="schema_sync")


@pytest.mark.parametrize("when", ["setup", "snapshot", "backfill"])
def test_names_that_are_taken_again_before_their_indexes_are_built(make: Make, when: str) -> None:
    pipeline = make()
    execute(pipeline.source, "CREATE INDEX by_text ON public.lines (text)")
    pipeline.run_all(until=when)
    each(pipeline.source, """
        DROP TABLE public.orders
        CREATE TABLE public.orders (id int PRIMARY KEY, note text, more int)
        INSERT INTO public.orders VALUES (1, 'new')
        ALTER TABLE public.lines RENAME TO rows
        CREATE TABLE public.lines (id int CONSTRAINT another PRIMARY KEY, text text)
        INSERT INTO public.lines VALUES (1, 'new')""")  # fmt: skip
    all_through(pipeline, after=when)


# --- runs beside each other -----------------------------------------------------------------------------------------


def test_a_run_over_some_tables_leaves_the_others_to_theirs(make: Make) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    each(pipeline.source, """
        ALTER TABLE public.orders ADD COLUMN x int DEFAULT 4
        UPDATE public.orders SET note = 'b', x = 5 WHERE id % 7 = 0
        CREATE TABLE public.late (id int PRIMARY KEY)
        INSERT INTO public.late VALUES (1)
        ALTER TABLE public.lines RENAME TO rows""")  # fmt: skip
    assert not pipeline.run("replay", tables=["public.events"]).blocked
    assert not pipeline.run("replay", tables=["public.orders"]).blocked
    assert one(pipeline.target, "SELECT count(*) FROM public.orders WHERE x = 5") == 71
    all_through(pipeline, after="schema_sync")


# --- between two looks ---------------------------------------------------------------------------------------------


def test_ddl_while_a_late_table_is_taken_in(make: Make, at: At) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    each(pipeline.source, """
        CREATE TABLE public.late (id int PRIMARY KEY, x int)
        INSERT INTO public.late SELECT i, i FROM generate_series(1, 50) i""")  # fmt: skip
    ddl = """
        ALTER TABLE public.late ADD COLUMN more int DEFAULT 3
        ALTER TABLE public.late ADD CHECK (x > 0)"""
    at("late.before_capture", once(lambda: each(pipeline.source, ddl)))
    pipeline.run("replay")
    pipeline.run("replay")
    all_through(pipeline, after="schema_sync")


def test_killed_behind_the_capture_of_a_late_table_and_then_altered(make: Make, at: At) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    each(pipeline.source, """
        CREATE TABLE public.late (id int PRIMARY KEY, x int)
        INSERT INTO public.late SELECT i, i FROM generate_series(1, 50) i""")  # fmt: skip
    with at("late.before_taken_in", killed), pytest.raises(KeyboardInterrupt):
        pipeline.run("replay")
    execute(pipeline.source, "ALTER TABLE public.late ADD CONSTRAINT positive CHECK (x > 0)")
    all_through(pipeline, after="schema_sync")


def test_a_late_table_gets_its_index_though_it_is_only_captured(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no swap comes, nobody else would build it."""
    from airflow_provider_pgddl.engine.following import new_tables

    pipeline = make()
    pipeline.run_all(until="replay")
    each(pipeline.source, """
        CREATE TABLE public.late (id int PRIMARY KEY, x int)
        INSERT INTO public.late SELECT i, i FROM generate_series(1, 50) i""")  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(new_tables, "_take_in", lambda *_: None)  # it was altered in that moment
        pipeline.run("replay")
    execute(pipeline.source, "CREATE UNIQUE INDEX by_x ON public.late (x)")
    execute(pipeline.source, "INSERT INTO public.late VALUES (100, 100)")
    pipeline.run("replay")
    assert one(pipeline.target, "SELECT count(*) FROM pg_indexes WHERE indexname = 'by_x'") == 1
    assert differences(pipeline.source, pipeline.target) == []
    all_through(pipeline, after="schema_sync")


@pytest.mark.parametrize("last", ["backfill", "verify"])
def test_an_index_between_the_last_look_and_the_dump(make: Make, at: At, last: str) -> None:
    """A plain one and a constraint's, before the dump of schema_sync or of the swap."""
    pipeline = make()
    pipeline.run_all(until=last)
    execute(pipeline.source, "ALTER TABLE public.orders ADD COLUMN more int")
    indexes = """
        CREATE INDEX by_note ON public.orders (note)
        ALTER TABLE public.orders ADD CONSTRAINT named UNIQUE (note)"""
    at("snapshot.before_pg_dump", once(lambda: each(pipeline.source, indexes)))
    all_through(pipeline, after=last)


def test_a_session_with_an_old_snapshot_does_not_escape(make: Make) -> None:
    """It has no transaction id yet, so no list of running transactions shows it."""
    pipeline = make()
    with psycopg.connect(pipeline.source) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT count(*) FROM public.orders")
        pipeline.run_all(until="replay")
        old.execute("CREATE VIEW public.escaped AS SELECT 1 AS x")
        old.execute("ALTER TABLE public.orders ADD CHECK (id > 0)")
        old.commit()
    if pipeline.content["capture"]["ddl"] == "queue":
        all_through(pipeline, after="schema_sync")
    else:
        pipeline.run("replay")
        told = pipeline.journal("SELECT event ->> 'tag' FROM pgddl.ddl_events WHERE status = 'unhandled' ORDER BY 1")
        assert told == [("ALTER TABLE",), ("CREATE VIEW",)]


def test_what_an_old_snapshot_does_not_show_is_not_taken_back(make: Make) -> None:
    """A command whose text is not known is rebuilt from its tables, as its transaction saw them."""
    pipeline = make()
    add = "ALTER TABLE public.orders ADD COLUMN z int DEFAULT 5"
    execute(pipeline.source, f"CREATE FUNCTION public.f() RETURNS void LANGUAGE sql AS '{add}'")
    pipeline.run_all(until="replay")
    with psycopg.connect(pipeline.source) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT count(*) FROM public.lines")
        execute(pipeline.source, "ALTER TABLE public.orders ADD CONSTRAINT c1 CHECK (id > -1)")
        old.execute("SELECT public.f()")
        old.commit()
    assert "snapshot" in pipeline.run("replay").blocked[0]["reason"]
    execute(pipeline.target, add)
    execute(pipeline.target, "UPDATE pgddl.ddl_events SET status = 'resolved' WHERE status = 'unhandled'")
    all_through(pipeline, after="schema_sync")


# --- after the cut-over --------------------------------------------------------------------------------------------


def test_ddl_behind_the_cut_over_is_not_swallowed(make: Make) -> None:
    pipeline = make()
    pipeline.run_all(until="swap")
    execute(pipeline.source, "ALTER TABLE public.orders ADD COLUMN too_late int")
    error = pipeline.refused("cleanup")
    assert "after the cut-over" in str(error)
    number = one(pipeline.target, "SELECT id FROM pgddl.ddl_events WHERE status = 'unhandled'")
    execute(pipeline.target, f"UPDATE pgddl.ddl_events SET status = 'skipped' WHERE id = {number}")
    pipeline.run("cleanup")
    assert left_behind(pipeline.source) == []


# --- what others' triggers, failures and whole lives in one transaction leave behind --------------------------------

# Its name sorts before ours, so what it runs is recorded before the command that it runs in.
TENANTS = """
CREATE FUNCTION public.tenant() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE made text;
BEGIN
    FOR made IN SELECT object_identity FROM pg_event_trigger_ddl_commands()
                WHERE object_type = 'table' AND command_tag <> 'ALTER TABLE' LOOP
        EXECUTE format('GRANT SELECT ON %s TO PUBLIC', made);
        EXECUTE format('ALTER TABLE %s ADD COLUMN tenant int NOT NULL DEFAULT 7', made);
        EXECUTE format('CREATE INDEX ON %s (tenant)', made);
    END LOOP;
END $$;
CREATE EVENT TRIGGER aa_tenant ON ddl_command_end WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS')
    EXECUTE FUNCTION public.tenant();
"""


@pytest.mark.parametrize("ddl_only", [False, True])
def test_what_an_event_trigger_of_others_makes_of_a_new_table(make: Make, ddl_only: bool) -> None:
    pipeline = make(SHOP + TENANTS, ddl={"ddl_only": ddl_only})
    pipeline.run_all(until="snapshot" if ddl_only else "schema_sync")
    each(pipeline.source, """
        CREATE TABLE public.fresh (id int PRIMARY KEY)
        INSERT INTO public.fresh VALUES (1)
        DO $$BEGIN CREATE TABLE public.one (id int PRIMARY KEY); CREATE TABLE public.two (id int PRIMARY KEY); END$$
        CREATE TABLE public.counted AS SELECT 1 AS id
        ALTER TABLE public.counted ADD PRIMARY KEY (id)""")  # fmt: skip
    pipeline.run("replay")
    stopped = "SELECT statement, rule, note FROM pgddl.ddl_events WHERE status IN ('unhandled', 'failed')"
    assert pipeline.journal(stopped) == []
    if ddl_only:
        assert compare_catalogs(pipeline.source, pipeline.target, ["public"]) == []
    else:
        pipeline.run_all(after="replay")
        equal(pipeline)
        assert pipeline.journal("SELECT evtname FROM pg_event_trigger") == [("aa_tenant",)]


def test_an_index_that_failed_to_be_built_is_dropped(make: Make) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    with psycopg.connect(pipeline.source, autocommit=True) as client:
        with pytest.raises(psycopg.errors.UniqueViolation):
            client.execute("CREATE UNIQUE INDEX CONCURRENTLY twice ON public.lines ((id % 2))")
        client.execute("ALTER TABLE public.lines ADD COLUMN more int")  # its version has the index
        client.execute("ALTER INDEX public.twice RENAME TO thrice")
        client.execute("DROP INDEX CONCURRENTLY public.thrice")
        with pytest.raises(psycopg.errors.UniqueViolation):
            client.execute("CREATE UNIQUE INDEX CONCURRENTLY twice ON public.lines ((id % 2))")
        client.execute("DROP INDEX public.twice")
    assert pipeline.run("replay").blocked == []
    all_through(pipeline, after="replay")


def test_a_column_filled_and_required_in_the_transaction_that_drops_its_table(make: Make) -> None:
    pipeline = make()
    pipeline.run_all(until="replay")
    execute(pipeline.source, """
        ALTER TABLE public.lines ADD COLUMN p int; UPDATE public.lines SET p = 1;
        ALTER TABLE public.orders ADD COLUMN p int; UPDATE public.orders SET p = 1;
        ALTER TABLE public.lines ALTER p SET NOT NULL;
        ALTER TABLE public.orders ALTER p SET NOT NULL;
        DROP TABLE public.lines""")  # fmt: skip
    assert pipeline.run("replay").blocked == []
    all_through(pipeline, after="replay")


# --- a swap that dies on its way --------------------------------------------------------------------------------------


def test_an_index_that_a_swap_was_about_to_build_when_it_died(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = make(ddl={"create_tags": ["ALTER TABLE", "CREATE TABLE"]})
    pipeline.run_all(until="verify")
    execute(pipeline.source, "CREATE INDEX by_note ON public.orders (note)")
    build = indexes.apply_events

    def die(*_: Any, **__: Any) -> int:
        monkeypatch.setattr(indexes, "apply_events", build)
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(indexes, "apply_events", die)
    assert pipeline.refused("swap").retryable
    all_through(pipeline, after="verify")


def test_an_index_that_became_another_after_a_schema_sync_had_built_it_and_died(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By DDL that is out of scope, under the same name."""
    pipeline = make(
        SHOP + "CREATE INDEX by_note ON public.orders (note);",
        ddl={"create_tags": ["ALTER TABLE", "CREATE TABLE"], "drop_tags": ["DROP TABLE"]},
    )
    pipeline.run_all(until="backfill")
    execute(pipeline.source, "ALTER TABLE public.lines ADD COLUMN more int")

    def die(*_: Any) -> None:
        raise psycopg.OperationalError("the connection is lost")

    with monkeypatch.context() as dying:
        dying.setattr(schema_sync, "reconcile_built", die)
        assert pipeline.refused("schema_sync").retryable
    execute(pipeline.source, "DROP INDEX public.by_note; CREATE INDEX by_note ON public.orders (note DESC, id)")
    assert not pipeline.run("schema_sync").blocked
    definition = "SELECT pg_get_indexdef('public.by_note'::regclass)"
    assert pipeline.journal(definition) == pipeline.on_source(definition)
    all_through(pipeline, after="schema_sync")
