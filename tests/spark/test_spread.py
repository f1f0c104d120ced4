"""Spreading work over Spark: results in order, errors as themselves, a lost worker made good."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from airflow_provider_pgddl.engine.errors import Busy, GaveWay, PgddlError, StageFailed, Unreachable
from airflow_provider_pgddl.engine.parallel import spark
from airflow_provider_pgddl.engine.parallel.executor_settings import DEFAULT
from tests.integration.lifecycle import wait_until
from tests.spark import work

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_session")]


def test_results_come_in_the_order_of_the_parts() -> None:
    assert spark.spread(work.square, range(7), workers=2, app="squares") == [n * n for n in range(7)]


def test_the_parts_run_in_other_processes() -> None:
    assert os.getpid() not in spark.spread(work.worker_pid, range(2), workers=2, app="pids")


def test_no_more_run_beside_each_other_than_there_are_to_be_workers(tmp_path: Path) -> None:
    """Where the application has more cores than that: of a session that another stage began, or that a cluster gave."""
    parts = [str(tmp_path)] * 5
    assert any(spark.spread(work.met_another, parts, workers=2, app="beside"))
    assert not any(spark.spread(work.met_another, parts, workers=1, app="beside"))


def test_once_it_is_started_the_workers_are_there() -> None:
    spark.start("begin", workers=2)
    begun = {child.pid for child in psutil.Process().children(recursive=True)}
    assert set(spark.spread(work.worker_pid, range(2), workers=2, app="pids")) <= begun


def test_an_error_of_ours_comes_back_as_itself() -> None:
    with pytest.raises(StageFailed) as raised:
        spark.spread(work.fail, ["", "final"], workers=2, app="errors")
    error = raised.value
    assert (error.what, error.table, error.todo) == ("the copy has a row too many", "shop.orders", "reset it")
    assert error.sql == "SELECT 1;"


def test_a_final_error_comes_before_one_that_a_retry_may_cure() -> None:
    with pytest.raises(StageFailed):
        spark.spread(work.fail, ["retryable", "final"], workers=2, app="errors")
    with pytest.raises(GaveWay):
        spark.spread(work.fail, ["retryable", ""], workers=2, app="errors")


def test_an_error_of_postgres_comes_back_as_ours() -> None:
    nobody = "host=127.0.0.1 port=1 dbname=shop password=hush-hush"
    with pytest.raises(Unreachable) as raised:
        spark.spread(work.connect, [nobody], workers=1, app="copy of shop.orders")
    assert "while running copy of shop.orders" in str(raised.value)
    assert "hush" not in str(raised.value)


def test_a_bug_is_not_taken_for_a_user_s_error() -> None:
    with pytest.raises(Exception, match="ZeroDivisionError") as raised:
        spark.spread(work.fail, ["bug"], workers=1, app="bugs")
    assert not isinstance(raised.value, PgddlError)


def test_a_lost_worker_is_made_good_in_local_mode(tmp_path: Path) -> None:
    assert spark.spread(work.die_once, [str(tmp_path / "mark")], workers=1, app="loss") == ["alive"]


def test_who_has_not_the_sessions_secret_is_not_listened_to() -> None:
    """Local mode, too, listens at ports of this machine, where other users may be."""
    context = spark.begin("closed", 1, DEFAULT)
    jvm = context._jvm
    ours = jvm.org.apache.spark
    port = int(context.getConf().get("spark.driver.port"))

    def knock(authenticate: str) -> None:
        conf = ours.SparkConf(False).set("spark.rpc.askTimeout", "20s").set("spark.authenticate", authenticate)
        where = getattr(ours.SecurityManager, "$lessinit$greater$default$3")()
        security = ours.SecurityManager(conf, jvm.scala.Option.empty(), where)
        guest = ours.rpc.RpcEnv.create("guest", "127.0.0.1", 0, conf, security, True)
        try:
            guest.setupEndpointRef(ours.rpc.RpcAddress("127.0.0.1", port), "HeartbeatReceiver")
        finally:
            guest.shutdown()

    knock("true")  # within one JVM the secret is shared
    with pytest.raises(Exception, match="RuntimeException") as raised:
        knock("false")
    assert re.search("SaslMessage|AuthMessage", str(raised.value)), raised.value


def test_parts_under_a_snapshot_begin_soon_or_not_at_all(tmp_path: Path) -> None:
    """C32: nothing waits for a core that others have while a snapshot is held."""
    others, ours = tmp_path / "others", tmp_path / "ours"
    others.mkdir()
    ours.mkdir()
    spark.start("begin", workers=2)
    busy = threading.Thread(
        target=spark.spread, args=(work.begin_and_wait, [str(others)] * 2), kwargs={"workers": 2, "app": "others"}
    )
    busy.start()
    try:
        wait_until(lambda: len(list(others.iterdir())) == 2, 60)
        with pytest.raises(Busy, match="Spark had no core free within 1 s"):
            spark.spread(work.begin_and_wait, [str(ours)] * 2, workers=2, app="ours", begin_within=1)
    finally:
        Path(others, "go on").touch()
        busy.join(60)
    assert spark.spread(work.square, [3, 4], workers=2, app="squares", begin_within=60) == [9, 16]
    assert list(ours.iterdir()) == []


@pytest.mark.parametrize("why", ["gives way", "hangs"])
def test_parts_that_are_in_the_way_or_hang_are_given_up(tmp_path: Path, why: str) -> None:
    """C17: somebody waits for what the window behind them holds, and no executor is there that would notice."""
    given_up = {"gives way": "somebody waits for a table", "hangs": "Spark was not done within 1 s"}[why]
    with pytest.raises(Busy, match=given_up):
        spark.spread(
            work.begin_and_wait, [str(tmp_path)] * 2, workers=2, app="stay",
            gives_way=lambda: why == "gives way" and any(tmp_path.iterdir()), within=1 if why == "hangs" else None,
        )  # fmt: skip
    assert spark.spread(work.square, [3, 4], workers=2, app="squares", begin_within=60) == [9, 16]


def test_what_workers_have_done_until_somebody_waits_is_kept(tmp_path: Path) -> None:
    """They see it by themselves, and bring it; C36 lives by that."""

    def gives_way() -> bool:
        begun = any(tmp_path.glob("begun*"))
        if begun:
            threading.Timer(0.5, Path(tmp_path, "go on").touch).start()
        return begun

    assert spark.spread(work.begin_and_wait, [str(tmp_path)], workers=1, app="brief", gives_way=gives_way) == [None]


def test_parts_that_have_begun_take_as_long_as_they_take(tmp_path: Path) -> None:
    go_on = threading.Timer(2.0, Path(tmp_path, "go on").touch)
    go_on.start()
    assert spark.spread(work.begin_and_wait, [str(tmp_path)], workers=2, app="long", begin_within=0.5) == [None]
    go_on.join()


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,7]", "local[2,7]"),
        ("spark://head:7077", "spark://head:7077"),
        ("yarn", "yarn"),
    ],
)
def test_local_masters_try_again(given: str, used: str) -> None:
    assert spark.retrying(given) == used


def test_without_work_to_spread_nothing_imports_pyspark() -> None:
    source = "import sys, airflow_provider_pgddl.engine.job.file as j; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_virtual_environment_need_not_be_on_the_path() -> None:
    bare = {"PATH": "/usr/bin:/bin"}
    env = bare | spark.launch_env(bare, local=True)
    assert env["PYSPARK_PYTHON"] == sys.executable
    assert spark.why_no_launch(env) is None
    done = subprocess.run(["spark-submit", "--version"], env=env, capture_output=True, text=True, timeout=60)
    assert "version 4." in done.stdout + done.stderr


def test_what_a_user_has_set_is_kept() -> None:
    given = {"PATH": os.environ["PATH"], "PYSPARK_PYTHON": "/opt/python", "SPARK_LOCAL_IP": "10.0.0.1"}
    env = spark.launch_env(given, local=True)
    assert (env["PYSPARK_PYTHON"], env["PYSPARK_DRIVER_PYTHON"], env["SPARK_LOCAL_IP"]) == (
        "/opt/python",
        "/opt/python",
        "10.0.0.1",
    )


def test_the_home_of_another_spark_is_left_to_its_own_script(tmp_path: Path) -> None:
    other = tmp_path / "spark-submit"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin"}
    assert "SPARK_HOME" not in spark.launch_env(path, local=True)
    ours = {"PATH": "/usr/bin:/bin"}
    home = Path(spark.launch_env(ours, local=True)["SPARK_HOME"])
    assert (home / "bin" / "spark-submit").is_file()
    assert "SPARK_HOME" not in spark.launch_env(ours, local=True, binary="spark3-submit")
    assert "SPARK_HOME" not in spark.launch_env({**ours, "PYSPARK_PYTHON": "/opt/python"}, local=True)
    assert "SPARK_HOME" not in spark.launch_env({**ours, "SPARK_HOME": "/opt/spark"}, local=True)


class _Interrupted:
    """A SparkContext that is stopped while it waits, and meets a broken connection on its way out, as PySpark does."""

    master = "local[1]"
    environment: ClassVar[dict[str, str]] = {}

    def setJobGroup(self, *_: object) -> None:
        """For whoever would cancel it."""

    def map(self, _: object) -> _Interrupted:
        return self

    def collect(self) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise ConnectionError("the call before was cut short")


def test_a_stop_is_no_lost_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mock, since the real one needs the signal at one moment among thousands."""
    monkeypatch.setattr(spark, "begin", lambda *_: _Interrupted())
    monkeypatch.setattr(spark, "_distributed", lambda context, _: context)
    with pytest.raises(KeyboardInterrupt):
        spark.spread(work.square, [1], workers=1, app="stopped")
