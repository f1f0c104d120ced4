"""A master that is not local: workers in JVMs of their own, which get the engine as a zip."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from airflow_provider_pgddl.engine.parallel import spark
from airflow_provider_pgddl.engine.parallel.spark_settings import is_local
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.spark

MASTER = "local-cluster[1,2,512]"


def test_workers_elsewhere_get_the_engine_with_its_sql(tmp_path: Path) -> None:
    assert not is_local(MASTER)
    command = spark.command(
        "spark-submit",
        MASTER,
        REPOSITORY / "tests" / "spark" / "where_from.py",
        tmp_path / "unused",
        name="where from",
        conf={"spark.executor.memory": "512m", "spark.ui.enabled": "false"},
        py_files=spark.carried(MASTER, tmp_path) or "",
    )
    env = os.environ | spark.launch_env(os.environ, local=True)
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"^found (.*) (\d+)$", done.stdout, re.MULTILINE)
    assert len(found) == 2
    for file, number in found:
        assert "pgddl_engine.zip" in file
        assert int(number) > 0
