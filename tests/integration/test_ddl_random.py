"""Random DDL and DML while every stage runs, connections lost on the way: both databases end equal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs, differences
from airflow_provider_pgddl.engine.errors import PgddlError, PreflightRefused
from airflow_provider_pgddl.engine.stages import STAGES, StageResult
from tests.combinations import matrix
from tests.integration.faults import Faults
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.random_ddl import START, Developers, until
from tests.seeds import seed

pytestmark = pytest.mark.timeout(900)

ATTEMPTS = 40
# Of DDL for one stage. Sixty, which make test-all takes, are about as many as run during one on a quiet machine.
TRANSACTIONS, MANY_TRANSACTIONS = 30, 60
# What a developer's string can hold here, beside the lists that are the default.
TAGS = ["ALTER TABLE", "CREATE TABLE", "CREATE TABLE AS", "CREATE INDEX", "CREATE VIEW", "ALTER TYPE"]


def attempt(pipeline: Lifecycle, stage: str, trouble: Faults, developers: Developers | None = None) -> StageResult:
    """As Airflow does it: again, as long as the error says that a retry may help. Ever fewer connections are lost, or a
    stage of many statements would never come to its end; nor would a dump, which has to fit between two changes, while
    developers run one after the other on a busy machine."""
    trouble.slack = 1.0
    for _ in range(ATTEMPTS):
        try:
            return pipeline.run(stage)
        except PgddlError as error:
            renamed = isinstance(error, PreflightRefused) and "no such table" in error.what
            if not error.retryable and not renamed:
                raise
            trouble.slack *= 1.3
            if developers is not None:
                developers.rows_only = stage == "snapshot"
    raise AssertionError(f"{stage} did not end in {ATTEMPTS} attempts")


@pytest.mark.parametrize("capture", matrix("change_log queue", "change_log wal", "wal wal"))
@pytest.mark.parametrize("faults", [False, True], ids=["undisturbed", "faults"])
def test_both_end_equal(
    lifecycle: Callable[..., Lifecycle],
    source_dsn: str,
    target_dsn: str,
    capture: str,
    faults: bool,
    all_combinations: bool,
) -> None:
    rows, ddl = capture.split()
    transactions = MANY_TRANSACTIONS if all_combinations else TRANSACTIONS
    number = seed(22)
    print(f"seed {number} (PGDDL_TEST_SEED)")
    execute(source_dsn, START)
    pipeline = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.*"]}, capture={"rows": rows, "ddl": ddl},
        ddl={"create_tags": TAGS}, swap={"lock_timeout": "200ms"},
    )  # fmt: skip
    trouble = Faults(number, 150 if faults else 10**9)
    pause = 0.6 if rows == "wal" else 0.3  # a table that is captured anew waits for older transactions, too
    try:
        with trouble.at_work(), Developers(source_dsn, number, pause) as developers:
            for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "replay"):
                before = developers.done
                developers.limit = before + transactions
                developers.pause = 0.0  # nothing runs that they could keep from its end
                until(lambda before=before: developers.error is not None or developers.done > before + 5)
                developers.pause = pause
                # Where connections are lost as well, a moment in which a whole dump fits between two changes is rare.
                developers.rows_only = faults and stage == "snapshot"
                attempt(pipeline, stage, trouble, developers)
        with trouble.at_work():
            for stage in ("replay", "verify", "swap", "cleanup"):
                result = attempt(pipeline, stage, trouble)
                assert not result.blocked, f"{stage}: {result.blocked}"
    finally:
        print("\n".join(developers.log))
    assert developers.ddl > 10
    assert differences(source_dsn, target_dsn) == []
    assert diff_catalogs(*(catalog_lines(dsn, ["public"]) for dsn in (source_dsn, target_dsn))) == []
    assert left_behind(source_dsn) == []
    assert STAGES[-1] in pipeline.results
