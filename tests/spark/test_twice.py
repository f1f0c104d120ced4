"""C29: a worker that is killed right behind its first commit; Spark starts its task again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgddl.demo import compare
from airflow_provider_pgddl.engine.parallel import spark
from tests.integration.lifecycle import Lifecycle
from tests.spread_work import NAMES, SPREAD, Killed, Spread, come_to, finish, killed_after_commit

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_session")]


@pytest.mark.parametrize("spread", SPREAD, ids=lambda s: s.work.__name__)
def test_c29_a_worker_killed_behind_its_first_commit_is_made_good(
    source_dsn: str,
    target_dsn: str,
    lifecycle: Callable[..., Lifecycle],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    spread: Spread,
) -> None:
    move = lifecycle(source_dsn, target_dsn)
    come_to(move, spread)
    mark = tmp_path / "killed"
    killed = Killed(spread.purpose, spread.progress, target_dsn, str(mark))
    really = spark.spread

    def killing(work: Callable[[Any], Any], parts: Sequence[Any], **how: Any) -> list[Any]:
        if work is spread.work:
            return really(partial(killed_after_commit, work, killed), parts, **how)
        return really(work, parts, **how)  # what starts the workers

    with monkeypatch.context() as patch:
        patch.setattr(spark, "spread", killing)
        assert not move.run(spread.stage).blocked
    assert int(mark.read_text()) >= spread.least
    finish(move)
    assert [str(d) for d in compare.compare(source_dsn, target_dsn, NAMES) if d.differs] == []
