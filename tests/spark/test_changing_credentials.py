"""Passwords that change every second, on a standalone cluster: executors ask the process that started the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.rotation import endpoint, rotated
from tests.spark.cluster_pipeline import CHANGES, TABLES, differences, on_cluster, run
from tests.spark.standalone import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1500)]


def test_executors_get_the_password_of_the_moment(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], cluster: Standalone, tmp_path: Path
) -> None:
    execute(source_dsn, TABLES)
    move = lifecycle(source_dsn, target_dsn)
    on_cluster(move, cluster)
    files = {"source": tmp_path / "source", "target": tmp_path / "target"}
    with rotated(source_dsn, files["source"]) as (mine, source), rotated(target_dsn, files["target"]) as (its, target):
        move.content["source"] = endpoint(source_dsn, mine, files["source"])
        move.content["target"] = endpoint(target_dsn, its, files["target"])
        for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify"):
            if stage == "replay":
                execute(source_dsn, CHANGES)
            code, said = run(move, tmp_path, stage)
            assert code == 0, said
            assert not any(password in said for password in (*source.passwords, *target.passwords))
            assert stage in ("snapshot", "setup") or f"executors of {cluster.master} run" in said, said
        assert len(source.passwords) > 20
        assert differences(move) == []
