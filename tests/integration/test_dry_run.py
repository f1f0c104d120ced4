"""`run swap --dry-run`: every statement of the swap with the lock it takes, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from airflow_provider_pgddl.demo.compare import catalog_lines
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.statements import DDL, SHOP, spaced
from tests.table_writers import TableWriters

Make = Callable[..., Lifecycle]
WATCH = """
CREATE SCHEMA watch;
CREATE TABLE watch.seen (n serial, query text);
CREATE FUNCTION watch.see() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO watch.seen (query) SELECT DISTINCT current_query() WHERE TG_TAG <> 'CREATE INDEX';
END $$;
CREATE EVENT TRIGGER see ON ddl_command_end EXECUTE FUNCTION watch.see();
"""


def test_of_a_rewrite_it_shows_what_the_swap_then_does(source_dsn: str, lifecycle: Make) -> None:
    execute(source_dsn, SHOP)
    rewrite = {'public."Order"': {"alter": ["ALTER COLUMN id TYPE bigint"]}, "public.customer": {}}
    move = lifecycle(source_dsn, rewrite=rewrite)
    with TableWriters(
        [source_dsn], [("public", "customer"), ("public", "Order"), ("public", "line")], rate=30
    ) as writers:
        move.run_all(until="verify")
        structure, journal = catalog_lines(source_dsn), move.journal("SELECT state, id FROM pgddl.tables ORDER BY id")
        shown = move.dry_run("swap")
        assert catalog_lines(source_dsn) == structure
        assert move.journal("SELECT state, id FROM pgddl.tables ORDER BY id") == journal
        assert move.journal("SELECT count(*) FROM pgddl.stage_runs WHERE stage = 'swap'") == [(0,)]
    assert writers.notes.failures == []
    assert shown.state == "rehearsed"
    assert shown.statements
    copies, first, *rest = [s for s in shown.statements if s["locks"]]
    assert copies["statement"].startswith("LOCK TABLE")
    assert all(lock["relation"].startswith("pgddl_copy_public.") for lock in copies["locks"])
    assert first["statement"].startswith("LOCK TABLE")
    assert {(lock["relation"], lock["mode"]) for lock in first["locks"]} == {
        (relation, "ACCESS EXCLUSIVE") for relation in ("public.customer", 'public."Order"', "public.line")
    }
    # Whatever else is locked is ours until then, or one of their sequences.
    known = {lock["relation"] for lock in first["locks"]} | {"public.customer_id_seq", 'public."Order_id_seq"'}
    others = {lock["relation"] for s in rest for lock in s["locks"]} - known
    assert [name for name in others if not name.startswith("pgddl_")] == []
    execute(source_dsn, WATCH)
    move.run("swap")
    done = [spaced(query) for (query,) in move.on_source("SELECT query FROM watch.seen ORDER BY n")]
    done = [query for query, _ in groupby(done)]  # a string of several is seen at each of them
    outside = ("CREATE SCHEMA", "COMMENT ON SCHEMA", "CREATE TEMPORARY")  # before the locks, or for a window
    done = [query for query in done if "VALIDATE CONSTRAINT" not in query and not query.startswith(outside)]
    expected = [spaced(s["statement"]) for s in shown.statements if DDL.match(s["statement"])]
    expected = [query for query in expected if not query.startswith(outside)]
    # What comes before takes back what the rehearsal has made ready for a way back.
    assert done[-len(expected) :] == expected
    assert [query for query in done[: -len(expected)] if '"public".' in query] == []


def test_of_a_cut_over_it_shows_what_the_target_gets_and_raises_no_fence(
    source_dsn: str, target_dsn: str, lifecycle: Make
) -> None:
    execute(source_dsn, SHOP)
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"rows": "change_log", "ddl": "queue"},
        swap={"fence": "read_only"},
    )  # fmt: skip
    move.run_all(until="verify")
    structure = [catalog_lines(dsn) for dsn in (source_dsn, target_dsn)]
    shown = move.dry_run("swap")
    assert shown.state == "rehearsed"
    assert [catalog_lines(dsn) for dsn in (source_dsn, target_dsn)] == structure
    execute(source_dsn, "INSERT INTO customer (name) VALUES ('after the rehearsal')")
    execute(target_dsn, WATCH)
    move.run("swap")
    done = [spaced(query) for (query,) in move.journal("SELECT query FROM watch.seen ORDER BY n")]
    done = [query for query, _ in groupby(done)]
    done = [query for query in done if "VALIDATE CONSTRAINT" not in query and not query.startswith("CREATE TEMPORARY")]
    assert done == [spaced(s["statement"]) for s in shown.statements if DDL.match(s["statement"])]
    assert any("FOREIGN KEY" in query for query in done)
    assert any("TRIGGER touched" in query for query in done)
    assert move.journal("SELECT count(*) FROM customer WHERE name = 'after the rehearsal'") == [(1,)]
