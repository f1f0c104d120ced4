"""The job file, and the life of the application that runs it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from airflow_provider_pgddl.engine.commands import schema
from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.job import file as jobs
from airflow_provider_pgddl.engine.job.file import Job, Outcome, Watched
from airflow_provider_pgddl.engine.launch import driver
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.secrets_in_text import SECRET_KEYWORDS
from airflow_provider_pgddl.engine.server import credentials

SHOP = {
    "pipeline": "shop",
    "source": {"dsn": "${SHOP_SOURCE}"},
    "target": {"dsn": "${SHOP_TARGET}"},
    "tables": {"include": ["shop.*"]},
}
SECRET = "postgresql://mover:hush-hush@127.0.0.1:5/shop"


@pytest.fixture
def job() -> Job:
    return Job(
        stage="backfill",
        pipeline=load_pipeline(SHOP),
        tables=("shop.orders",),
        watch=Watched.me(),
        secrets={"source": "PGDDL_SOURCE_CONNINFO", "target": "PGDDL_TARGET_CONNINFO"},
        result_path="/nowhere/result.json",
    )


def test_a_job_comes_back_from_its_file_as_it_was_written(job: Job, tmp_path: Path) -> None:
    jobs.write(job, tmp_path / "job.json")
    assert jobs.read(tmp_path / "job.json") == job


def test_each_stage_of_several_is_a_job_of_its_own(job: Job) -> None:
    several = replace(job, stage="setup", then=("backfill", "verify"), again=True, mend=True)
    each = list(Job.from_json(several.to_json()).each())
    assert [(one.stage, one.then, one.again, one.mend) for one in each] == [
        ("setup", (), True, False),
        ("backfill", (), False, False),
        ("verify", (), False, True),
    ]
    assert len({one.id for one in each}) == 3


def test_only_its_owner_reads_the_file_and_no_secret_is_in_it(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGDDL_SOURCE_CONNINFO", SECRET)
    monkeypatch.setenv("SHOP_SOURCE", SECRET)
    jobs.write(job, tmp_path / "job.json")
    assert stat.S_IMODE((tmp_path / "job.json").stat().st_mode) == 0o600
    assert "hush" not in (tmp_path / "job.json").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_the_connection_string_is_taken_from_the_environment(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGDDL_SOURCE_CONNINFO", SECRET)
    assert job.conninfo("source") == SECRET
    monkeypatch.delenv("PGDDL_TARGET_CONNINFO", raising=False)
    with pytest.raises(UsageError, match="PGDDL_TARGET_CONNINFO"):
        job.conninfo("target")


def test_a_job_written_by_hand_may_leave_the_secrets_to_the_pipelines_dsn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SOURCE", SECRET)
    job = Job.from_json({"format": 1, "stage": "setup", "pipeline": SHOP})
    assert job.conninfo("source") == SECRET
    assert job.tables is None


def test_in_place_both_sides_are_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SOURCE", SECRET)
    rewrite = {"pipeline": "shop", "source": {"dsn": "${SHOP_SOURCE}"}, "rewrite": {"shop.orders": {}}}
    assert Job("setup", load_pipeline(rewrite)).conninfo("target") == SECRET


@pytest.mark.parametrize("tables", ["orders", ["shop.orders", "a.b.c"], ['shop."orders'], "shop.*", ""])
def test_a_table_without_its_schema_is_the_callers_mistake(tables: str | list[str]) -> None:
    with pytest.raises(UsageError, match=r"schema\.table|not closed|pattern"):
        jobs.names(tables)
    assert jobs.names('shop."Orders"') == ('shop."Orders"',)


def test_a_table_that_is_given_twice_is_there_once() -> None:
    assert jobs.names(["shop.orders", "shop.items", '"shop"."orders"', "SHOP.orders"]) == ("shop.orders", "shop.items")
    written = ["shop.orders", '"shop"."orders"', "orders"]
    assert schema._wanted(written, {("shop", "orders")}, load_pipeline(SHOP)) == [("shop", "orders")]


def _with(**given: object) -> str:
    return json.dumps({"format": 1, "stage": "setup", "pipeline": SHOP, **given})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"format": 1, "stage": "setup"}', "lacks pipeline"),
        (json.dumps({"format": 9, "stage": "setup", "pipeline": SHOP}), "has format 9"),
        (json.dumps({"format": 1, "stage": "setup", "pipeline": SHOP, "speed": 11}), "does not know: speed"),
        (json.dumps({"format": 1, "stage": "setup", "pipeline": {**SHOP, "speed": 11}}), "speed"),
        (_with(tables="shop.orders"), "tables is not a list of names"),
        (_with(tables=["shop.orders", 1]), "tables is not a list of names"),
        (_with(tables=["orders"]), "orders: write it as schema.table"),
        (_with(watch={"pid": 1}), "watch is not"),
        (_with(watch=7), "watch is not"),
        (_with(secrets=["PGDDL_SOURCE_CONNINFO"]), "secrets is not"),
        (_with(result=3), "result is not"),
        (_with(stage=3), "stage is not"),
        (_with(dry_run="no"), "dry_run is not"),
    ],
)
def test_a_wrong_job_file_is_one_clear_error(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "job.json").write_text(content)
    with pytest.raises(UsageError, match=said):
        jobs.read(tmp_path / "job.json")


def test_a_missing_job_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        jobs.read(tmp_path / "none.json")


def test_an_application_refuses_the_job_of_another_stage(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs.write(job, tmp_path / "job.json")
    assert driver.main("swap", [str(tmp_path / "job.json")]) == 2
    said = capsys.readouterr().err
    assert "for the stage backfill, not for swap" in said
    assert "Traceback" not in said


def test_no_password_of_the_job_is_printed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGDDL_SOURCE_CONNINFO", SECRET)
    assert driver.redact('invalid dsn: "hush-hush@127"', job) == 'invalid dsn: "***@127"'


@pytest.mark.parametrize("keyword", SECRET_KEYWORDS)
def test_no_other_secret_of_the_job_is_printed(job: Job, monkeypatch: pytest.MonkeyPatch, keyword: str) -> None:
    monkeypatch.setenv("PGDDL_SOURCE_CONNINFO", f"host=db.example {keyword}=hush")
    assert driver.redact("certificate says hush of db.example", job) == "certificate says *** of db.example"


def test_no_password_that_was_handed_out_is_printed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = credentials.Broker({"source": lambda: "host=db.example password=hush"})
    try:
        monkeypatch.setenv("PGDDL_SOURCE_CONNINFO", broker.reference("source"))
        credentials.opened(broker.reference("source"), lambda dsn: dsn)
    finally:
        broker.close()
    assert driver.redact("hush was refused", job) == "*** was refused"


@pytest.mark.parametrize(
    ("error", "retryable"), [({"what": "no", "retryable": True}, True), ({"what": "no", "retryable": False}, False)]
)
def test_an_outcome_survives_its_file(tmp_path: Path, error: dict[str, object], retryable: bool) -> None:
    jobs.write_private(tmp_path / "result.json", Outcome(1, None, error).to_json())
    read = jobs.read_outcome(tmp_path / "result.json")
    assert read == Outcome(1, None, error)
    assert read.retryable is retryable


def test_an_error_reads_in_airflow_as_it_reads_in_the_shell() -> None:
    error = UsageError("it is not there", table="shop.orders", todo="make it", sql="CREATE TABLE shop.orders ();")
    assert Outcome(2, None, error.to_json()).explain() == str(error)


# Each takes a noticeable part of a second, which a stage with nothing to do would have for nothing.
SLOW = ("airflow", "pyspark", "pandas", "rich", "yaml", "psutil", "airflow_provider_pgddl.engine.swapping.in_place")


@pytest.mark.parametrize(
    ("module", "slow"),
    [
        ("engine.stages.backfill", SLOW),
        ("engine.job.file", (*SLOW, "airflow_provider_pgddl.engine.stages")),  # all that `pgddl run` needs of a stage
    ],
)
def test_what_takes_long_is_imported_where_it_is_used(module: str, slow: tuple[str, ...]) -> None:
    source = f"import sys, airflow_provider_pgddl.{module}; print([m for m in {slow} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_result_file_is_no_outcome(tmp_path: Path) -> None:
    assert jobs.read_outcome(tmp_path / "result.json") is None


def test_the_closing_line_names_what_was_done_and_what_was_left() -> None:
    result = {
        "stage": "backfill",
        "pipeline": "shop",
        "state": "done",
        "tables": {"shop.a": {}, "shop.b": {}},
        "figures": {"rows": 1234567, "windows": 1, "window": 4, "longest_wait_ms": 40},
        "blocked": [{"table": "shop.b", "reason": "column x appeared"}],
    }
    assert driver.closing_line(result, 2.0).splitlines() == [
        "pgddl: backfill of shop: done (2.0 s), 2 tables, 1,234,567 rows, 1 window, window 4, longest wait 40 ms",
        "pgddl: blocked: shop.b: column x appeared",
    ]


def test_a_reused_pid_is_not_the_watched_process() -> None:
    me = Watched.me()
    assert me.alive()
    assert not Watched(me.pid, me.started - 3600).alive()


def test_a_dead_process_that_nobody_has_reaped_is_not_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        watched = Watched(child.pid, psutil.Process(child.pid).create_time())
        assert watched.alive()
        child.kill()
        _until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
        assert not watched.alive()


# What an application does while a stage runs: it waits, here for a line that never comes.
WAITING = """
import sys
from airflow_provider_pgddl.engine.job.file import Watched
from airflow_provider_pgddl.engine.launch.driver import _stoppable, _watching
watched = Watched(int(sys.argv[1]), float(sys.argv[2])) if len(sys.argv) > 1 else None
with _stoppable(), _watching(watched):
    try:
        print("at work", flush=True)
        sys.stdin.readline()
    except KeyboardInterrupt:
        print("stopped in order", flush=True)
"""
STUBBORN = WAITING.replace("sys.stdin.readline()", "[i for i in iter(int, 1)]").replace(
    'print("stopped in order", flush=True)', "[i for i in iter(int, 1)]"
)


def _application(source: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", source, *map(str, args)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "at work\n"
    return child


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_stage_in_order(number: signal.Signals) -> None:
    with _application(WAITING) as child:
        child.send_signal(number)
        assert child.stdout is not None
        assert child.stdout.readline() == "stopped in order\n"


@pytest.fixture
def task() -> Iterator[subprocess.Popen[bytes]]:
    """A process on whose behalf an application runs."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_the_application_ends_with_the_process_that_it_works_for(task: subprocess.Popen[bytes]) -> None:
    with _application(WAITING, task.pid, psutil.Process(task.pid).create_time()) as child:
        task.kill()
        assert child.stdout is not None
        assert child.stdout.readline() == "stopped in order\n"


def test_an_application_that_cannot_be_stopped_in_order_ends_all_the_same(task: subprocess.Popen[bytes]) -> None:
    with _application(STUBBORN, task.pid, psutil.Process(task.pid).create_time()) as child:
        task.kill()
        assert child.wait(timeout=30) == 5


def test_under_spark_submit_the_application_ends_with_its_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    # A shell stands for the JVM: it starts the application and dies.
    jvm_source = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdin=subprocess.PIPE);"
        "print(p.pid, flush=True); p.wait()"
    )
    command = [sys.executable, "-c", jvm_source, WAITING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as jvm:
        assert jvm.stdout is not None
        lines = {jvm.stdout.readline().strip(), jvm.stdout.readline().strip()}
        application = psutil.Process(int((lines - {"at work"}).pop()))
        os.kill(jvm.pid, signal.SIGKILL)
        _until(lambda: not application.is_running() or application.status() == psutil.STATUS_ZOMBIE)


def _until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    import time

    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        time.sleep(0.05)
