"""A crash of either server at each border of the way there, of the way back and of windows in between: what writers
have been told is committed is there, and nothing else, on both servers whenever it is quiet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.errors import PgddlError
from tests.combinations import matrix
from tests.conftest import Database
from tests.failpoints import At, once
from tests.integration import audit
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.ways_back import AHEAD_OF_WRITERS, SHOP, WORK, Ways

SMALL = {"shared_buffers": "32MB", "max_wal_size": "512MB"}
WINDOWS = ["follow.before_events_commit", "replay.before_target_commit", "replay.before_source_commit"]
SWAP = [
    "way_back.before_unborn_commit", "way_back.before_table_commit", "way_back.before_statements_commit",
    "way_back.before_prepared_commit", "cut_over.before_fence_commit", "cut_over.behind_fence",
    "cut_over.before_target", "cut_over.before_commit", "cut_over.after_commit",
]  # fmt: skip
BEHIND = {
    "change_log": ["capture.before_stop_commit", "way_back.before_birth_commit"],
    "wal": ["cleanup.before_unpublished_commit", "way_back.before_birth_commit", "forget.before_rows_slot"],
}
ATTEMPTS = 6


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Cluster, Cluster]]:
    with Cluster(16, settings=SMALL) as old, Cluster(18, settings=SMALL) as new:
        yield old, new


class Crashes:
    """Runs stages, and crashes one of the servers at a border of them; `struck` has (border, server)."""

    def __init__(self, servers: tuple[Cluster, Cluster], writers: audit.Audit, at: At) -> None:
        self.servers, self.writers, self.at = servers, writers, at
        self.struck = set[tuple[str, int]]()

    def at_border(self, move: Lifecycle, stage: str, border: str, server: int) -> None:
        """One try of a stage. It may come to its end all the same: not every session of it is still needed."""
        with self.at(border, once(lambda: self.servers[server].restart("immediate")), perhaps=True) as passes:
            self.once(move, stage)
        if passes.times:
            self.struck.add((border, server))

    def once(self, move: Lifecycle, stage: str) -> bool:
        """Whether it has done its work."""
        try:
            result = move.run(stage)
        except PgddlError as error:
            print(f"{stage} of {move.name}: {type(error).__name__}: {error}")
            return False
        finally:
            if self.has_cut_over(move):
                self.writers.where = move.target
        assert not result.blocked, result.blocked
        return True

    def until_done(self, move: Lifecycle, stage: str) -> None:
        assert any(self.once(move, stage) for _ in range(ATTEMPTS)), f"{stage} of {move.name} does not come to its end"

    @staticmethod
    def has_cut_over(move: Lifecycle) -> bool:
        query = "SELECT cut_over_at IS NOT NULL AND unborn IS NULL FROM pgddl.pipelines WHERE pipeline = %s"
        return move.journal(query, [move.name]) == [(True,)]


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_to_and_fro_through_crashes_of_either_server(
    lifecycle: Callable[..., Lifecycle],
    servers: tuple[Cluster, Cluster],
    database: Database,
    rows: str,
    at: At,
    all_combinations: bool,
) -> None:
    """Twice there and twice back. Each border meets a crash of either server, at the least in one direction."""
    old, new = (database(server) for server in servers)
    execute(old, SHOP + audit.TABLES)
    tables = {"include": ["shop.*", "audit.*"]}
    ways = Ways(lifecycle, old, new, tables=tables, capture={"rows": rows}, replay=AHEAD_OF_WRITERS)
    swap = [*SWAP, *BEHIND[rows]]
    with audit.Audit(old, pace=audit.UNHURRIED) as writers:
        crashes = Crashes(servers, writers, at)

        def strike(move: Lifecycle, stage: str, borders: Sequence[str]) -> None:
            for n, border in enumerate(borders):
                if all_combinations or n % 2 == leg // 2:
                    crashes.at_border(move, stage, border, (n // 2 + leg + leg // 2) % 2)
            crashes.until_done(move, stage)

        def both_agree(move: Lifecycle) -> None:
            with writers.quiet():
                crashes.until_done(move, "replay")
                ways.equal()
                writers.agrees(old)
                writers.agrees(new)

        ways.there.run_all(until="schema_sync")
        for leg in range(4):
            move, other = (ways.back, ways.there) if leg % 2 else (ways.there, ways.back)
            execute(move.source, WORK.format(f"leg {leg}", leg))
            execute(move.source, f"ALTER TABLE shop.customer ADD COLUMN leg_{leg} text DEFAULT 'of {leg}'")
            strike(move, "replay", WINDOWS)
            both_agree(move)
            crashes.until_done(move, "verify")
            before = writers.committed
            strike(move, "swap", swap)
            assert writers.where == move.target
            wait_until(lambda before=before: writers.committed > before + 50)
            both_agree(other)
        print(f"{writers.committed} transactions, {len(crashes.struck)} crashes")
    assert crashes.struck == {(border, server) for border in [*WINDOWS, *swap] for server in (0, 1)}
