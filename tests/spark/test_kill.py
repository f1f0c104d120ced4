"""kill -9 anywhere, then the same command again: the same end, row by row, while the shop's applications write.

Every stage runs as people run it, `pgddl run STAGE` and real spark-submit, with chunks and windows so small that
Spark's workers take part and there is a middle to be killed in. The moments are drawn at random; the seed is printed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg
import pytest

from airflow_provider_pgddl.demo import compare, shop
from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.writers import Writers, broken_invariants
from tests.conftest import drop_database
from tests.integration.lifecycle import Lifecycle, execute, left_behind, wait_until
from tests.integration.progress import BEGUN, CHUNKS_DONE, WINDOWS_DONE

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

SMALL: dict[str, Any] = {
    "backfill": {"chunk_bytes": "64kB", "workers": 2},
    "replay": {"window_rows": 1000},
    "spark": {"begin": "at_once"},
}
# For what runs in this process, between the kills: without Spark.
HERE: dict[str, Any] = {"backfill": SMALL["backfill"] | {"workers": 1}}

LIVE = [("shop", "orders"), ("public", "pgbench_accounts")]

# How far a stage has come, as its journal says.


class Killed:
    """A pipeline whose stages are killed: `kill("backfill", "driver", CHUNKS_DONE, range(10, 300))`."""

    def __init__(self, move: Lifecycle, folder: Path, chance: random.Random) -> None:
        self._move, self._folder, self._chance = move, folder, chance
        self._file = folder / "pipeline.yaml"
        self._file.write_text(json.dumps(move.content))
        self._number = 0
        self._processes: list[psutil.Process] = []
        self._journal = psycopg.connect(move.target, autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()

    @contextmanager
    def _running(self, stage: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "airflow_provider_pgddl.cli", "run", stage, "-p", str(self._file)]
        self._number += 1
        with (
            (self._folder / f"{self._number}.log").open("wb") as log,
            subprocess.Popen(command, env=os.environ, stdout=log, stderr=subprocess.STDOUT) as shell,
        ):
            try:
                yield shell
            finally:
                shell.kill()

    def _said(self) -> str:
        return (self._folder / f"{self._number}.log").read_text()

    def run(self, stage: str) -> None:
        """The plain retry."""
        with self._running(stage) as shell:
            assert shell.wait(120) == 0, self._said()
        assert f"pgddl: {stage} of {self._move.name}: done" in self._said()
        print(self._said())

    def kill(self, stage: str, victim: str, progress: str, amount: range) -> None:
        """Runs the stage until it has come so much further, then some milliseconds more, and kills `victim`.

        A lost worker is made good by Spark; of a lost JVM or driver the shell says that it is worth retrying."""
        progress = progress.format(stage=stage)
        before, goal = self._count(progress), self._chance.choice(amount)
        with self._running(stage) as shell:
            wait_until(lambda: self._count(progress) >= before + goal or shell.poll() is not None, 60)
            if victim == "worker":  # Spark forks them for its first task
                wait_until(lambda: _family(shell, victim, stage) or shell.poll() is not None, 60)
            time.sleep(self._chance.uniform(0, 0.1))
            assert shell.poll() is None, f"{stage} was over before it could be killed:\n{self._said()}"
            family = psutil.Process(shell.pid).children(recursive=True)
            self._processes += family
            victims = _victims(victim, stage, family)
            assert victims, f"there is no {victim} among {family}"
            self._chance.choice(victims).kill()
            print(f"killed the {victim} in {stage} after {self._count(progress) - before} of it")
            code = shell.wait(120)
        assert code == (0 if victim == "worker" else 5), self._said()
        assert "Traceback" not in self._said() or victim == "worker", self._said()
        print(self._said())

    def _count(self, query: str) -> int:
        """All through one session: a new one each time would take half of the machine from what is asked about."""
        with self._journal.execute(query.encode()) as cursor:
            (count,) = cursor.fetchone() or (0,)
        return int(count)

    def assert_nothing_runs(self) -> None:
        """Neither processes nor, on either server, sessions."""
        for dsn in (self._move.source, self._move.target):
            assert not [line for line in left_behind(dsn) if line.startswith("session")]
        wait_until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in self._processes))


def _family(shell: subprocess.Popen[bytes], kind: str, stage: str) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return _victims(kind, stage, psutil.Process(shell.pid).children(recursive=True))
    return []


def _victims(kind: str, stage: str, family: list[psutil.Process]) -> list[psutil.Process]:
    """JVM: spark-submit itself; driver: the application; worker: one of those that Spark's Python daemon has forked."""
    found: dict[str, list[psutil.Process]] = {"jvm": [], "driver": [], "worker": []}
    known = [(p, command, _parent(p)) for p in family if (command := _command(p))]
    daemons = {p.pid for p, command, _ in known if "pyspark.daemon" in command}
    for process, command, parent in known:
        if Path(command[0]).name == "java":
            found["jvm"].append(process)
        elif parent in daemons:
            found["worker"].append(process)
        elif any(part.endswith(f"{stage}.py") for part in command):
            found["driver"].append(process)
    return found[kind]


def _parent(process: psutil.Process) -> int:
    with suppress(psutil.NoSuchProcess):
        return int(process.ppid())
    return 0


def _command(process: psutil.Process) -> list[str]:
    """Empty where it has ended meanwhile."""
    with suppress(psutil.NoSuchProcess):  # and so ZombieProcess
        return process.cmdline()
    return []


@pytest.fixture
def chance() -> random.Random:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture
def shops(pg16: Cluster, pg18: Cluster) -> Iterator[tuple[str, str]]:
    """A loaded shop on 16, and an empty database of that name on 18."""
    name = f"shop_{uuid.uuid4().hex[:8]}"
    yield shop.load(pg16, name, scale=1), shop.create_database(pg18, name)
    for cluster in (pg16, pg18):
        drop_database(cluster, name)


def change_accounts(dsn: str, rows: int) -> None:
    """Much to replay at once."""
    execute(dsn, f"UPDATE public.pgbench_accounts SET filler = 'changed' WHERE aid <= {rows}")


# In the backfill and in replay, by each way to capture. make test-all kills them all by both, one after the other, and
# the rewrite has drivers killed: between them every kind is killed in either stage.
VICTIMS = {
    "change_log": {"backfill": ["worker"], "replay": ["worker"]},
    "wal": {"backfill": ["jvm"], "replay": ["driver"]},
}
ALL_VICTIMS = {"backfill": ["driver", "jvm", "worker"], "replay": ["driver", "worker"]}


@pytest.mark.parametrize("rows", VICTIMS)
def test_a_migration_ends_the_same_whatever_is_killed(
    shops: tuple[str, str],
    lifecycle: Callable[..., Lifecycle],
    tmp_path: Path,
    chance: random.Random,
    rows: str,
    all_combinations: bool,
) -> None:
    victims = ALL_VICTIMS if all_combinations else VICTIMS[rows]
    source, target = shops
    tables = {"include": ["shop.*", "public.*"]}
    move = lifecycle(source, target, tables=tables, capture={"rows": rows}, swap={"fence": "read_only"}, **SMALL)
    at_the_cut_over: list[object] = []

    def compare_both() -> None:
        at_the_cut_over.extend(compare.differences(source, target))
        at_the_cut_over.extend(compare.compare_sequences(source, target, ahead=True))

    writers = Writers(shops, pipeline=move.name, on_cut_over=compare_both, rate=40, seed=chance.getrandbits(32))
    with writers, Killed(move, tmp_path, chance) as killed:
        move.run_all(until="snapshot")
        for victim in victims["backfill"]:
            killed.kill("backfill", victim, CHUNKS_DONE, range(5, 60))
        if victim != "worker":
            move.run("backfill", **HERE)
        assert move.run("backfill").state == "nothing_to_do"
        change_accounts(source, 4_000 + 4_000 * len(victims["replay"]))
        killed.kill("schema_sync", "driver", BEGUN, range(1, 2))
        move.run("schema_sync", **HERE)
        for victim in victims["replay"]:
            killed.kill("replay", victim, WINDOWS_DONE, range(1, 4))
        if victim != "worker":
            move.run("replay", **HERE)
        move.run("verify", **HERE)
        killed.kill("swap", "driver", BEGUN, range(1, 2))
        killed.run("swap")
        wait_until(writers.accepted.is_set)
        move.run("cleanup")
    killed.assert_nothing_runs()
    assert at_the_cut_over == []
    assert writers.notes.failures == []
    with psycopg.connect(target) as conn:
        assert writers.ledger.check(conn) == []
    assert broken_invariants(target) == []


def test_a_rewrite_ends_the_same_whatever_is_killed(
    pg18: Cluster, lifecycle: Callable[..., Lifecycle], tmp_path: Path, chance: random.Random
) -> None:
    name = f"shop_{uuid.uuid4().hex[:8]}"
    dsn = shop.load(pg18, name, scale=1)
    orders = {"shop.orders": {"alter": ["ALTER COLUMN id TYPE bigint"]}, "public.pgbench_accounts": {}}
    move = lifecycle(dsn, rewrite=orders, **SMALL)
    writers = Writers([dsn], rate=40, seed=chance.getrandbits(32))
    with writers, Killed(move, tmp_path, chance) as killed:
        move.run_all(until="snapshot")
        killed.kill("backfill", "driver", CHUNKS_DONE, range(5, 60))
        move.run("backfill", **HERE)
        change_accounts(dsn, 25_000)
        move.run("schema_sync", **HERE)
        killed.kill("replay", "driver", WINDOWS_DONE, range(1, 10))
        killed.run("replay")
        with writers.quiet():
            move.run("replay")
            copies = {table: (f"pgddl_copy_{table[0]}", table[1]) for table in LIVE}
            assert [str(d) for d in compare.compare(dsn, dsn, LIVE, renamed=copies) if d.differs] == []
        move.run("verify", **HERE)
        killed.kill("swap", "driver", BEGUN, range(1, 2))
        move.run("swap")
        move.run("cleanup")
    killed.assert_nothing_runs()
    assert left_behind(dsn) == ["schema pgddl"]
    assert writers.notes.failures == []
    with psycopg.connect(dsn) as conn:
        assert writers.ledger.check(conn) == []
    assert broken_invariants(dsn) == []
    drop_database(pg18, name)


# Indexes that take their time, each by a row of its own.
SLOW_INDEXES = """
CREATE FUNCTION public.slow(id int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN IF id % 10000 = 0 THEN PERFORM pg_catalog.pg_sleep(0.1); END IF; RETURN -id; END $$;
CREATE TABLE public.t (id int PRIMARY KEY, v text NOT NULL);
INSERT INTO public.t SELECT n, md5(n::text) FROM generate_series(1, 100000) n;
CREATE INDEX one ON public.t (public.slow(id));
CREATE INDEX two ON public.t (public.slow(id), v);
"""
INDEXES_UNDER_WAY = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'CREATE INDEX%slow%'"


def test_indexes_of_which_two_were_being_built_are_there_once(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], tmp_path: Path, chance: random.Random
) -> None:
    execute(source_dsn, SLOW_INDEXES)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]}, backfill={"workers": 2})
    move.run_all(until="backfill")
    with Killed(move, tmp_path, chance) as killed:
        killed.kill("schema_sync", "driver", INDEXES_UNDER_WAY, range(2, 3))
        move.run("schema_sync")  # at once: the server may not have noticed yet that nobody waits for its indexes
        move.run_all(after="schema_sync")
        killed.assert_nothing_runs()
    assert compare.diff_catalogs(compare.catalog_lines(source_dsn), compare.catalog_lines(target_dsn)) == []
    assert [str(d) for d in compare.compare(source_dsn, target_dsn, [("public", "t")]) if d.differs] == []


def test_a_chunk_that_a_dead_worker_still_holds_is_waited_for(
    source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    execute(source_dsn, "CREATE TABLE public.t (id int PRIMARY KEY); INSERT INTO public.t SELECT generate_series(1, 9)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.t"]})
    move.run_all(until="backfill")
    # As a killed run leaves it: laid out, not copied, and claimed by a session that the server takes for alive.
    execute(target_dsn, "UPDATE pgddl.chunks SET done_at = NULL; UPDATE pgddl.tables SET state = 'created'")
    execute(target_dsn, "TRUNCATE public.t")
    workers: set[int] = set()

    def another_worker_came() -> bool:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s"
        workers.update(pid for (pid,) in move.journal(query, [f"pgddl:{move.name}:%:copy"]))
        return len(workers) > 1

    with psycopg.connect(target_dsn) as dead, ThreadPoolExecutor() as pool:
        dead.execute("SELECT FROM pgddl.chunks FOR UPDATE")
        result = pool.submit(move.run, "backfill")
        wait_until(another_worker_came)
        dead.rollback()
        assert result.result(30).figures["rows_now"] == 9
    assert move.journal("SELECT count(*) FROM public.t") == [(9,)]
