"""`plan`: what it lists is what a run then does, and it changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.compare import catalog_lines
from airflow_provider_pgddl.engine.commands.plan import lines
from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.stages import plan
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.statements import DDL, SHOP, spaced

Make = Callable[..., Lifecycle]
Done = list[tuple[str, str]]


def planned(move: Lifecycle) -> dict[str, Any]:
    return plan(load_pipeline(move.content), move.source, move.target)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Done:
    """(database, statement) of the DDL that our sessions run, but for what is about our own things alone."""
    found: Done = []
    execute = psycopg.Cursor.execute

    def noting(cursor: psycopg.Cursor[Any], query: Any, params: Any = None, **options: Any) -> Any:
        for one in (query.as_string(cursor) if isinstance(query, sql.Composable) else str(query)).split(";\n"):
            text = spaced(one)
            ours = re.search(r" pgddl\b", text) or (' "pgddl".' in text and "TRIGGER" not in text) or "pg_temp" in text
            if DDL.match(text) and not ours:
                found.append((cursor.connection.info.dbname, text))
        return execute(cursor, query, params, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", noting)
    return found


@pytest.mark.parametrize("rows", ["change_log", "direct_trigger"])
def test_of_a_rewrite_it_lists_what_is_done(source_dsn: str, lifecycle: Make, done: Done, rows: str) -> None:
    execute(source_dsn, SHOP)
    rewrite = {'public."Order"': {"alter": ["ALTER COLUMN id TYPE bigint"]}, "public.customer": {}}
    move = lifecycle(source_dsn, rewrite=rewrite, capture={"rows": rows})
    before = catalog_lines(source_dsn)
    found = planned(move)
    assert catalog_lines(source_dsn) == before
    told = {spaced(one["statement"]) for stage in found["stages"].values() for one in stage["statements"]}
    done.clear()
    move.run_all()
    run = {statement for _, statement in done}
    assert {q for q in told if not q.startswith("LOCK")} - run == set()
    in_words = (
        "VALIDATE",
        "SCHEMA ",
        "ALTER SEQUENCE",
        "PUBLICATION",
        "EVENT TRIGGER",
        '"pgddl_row_',
        '"pgddl_truncate_',
        "pgddl_try_",  # by preflight, and rolled back
    )
    assert {q for q in run - told if not any(words in q for words in in_words)} == set()
    assert found["stages"]["swap"]["statements"][0]["statement"].startswith("LOCK TABLE")
    for one in found["stages"]["setup"]["statements"]:
        (lock,) = one["locks"]
        assert lock["mode"] == "SHARE ROW EXCLUSIVE"
    assert "\n".join(lines(found)).count(";\n") >= len(told) - 1


def test_of_a_partitioned_table_it_tells_of_the_partitions_in_words(
    source_dsn: str, lifecycle: Make, done: Done
) -> None:
    execute(
        source_dsn,
        "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL); CREATE INDEX ON t (n); INSERT INTO t VALUES (1, 7)",
    )
    by = {"partition_by": {"column": "n", "range": 1000, "ahead": 1}, "order_by": ["n"]}
    move = lifecycle(source_dsn, rewrite={"public.t": by})
    found = planned(move)["stages"]
    told = {spaced(one["statement"]) for stage in found.values() for one in stage["statements"]}
    (note,) = [note for note in found["snapshot"]["notes"] if "PARTITION OF" in note]
    assert '"pgddl_copy_public"."t"' in note
    done.clear()
    move.run_all()
    run = {statement for _, statement in done}
    assert {q for q in told if not q.startswith("LOCK")} - run == set()
    in_words = ("pgddl_try_", "PARTITION OF", '"t_p', "SCHEMA ", "PUBLICATION", "EVENT TRIGGER")
    assert {q for q in run - told if not any(words in q for words in in_words)} == set()


@pytest.mark.parametrize("rows", ["change_log", "wal"])
def test_of_a_migration_it_lists_what_is_done(
    source_dsn: str, target_dsn: str, lifecycle: Make, done: Done, rows: str
) -> None:
    execute(source_dsn, SHOP)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"rows": rows})
    both = [catalog_lines(source_dsn), catalog_lines(target_dsn)]
    found = planned(move)
    assert [catalog_lines(source_dsn), catalog_lines(target_dsn)] == both
    told = [one for stage in found["stages"].values() for one in stage["statements"]]
    done.clear()
    move.run_all()
    for side, dsn in (("source", source_dsn), ("target", target_dsn)):
        here = {spaced(one["statement"]) for one in told if one["on"] == side}
        run = {statement for database, statement in done if database == conninfo_to_dict(dsn)["dbname"]}
        assert {q for q in here if not q.startswith("LOCK")} - run == set()
        in_words = ("VALIDATE", "CREATE PUBLICATION", "DROP PUBLICATION", "EVENT TRIGGER")
        assert {q for q in run - here if not any(words in q for words in in_words)} == set()


def test_of_tables_that_give_way_it_lists_what_is_done(
    source_dsn: str, target_dsn: str, lifecycle: Make, done: Done
) -> None:
    execute(source_dsn, SHOP)
    execute(
        target_dsn,
        """CREATE TABLE public.customer (id int PRIMARY KEY, name text);
        CREATE SCHEMA crm; CREATE TABLE crm.visit (customer int CONSTRAINT visited REFERENCES public.customer);
        CREATE VIEW crm.names AS SELECT id FROM public.customer;
        GRANT SELECT ON public.customer TO PUBLIC""",
    )
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.*"], "existing": "replace", "keep_extra": False}
    )
    both = [catalog_lines(source_dsn), catalog_lines(target_dsn)]
    found = planned(move)
    assert [catalog_lines(source_dsn), catalog_lines(target_dsn)] == both
    here = {
        spaced(one["statement"])
        for stage in found["stages"].values()
        for one in stage["statements"]
        if one["on"] == "target"
    }
    done.clear()
    move.run_all()
    run = {statement for database, statement in done if database == conninfo_to_dict(target_dsn)["dbname"]}
    assert {q for q in here if not q.startswith("LOCK")} - run == set()
    in_words = ("VALIDATE", "SCHEMA ", "pgddl_row_", "pgddl_truncate_", "pgddl_try_", "PUBLICATION", "EVENT TRIGGER",
                "OWNER TO", "GRANT", "REVOKE")  # fmt: skip
    assert {q for q in run - here if not any(words in q for words in in_words)} == set()
    (locked,) = [q for q in here if q.startswith("LOCK TABLE")]
    assert '"crm"."visit"' in locked and '"public"."customer"' in locked


def test_what_setup_would_refuse_has_no_plan(source_dsn: str, lifecycle: Make) -> None:
    execute(source_dsn, "CREATE TABLE keyless (n int)")
    with pytest.raises(PreflightRefused):
        planned(lifecycle(source_dsn, rewrite={"public.keyless": {}}))
