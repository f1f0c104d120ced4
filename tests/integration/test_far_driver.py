"""What passes between a driver elsewhere and who waits for it: through the database, before there is a journal, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.engine.job.file import Job, Outcome
from airflow_provider_pgddl.engine.launch import far_driver
from airflow_provider_pgddl.engine.launch.far_driver import Announced, Followed, at_work
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.integration.lifecycle import execute, wait_until

FORGED = '0/1:{"exit_code": 0, "result": {"stage": "replay"}, "error": null}'


@pytest.fixture
def job(target_dsn: str) -> Job:
    ends: dict[str, Any] = {"source": {"conn_id": "a"}, "target": {"conn_id": "b"}}
    pipeline = load_pipeline({"pipeline": "shop", **ends, "tables": {"include": ["public.*"]}})
    return Job("verify", pipeline, then=("swap",), known_as="0123456789abcdef" * 4, ends={"target": target_dsn})


@pytest.fixture
def follower(target_dsn: str, job: Job) -> Iterator[Followed]:
    with Followed(target_dsn, job) as followed:
        yield followed


def looked(followed: Followed, times: int = 2) -> None:
    begun = followed._looks
    wait_until(lambda: followed._looks >= begun + times, 60, every=0.05)


def test_an_outcome_is_taken_from_its_driver_alone(target_dsn: str, job: Job, follower: Followed) -> None:
    channel = far_driver.channel(job, "outcome")
    announced = Announced(job)
    wait_until(lambda: follower.seen, 60, every=0.05)
    found = at_work(target_dsn, job)
    assert found is not None and (found.id, found.stages) == (job.id, job.stages)
    with psycopg.connect(target_dsn, autocommit=True) as other:
        shown = other.execute("SELECT application_name FROM pg_stat_activity WHERE application_name ~ '^pgddl-driver'")
        assert [name.split(":")[:3] for (name,) in shown] == [["pgddl-driver", "0123456789ab", job.id]]
        other.execute("SELECT pg_notify(%s, %s)", [channel, FORGED])
        looked(follower)
        assert follower.outcome is None
        # One who has lost the session in which it listens hears what is said later.
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'pgddl:shop:0:follow' AND datname = current_database()"
        )
        looked(follower)
        other.execute("SELECT pg_notify(%s, %s)", [channel, FORGED])
    # In several pieces, and with what takes more than a byte.
    outcome = Outcome(4, None, {"error": "PreflightRefused", "what": "größer " * 4000, "exit_code": 4})
    announced.end(outcome)
    assert follower.settle() == outcome
    wait_until(lambda: at_work(target_dsn, job) is None, 60, every=0.05)


def test_a_driver_that_dies_between_two_looks_was_there(target_dsn: str, job: Job) -> None:
    followed = Followed(target_dsn, job)  # listens, and does not look yet
    announced = Announced(job)
    announced._over.set()  # else it ends this process
    announced._thread.join()
    announced._conn.close()
    wait_until(lambda: at_work(target_dsn, job) is None, 60, every=0.05)
    with followed:
        assert followed.settle() is None
        assert followed.seen


def test_the_journal_stands_in_for_what_nobody_heard(target_dsn: str, job: Job, follower: Followed) -> None:
    assert follower.settle() is None, "no driver has come, and there is no journal"
    execute(
        target_dsn,
        "CREATE SCHEMA pgddl; CREATE TABLE pgddl.stage_runs (job_id text, finished_at timestamptz, result jsonb)",
    )
    first, second = (one.id for one in job.each())
    add = 'INSERT INTO pgddl.stage_runs VALUES (\'{}\', now(), \'{{"stage": "{}", "blocked": [{}]}}\')'
    execute(target_dsn, add.format(first, "verify", ""))
    assert follower.settle() is None, "of two stages one has ended"
    execute(target_dsn, add.format(second, "swap", '{\\"table\\": \\"public.a\\"}'.replace("\\", "")))
    outcome = follower.settle()
    assert outcome is not None and outcome.exit_code == 3 and outcome.result is not None
    assert [one["stage"] for one in outcome.result["stages"]] == ["verify", "swap"]


def test_a_database_that_is_out_of_sight_ends_the_wait(
    target_dsn: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits says that it does not know, rather than that the driver is gone."""
    monkeypatch.setattr(far_driver, "OUT_OF_SIGHT", 1.0)
    monkeypatch.setattr(Followed, "_look", _unanswered)
    with Followed(target_dsn, job) as followed, pytest.raises(far_driver.Unreachable, match="is not known"):
        followed.settle()


def _unanswered(_followed: Followed, _conn: object) -> None:
    raise psycopg.OperationalError("the server is gone")
