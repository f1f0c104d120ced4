"""What the demo shows of Airflow's log."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from airflow_provider_pgddl.demo.airflow_run import Airflow, DagFailed
from airflow_provider_pgddl.demo.run import _with_bigint_key
from airflow_provider_pgddl.demo.screen import Screen

LOG = """\
00:00:01Z [info     ] [DAG TEST] starting task_id=migrate.catch_up [airflow.sdk.dag] loc=dag.py:1
00:00:02Z [info     ] Spark-Submit cmd: spark-submit --master local[2] [airflow.task.hooks.X] loc=s.py:1
00:00:03Z [info     ] pgddl replay: window 3: 1.2k keys [now]  [airflow.task.hooks.a.PrivateEnvHook] loc=s.py:965
00:00:04Z [info     ] something of Java's            [airflow.task.hooks.a.PrivateEnvHook] loc=s.py:965
00:00:05Z [error    ] Task failed with exception     [task] loc=task_runner.py:1651
Traceback (most recent call last):
  File "operators/base.py", line 148, in execute
airflow.sdk.exceptions.AirflowException: replay: shop.orders: [somebody] holds the table
  to do: nothing
00:00:06Z [info     ] Task instance state updated    [airflow.api] id=1 new_state=up_for_retry rows_affected=1
00:00:07Z [info     ] Task instance state updated    [airflow.api] id=1 new_state=success rows_affected=1
"""


class RecordedAirflow(Airflow):
    """Plays a log back in place of a DAG run."""

    def __init__(self, home: Path, exit_code: int) -> None:
        self.home, self._running, self._exit_code = home, None, exit_code
        (home / "recorded").write_text(LOG)

    def _start(self, arguments: list[str], output: object) -> subprocess.Popen[str]:
        program = f"print(open({str(self.home / 'recorded')!r}).read()); raise SystemExit({self._exit_code})"
        return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


def play(home: Path, output: io.StringIO, exit_code: int = 0) -> list[str]:
    RecordedAirflow(home, exit_code).test("migrate_shop", Screen(Console(file=output, width=200)))
    return [line[6:] for line in output.getvalue().splitlines()]


def test_progress_and_failures_are_shown_and_nothing_else(tmp_path: Path, output: io.StringIO) -> None:
    assert play(tmp_path, output) == [
        "catch_up     window 3: 1.2k keys [now]",
        "catch_up     replay: shop.orders: [somebody] holds the table",
        "catch_up       to do: nothing",
        "catch_up     up for retry",
    ]


def test_a_failed_run_names_its_task_and_what_the_application_said(tmp_path: Path, output: io.StringIO) -> None:
    with pytest.raises(DagFailed, match=r"(?s)in its task catch_up; .*migrate_shop\.log\nsomething of Java's$"):
        play(tmp_path, output, exit_code=1)


def test_only_the_key_and_its_sequence_may_change_their_type() -> None:
    before = [
        "shop.orders column 1 id: integer not null default nextval('shop.orders_id_seq'::regclass)",
        "shop.orders column 7 version: integer not null default 1",
        "shop.orders_id_seq sequence: integer start 1 min 1 max 2147483647 increment 1 owned by shop.orders.id",
    ]
    assert _with_bigint_key(before) == [
        "shop.orders column 1 id: bigint not null default nextval('shop.orders_id_seq'::regclass)",
        "shop.orders column 7 version: integer not null default 1",
        "shop.orders_id_seq sequence: bigint start 1 min 1 max 9223372036854775807 increment 1 owned by shop.orders.id",
    ]
