"""kill -9 of executor, worker and master of a cluster in each stage that spreads; equal rows after a retry."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.integration.lifecycle import Lifecycle, execute, left_behind, wait_until
from tests.integration.progress import BEGUN
from tests.spark.cluster_pipeline import CHANGES, SECRET, TABLES, command, differences, on_cluster, run
from tests.spark.standalone import ENCRYPTED, Standalone

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

# Sessions of executors by which a stage is known to be in their hands.
AT_WORK = {"backfill": "copy", "schema_sync": "build", "replay": "fill", "verify": "verify"}
VICTIMS = ("executor", "worker", "master")
# make test kills another one in each stage; make test-all each in every stage.
PLAN = [
    pytest.param(n, marks=pytest.mark.combination(str(n)), id=str(n)) for n in range(len(VICTIMS))
]  # fmt: skip


@pytest.fixture
def own_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standalone]:
    monkeypatch.setenv(SECRET, ENCRYPTED["spark.authenticate.secret"])
    with Standalone(workers=2, conf=ENCRYPTED) as cluster:
        yield cluster


@pytest.mark.parametrize("turn", PLAN)
def test_every_stage_ends_the_same_whatever_of_the_cluster_is_killed(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], own_cluster: Standalone, tmp_path: Path,
    turn: int,
) -> None:  # fmt: skip
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    execute(source_dsn, TABLES)
    move = lifecycle(source_dsn, target_dsn)
    on_cluster(move, own_cluster)
    move.run_all(until="snapshot")
    for number, stage in enumerate(AT_WORK):
        if stage != "backfill":
            execute(source_dsn, CHANGES if stage == "schema_sync" else "UPDATE public.t4 SET v = v || 'z'")
        victim = VICTIMS[(turn + number) % len(VICTIMS)]
        over = kill(move, own_cluster, tmp_path, stage, victim, chance)
        if victim == "master":
            own_cluster.start_master(own_cluster.port)
        while len(own_cluster.workers) < 2:
            own_cluster.add_worker()
        if not over:
            code, said = run(move, tmp_path, stage)
            assert code == 0, said
    move.content["backfill"] = move.content["backfill"] | {"workers": 1}
    for stage in ("replay", "verify", "swap", "cleanup"):
        assert not move.run(stage).blocked
    assert differences(move) == []
    for dsn in (move.source, move.target):
        assert not [line for line in left_behind(dsn) if line.startswith("session")]


def kill(move: Lifecycle, cluster: Standalone, folder: Path, stage: str, victim: str, chance: random.Random) -> bool:
    """Kills it once executors have sessions on the target; whether the stage ended well, else it is worth retrying."""
    log, query = folder / "log", "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s"
    name = [f"pgddl:{move.name}:%:{AT_WORK[stage]}"]
    with (
        psycopg.connect(move.target, autocommit=True) as target,
        log.open("wb") as out,
        subprocess.Popen(command(move, folder, stage), stdout=out, stderr=subprocess.STDOUT) as shell,
    ):
        try:
            wait_until(lambda: target.execute(query, name).fetchone() != (0,) or shell.poll() is not None, 200)
            time.sleep(chance.uniform(0, 0.2))
            found = shell.poll() is None
            if victim == "executor" and (executors := cluster.executors()):
                chance.choice(executors).kill()
            elif victim == "worker":
                cluster.kill_worker(chance.choice(cluster.workers))
            elif victim == "master":
                cluster.kill_master()
            code = shell.wait(300)
        finally:
            shell.kill()
    said = log.read_text()
    print(f"{stage}: killed the {victim}{'' if found else ', when it was over'}: {code}\n{said}")
    assert code in (0, 5), said
    assert "Traceback" not in said, said
    assert move.journal(BEGUN.format(stage=stage)) != [(0,)]
    return code == 0
