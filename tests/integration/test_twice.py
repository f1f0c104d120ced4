"""C29: what is spread over Spark's workers runs a second time after its commit, and changes nothing by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from airflow_provider_pgddl.demo import compare
from airflow_provider_pgddl.engine.parallel import spark
from tests.integration.lifecycle import Lifecycle
from tests.spread_work import NAMES, SPREAD, Spread, come_to, finish, state_of


@pytest.mark.parametrize("spread", SPREAD, ids=lambda s: s.work.__name__)
def test_c29_a_part_that_runs_again_changes_nothing(
    source_dsn: str,
    target_dsn: str,
    lifecycle: Callable[..., Lifecycle],
    monkeypatch: pytest.MonkeyPatch,
    spread: Spread,
) -> None:
    move = lifecycle(source_dsn, target_dsn)
    come_to(move, spread)
    both = list[tuple[Any, Any]]()

    def twice(work: Callable[[Any], Any], parts: Sequence[Any], **_: Any) -> list[Any]:
        assert work is spread.work
        found = []
        for part in parts:
            first, state = work(part), state_of(move, spread)
            both.append((first, work(part)))
            assert state_of(move, spread) == state
            found.append(first)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(spark, "spread", twice)
        patch.setattr(spark, "start", lambda *_, **__: 2)
        assert not move.run(spread.stage).blocked
    assert both
    match spread.work.__name__:
        case "copy_chunks":
            assert both[0][0].chunks > 4
            assert [(again.chunks, again.rows, again.stopped) for _, again in both] == [(0, 0, {})] * len(both)
        case "build":
            assert [again for _, again in both] == [first for first, _ in both]
            assert sum(first for first, _ in both) > 4
        case "fill_part":
            assert sum(first[0].total() for first, _ in both) > 0 and not any(refused for _, (_, refused) in both)
            assert sum(first[0].total() + again[0].total() for first, again in both) <= 9009
        case "compare_part":
            assert [again for _, again in both] == [first for first, _ in both]
            assert sum(rows for first, _ in both for _, rows, _ in first) > 9000
    finish(move)
    assert [str(d) for d in compare.compare(source_dsn, target_dsn, NAMES) if d.differs] == []
