"""Parts beside each other in threads: their results, and which error of several counts."""

from __future__ import annotations

import threading

import pytest

from airflow_provider_pgddl.engine.errors import GaveWay, StageFailed, Unreachable
from airflow_provider_pgddl.engine.parallel.part_results import beside_each_other
from tests.spark import work


def test_results_come_in_the_order_of_the_parts() -> None:
    assert beside_each_other(work.square, range(7), doing="squaring") == [n * n for n in range(7)]


def test_the_parts_run_at_once() -> None:
    all_there = threading.Barrier(3)
    assert sorted(beside_each_other(lambda _: all_there.wait(20), range(3), doing="meeting")) == [0, 1, 2]


def test_a_final_error_comes_before_one_that_a_retry_may_cure_and_once_every_part_has_ended() -> None:
    failed, ended = threading.Event(), threading.Event()

    def part(kind: str) -> None:
        if kind:
            failed.set()
            work.fail(kind)
        assert failed.wait(20)
        ended.set()

    with pytest.raises(StageFailed):
        beside_each_other(part, ["retryable", "final", ""], doing="failing")
    assert ended.is_set()
    with pytest.raises(GaveWay):
        beside_each_other(work.fail, ["", "retryable"], doing="failing")


def test_an_error_of_postgres_comes_back_as_ours() -> None:
    with pytest.raises(Unreachable, match="while copying"):
        beside_each_other(work.connect, ["host=127.0.0.1 port=1 dbname=shop"], doing="copying")


def test_a_bug_comes_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        beside_each_other(work.fail, ["", "bug"], doing="failing")
