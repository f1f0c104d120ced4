"""Rewriting plain tables into partitioned ones: what cannot be kept, or has no partition, is refused with its fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.commands.check import check
from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.combinations import matrix
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.partitions import rows_of
from tests.integration.rewrites import SMALL


@pytest.fixture(params=matrix(16, 18))
def server(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue(f"pg{request.param}")
    return cluster


@pytest.fixture
def dsn(server: Cluster, database: Callable[..., str]) -> str:
    return database(server)


ROW_TRIGGER = """
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER g AFTER UPDATE ON t REFERENCING NEW TABLE AS news FOR EACH ROW EXECUTE FUNCTION f()
"""
NOT_VALID = """
CREATE TABLE o (id integer PRIMARY KEY); ALTER TABLE t ADD CONSTRAINT fk FOREIGN KEY (no) REFERENCES o NOT VALID
"""

LISTED = """
CREATE TABLE "O" (id integer PRIMARY KEY);
CREATE PUBLICATION "P" FOR TABLE "O" (id), t (id, no) WHERE (id > 0)
WITH (publish = 'insert, delete', publish_via_partition_root = true)
"""

# A statement that stands in the way, the words that say so, and the servers on which it does.
REFUSED: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "nullable": ("ALTER TABLE t ALTER COLUMN at DROP NOT NULL", "may be NULL", (16, 18)),
    "unique constraint": ("ALTER TABLE t ADD CONSTRAINT no_key UNIQUE (no)", "unique constraint no_key (no)", (16, 18)),
    "unique index": ("CREATE UNIQUE INDEX no_index ON t (no) WHERE no > 0", "unique index no_index (no)", (16, 18)),
    "unique expression": ("CREATE UNIQUE INDEX lower_index ON t (lower(what))", "unique index lower_index", (16, 18)),
    "referring": ("CREATE TABLE o (t integer REFERENCES t)", "public.o refers to it", (16, 18)),
    "self": ("ALTER TABLE t ADD CONSTRAINT up FOREIGN KEY (no) REFERENCES t", "public.t refers to it", (16, 18)),
    "exclusion": ("ALTER TABLE t ADD CONSTRAINT ex EXCLUDE (no WITH =)", "exclusion constraint ex", (16, 18)),
    "exclusion with it": (
        "ALTER TABLE t ADD CONSTRAINT ex EXCLUDE (no WITH =, at WITH =)", "exclusion constraint ex", (16,)),
    "unlogged": ("ALTER TABLE t SET UNLOGGED", "UNLOGGED", (16, 18)),
    "cluster": ("ALTER TABLE t CLUSTER ON t_pkey", "CLUSTER ON t_pkey", (16, 18)),
    "transition tables": (ROW_TRIGGER, "transition tables", (16, 18)),
    "not valid": (NOT_VALID, "fk is NOT VALID", (16,)),
    "published columns": (LISTED, 'publication "P" lists', (16, 18)),
    "name": ("CREATE TABLE t_p2026_11 (x integer)", "t_p2026_11 has a name", (16, 18)),
    "index's name": ("CREATE TABLE x (x integer); CREATE INDEX t_p2030_01_at_idx ON x (x)", "has a name", (16, 18)),
    "type's name": ("CREATE TYPE t_default AS ENUM ()", "t_default has a name", (16, 18)),
}  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if majors == (16, 18) else pytest.mark.every_combination)
        for case, (_, _, majors) in REFUSED.items()
    ],
)
def test_c23_what_cannot_be_kept_is_refused_and_the_fix_is_one(
    server: Cluster, dsn: str, lifecycle: Callable[..., Lifecycle], case: str
) -> None:
    statement, words, majors = REFUSED[case]
    execute(dsn, "CREATE TABLE t (id integer PRIMARY KEY, at date NOT NULL, no integer, what text)")
    move = lifecycle(dsn, rewrite={"public.t": {"partition_by": {"column": "at", "range": "month"}}}, **SMALL)
    execute(dsn, statement)

    def errors() -> list[dict[str, Any]]:
        found = check(load_pipeline(move.content), dsn, dsn)["findings"]
        return [f for f in found if f["severity"] == "error"]

    if server.version not in majors:
        assert errors() == []
        move.run_all()
        return
    (found,) = errors()
    assert words in found["what"], found
    assert words in move.refused("setup", PreflightRefused).what
    execute(dsn, found["fix"].replace("RENAME TO ...", "RENAME TO other").replace(
        "ALTER TABLE public.t_default", "ALTER TYPE public.t_default"))  # fmt: skip
    assert errors() == []


def test_a_partition_key_with_nulls_from_before_is_refused(
    pg18: Cluster, database: Callable[..., str], lifecycle: Callable[..., Lifecycle]
) -> None:
    dsn = database(pg18)
    execute(
        dsn, "CREATE TABLE t (id integer PRIMARY KEY, at date); ALTER TABLE t ADD CONSTRAINT k NOT NULL at NOT VALID"
    )
    move = lifecycle(dsn, rewrite={"public.t": {"partition_by": {"column": "at", "range": "month"}}}, **SMALL)
    assert "column at may be NULL" in str(move.refused("setup", PreflightRefused))


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ({"column": "what", "range": "month"}, "needs a date or a timestamp"),
        ({"column": "at", "range": 1000}, "needs an integer or numeric"),
        ({"column": "j", "list": True}, "list takes no column of type json"),
        ({"column": "made", "hash": 4}, "is generated"),
    ],
)
def test_a_partition_key_of_the_wrong_kind_is_refused(
    dsn: str, lifecycle: Callable[..., Lifecycle], by: dict[str, Any], words: str
) -> None:
    columns = "at date NOT NULL, what text NOT NULL, j json NOT NULL"
    made = "made integer GENERATED ALWAYS AS (id + 1) STORED NOT NULL"
    execute(dsn, f"CREATE TABLE t (id integer PRIMARY KEY, {columns}, {made})")
    move = lifecycle(dsn, rewrite={"public.t": {"partition_by": by}}, **SMALL)
    assert words in move.refused("setup", PreflightRefused).what


def test_rows_too_far_apart_and_infinity_end_before_a_row_is_copied(
    dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    execute(dsn, "CREATE TABLE t (id integer PRIMARY KEY, at date NOT NULL); INSERT INTO t VALUES (1, '0001-01-01')")
    rewrite = {"public.t": {"partition_by": {"column": "at", "range": "day"}}}
    move = lifecycle(dsn, rewrite=rewrite, **SMALL)
    move.run("setup")
    assert "more than 1000 partitions" in move.refused("snapshot", StageFailed).what
    execute(dsn, "UPDATE t SET at = 'infinity'")
    assert "infinity" in move.refused("snapshot", StageFailed).what
    execute(dsn, "UPDATE t SET at = current_date")
    move.run_all(after="setup")
    assert rows_of(dsn, "SELECT count(*) FROM t") == [1]


def test_a_publication_that_lists_columns_lists_the_partition_key_by_the_swap(
    dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    """The key that the table is known by has taken it in: every UPDATE would fail."""
    execute(
        dsn,
        "CREATE TABLE t (id integer PRIMARY KEY, at date NOT NULL, no integer);"
        "INSERT INTO t VALUES (1, current_date, 1);"
        "CREATE PUBLICATION inserts FOR TABLE t (id) WITH (publish = 'insert', publish_via_partition_root = true);"
        "CREATE PUBLICATION whole FOR TABLE t WITH (publish_via_partition_root = true)",
    )
    move = lifecycle(dsn, rewrite={"public.t": {"partition_by": {"column": "at", "range": "year"}}}, **SMALL)
    move.run_all(until="verify")
    execute(dsn, "CREATE PUBLICATION p FOR TABLE t (id, no) WITH (publish_via_partition_root = true)")
    refused = move.refused("swap", PreflightRefused)
    fix = "ALTER PUBLICATION p SET TABLE ONLY public.t (id, no, at);"
    assert fix in refused.what
    assert "1 problem" in refused.what
    execute(dsn, "DROP PUBLICATION whole")
    execute(dsn, fix)
    move.run("swap")
    execute(dsn, "UPDATE t SET no = 2; DELETE FROM t")
