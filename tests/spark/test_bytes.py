"""How much passes to a task: its own part, however many others there are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_pgddl.engine.parallel import spark
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.spark

LOGGING = """
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %m%n
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = info
logger.blocks.name = org.apache.spark.storage
logger.blocks.level = info
"""
APPLICATION = """
from pyspark import SparkContext
SparkContext.setLogLevel = lambda *_: None  # which would silence what is read here
from airflow_provider_pgddl.engine.parallel.spark import spread
from tests.spark import work
for count in (2, 256):
    if SparkContext._jvm is not None:
        SparkContext._jvm.java.lang.System.err.println(f"parts {count}")  # where the JVM logs
    parts = [{"rows": number, "tables": "x" * 1000} for number in range(count)]
    assert spread(work.rows_of, parts, workers=2, app="bytes") == list(range(count))
"""


def test_a_task_gets_its_own_part_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "log4j2.properties").write_text(LOGGING)
    (tmp_path / "app.py").write_text(APPLICATION)
    log4j = f"-Dlog4j2.configurationFile={(tmp_path / 'log4j2.properties').as_uri()}"
    # A collector too: what ours are beside it may name none, or the JVM would not start.
    conf = spark.local_conf("local[2]") | {"spark.driver.extraJavaOptions": f"{log4j} -XX:+UseParallelGC"}
    command = spark.command("spark-submit", "local[2]", tmp_path / "app.py", tmp_path / "job", name="bytes", conf=conf)
    env = os.environ | spark.launch_env(os.environ, local=True)
    env |= {"PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    few, many = done.stderr.split("parts 256")
    largest = [max(map(int, re.findall(r"(\d+) bytes\)", text))) for text in (few, many)]
    assert 1000 < largest[0] < 20_000  # some ten thousand of them are Spark's own
    assert largest[1] < largest[0] + 100, largest  # what is sent with each task
    size = r"Block broadcast_\d+ stored.*estimated size ([\d.]+) ([KMG]?i?B)"
    stored = [re.findall(size, text) for text in (few, many)]
    assert all(unit == "KiB" and float(number) < 50 for text in stored for number, unit in text), stored  # and with all
