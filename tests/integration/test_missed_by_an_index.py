"""An index of the source that does not lead to every row, by which both the copy and the comparison would be blind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import GaveWay, PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.rows import mend
from airflow_provider_pgddl.engine.server.connect import Session
from tests.conftest import Database, admin_of, database_name
from tests.integration import calls
from tests.integration.items import SMALL
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do, one

Make = Callable[..., Lifecycle]
# As an index that was built beside writers may be: of a row that came while nobody wrote to it, it knows nothing.
MISSED = """
CREATE TABLE public.t (id int PRIMARY KEY, note text);
INSERT INTO public.t SELECT n, 'n' FROM generate_series(1, 30000) n;
UPDATE pg_index SET indisready = false WHERE indexrelid = 'public.t_pkey'::regclass;
"""
UNSEEN = """
INSERT INTO public.t VALUES (30001, 'not in the index');
UPDATE pg_index SET indisready = true WHERE indexrelid = 'public.t_pkey'::regclass;
"""


@pytest.fixture
def missed(source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    do(source_dsn, MISSED)
    do(source_dsn, UNSEEN)
    move = lifecycle(
        source_dsn,
        target_dsn,
        tables={"include": ["public.*"]},
        swap={"fence": "read_only"},
        backfill=SMALL["backfill"],
    )
    move.run_all(until="replay")
    assert one(move.target, "SELECT count(*) FROM public.t") == 30001
    # So few rows of a range would be read from end to end.
    do(source_dsn, f'ALTER DATABASE "{database_name(source_dsn)}" SET enable_seqscan = off')
    return move


def test_a_row_that_an_index_misses_is_not_taken_for_too_many(missed: Lifecycle) -> None:
    assert "(30001) is too many on the copy" in str(missed.refused("verify", StageFailed))
    blocked = missed.run("verify", mend=True).blocked
    assert [b["table"] for b in blocked] == ["public.t"] and "an index of the source misses row (30001)" in str(blocked)
    assert one(missed.target, "SELECT note FROM public.t WHERE id = 30001") == "not in the index"
    do(missed.source, "REINDEX TABLE public.t")
    missed.run("verify", mend=True)
    missed.run_all(after="verify")
    assert differences(missed.source, missed.target) == []


def test_rows_that_are_too_many_still_leave(missed: Lifecycle) -> None:
    do(missed.source, "REINDEX TABLE public.t")
    do(missed.target, "INSERT INTO public.t SELECT n, 'too many' FROM generate_series(40000, 40100) n")
    assert missed.run("verify", mend=True).figures["mended"]
    assert differences(missed.source, missed.target) == []


def test_a_look_that_gave_way_is_made_again(missed: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    def gives_way(number: int) -> None:
        if number <= mend.ASKED:
            raise GaveWay("somebody waits for the table")

    calls.before_each(monkeypatch, mend, "_refuse_missed", gives_way)
    assert "an index of the source misses row (30001)" in str(missed.run("verify", mend=True).blocked)
    assert one(missed.target, "SELECT count(*) FROM public.t") == 30001


def test_of_very_many_rows_some_are_looked_for(missed: Lifecycle, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_for, look = list[int](), mend._refuse_missed

    def count(source: Session, table: TableRow, alone: Sequence[tuple[str, ...]]) -> None:
        looked_for.append(len(alone))
        look(source, table, alone)

    monkeypatch.setattr(mend, "SAMPLE", 50)
    monkeypatch.setattr(mend, "_refuse_missed", count)
    do(missed.source, "REINDEX TABLE public.t")
    do(missed.target, "INSERT INTO public.t SELECT n, 'too many' FROM generate_series(40000, 40500) n")
    assert missed.run("verify", mend=True).figures["mended"] >= 501
    assert looked_for and max(looked_for) == 50
    assert differences(missed.source, missed.target) == []


OUTDATED = "UPDATE pg_collation SET collversion = '0' WHERE collname = 'pg_c_utf8'"


def test_a_collation_of_another_version_than_the_keys_index_is_refused(
    pg18: Cluster, database: Database, lifecycle: Make
) -> None:
    source, target = database(pg18), database(pg18)
    do(
        source,
        'CREATE TABLE public.t (k text COLLATE pg_catalog.pg_c_utf8 CONSTRAINT "T key" PRIMARY KEY, note text)',
        """CREATE TABLE public.p (k text COLLATE pg_catalog.pg_c_utf8 PRIMARY KEY) PARTITION BY LIST (k);
        CREATE TABLE public.p_a PARTITION OF public.p FOR VALUES IN ('a')""",
        OUTDATED,
    )
    move = lifecycle(source, target, tables={"include": ["public.*"]})
    refused = str(move.refused("setup", PreflightRefused))
    noted = "collation pg_catalog.pg_c_utf8 was of version 0 when that was last noted, and is of 1 now: unless it was"
    assert f"{noted} rebuilt since, the index of the key of public." in refused and " and of 1 more" in refused
    fix = [line.strip() for line in refused.splitlines() if "REINDEX" in line or "REFRESH" in line]
    assert [line.rpartition(";")[0].partition("REINDEX")[2].strip() for line in fix[:2]] == [
        'INDEX CONCURRENTLY public."T key"',
        "INDEX CONCURRENTLY public.p_pkey",
    ]
    do(source, 'REINDEX INDEX CONCURRENTLY public."T key"', "REINDEX INDEX CONCURRENTLY public.p_pkey")
    assert "this alone, if all that uses it was rebuilt already" in str(move.refused("setup", PreflightRefused))
    do(source, "ALTER COLLATION pg_catalog.pg_c_utf8 REFRESH VERSION")
    move.run("setup")


def test_by_another_index_nobody_looks_for_rows(pg18: Cluster, database: Database, lifecycle: Make) -> None:
    source, target = database(pg18), database(pg18)
    do(source, "CREATE TABLE public.t (id int PRIMARY KEY, mail text COLLATE pg_catalog.pg_c_utf8 UNIQUE)", OUTDATED)
    lifecycle(source, target, tables={"include": ["public.*"]}).run("setup")


def test_the_collation_of_the_database_is_asked_for_as_well(pg18: Cluster, database: Database, lifecycle: Make) -> None:
    source, target = database(pg18), database(pg18)
    name = sql.Identifier(database_name(source))
    create = "CREATE DATABASE {} TEMPLATE template0 LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C.UTF-8'"
    with admin_of(pg18) as admin:
        admin.execute(sql.SQL("DROP DATABASE {}").format(name))
        admin.execute(sql.SQL(create).format(name))
        admin.execute("UPDATE pg_database SET datcollversion = '0' WHERE datname = %s", [database_name(source)])
    do(source, "CREATE TABLE public.t (k text PRIMARY KEY)", "CREATE TABLE public.n (k int PRIMARY KEY)")
    numbers = lifecycle(source, target, tables={"include": ["public.n"]})
    numbers.run("setup")
    texts = lifecycle(source, target, tables={"include": ["public.t"]})
    refused = str(texts.refused("setup", PreflightRefused))
    assert f"the collation of database {database_name(source)} was of version 0 when that was last noted" in refused
    assert "the index of the key of public.t may not lead to every row" in refused
    assert "REINDEX INDEX CONCURRENTLY public.t_pkey;" in refused
    assert f"ALTER DATABASE {database_name(source)} REFRESH COLLATION VERSION;" in refused
