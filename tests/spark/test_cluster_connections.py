"""Scarce connections: fewer workers, fewer cores, and no more sessions than were said."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.server.connections import OWN_SESSIONS, sessions_of_a_worker
from tests.conftest import ENVIRONMENT, SETTINGS
from tests.integration.lifecycle import Lifecycle, execute
from tests.spark.cluster_pipeline import CHANGES, SECRET, TABLES, on_cluster, run
from tests.spark.peaks import Peaks
from tests.spark.standalone import ENCRYPTED, Standalone

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1500)]

WANTED = 6
# For two workers or more, and for fewer than are wanted, beside what a run has open when it counts. That is the least
# in setup, so that a stage behind it has fewer workers than the application has cores.
FEW = {**SETTINGS, "max_connections": "22", "max_wal_senders": "4", "autovacuum_max_workers": "1"}


def test_workers_and_cores_are_cut_to_the_connections_there_are(
    target_dsn: str, lifecycle: Callable[..., Lifecycle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET, ENCRYPTED["spark.authenticate.secret"])
    events = tmp_path / "events"
    events.mkdir()
    with (
        Cluster(16, settings=FEW, environment=ENVIRONMENT) as server,
        Standalone(workers=1, cores=WANTED, conf=ENCRYPTED) as cluster,
    ):
        source_dsn = server.conninfo("postgres")
        execute(source_dsn, TABLES)
        move = lifecycle(source_dsn, target_dsn)
        on_cluster(move, cluster)
        move.content["backfill"] |= {"workers": WANTED}
        move.content["spark"]["conf"] = move.content["spark"]["conf"] | {
            "spark.eventLog.enabled": True, "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.rolling.enabled": False, "spark.eventLog.compress": False,
        }  # fmt: skip
        for stages in ("setup,snapshot,backfill,schema_sync", "replay,verify"):
            if stages.startswith("replay"):
                execute(source_dsn, CHANGES)
            with Peaks(move) as peaks:
                code, said = run(move, tmp_path, stages)
            print(said)
            assert code == 0, said
            assert f"executors of {cluster.master} run" in said
            cut = [int(n) for n in re.findall(rf"(\d+) workers? instead of {WANTED}: the servers have", said)]
            assert cut and 1 < max(cut) < WANTED
            for side, dsn in (("source", move.source), ("target", move.target)):
                each = sessions_of_a_worker(side, in_place=False)
                assert each < peaks.of[dsn] <= OWN_SESSIONS + max(cut) * each, (side, peaks.of[dsn], cut)
            (application,) = events.iterdir()
            log = [json.loads(line) for line in application.read_text().splitlines()]
            application.unlink()
            (settings,) = (e["Spark Properties"] for e in log if e["Event"] == "SparkListenerEnvironmentUpdate")
            assert int(settings["spark.cores.max"]) == cut[0]
            cores = [e["Executor Info"]["Total Cores"] for e in log if e["Event"] == "SparkListenerExecutorAdded"]
            assert 1 <= sum(cores) <= cut[0]
