"""What passes between driver and executors, as a raw socket on loopback sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_pgddl.demo.clusters import _free_port as free_port
from airflow_provider_pgddl.engine.parallel import spark
from tests.conftest import REPOSITORY
from tests.spark.packets import OPEN, Wire
from tests.spark.standalone import ENCRYPTED

pytestmark = pytest.mark.spark

WORD = "correct-horse-battery-staple"
MASTER = "local-cluster[2,1,512]"


@pytest.mark.parametrize(("conf", "seen"), [({}, True), (ENCRYPTED, False)], ids=["plain", "encrypted"])
def test_a_password_is_read_on_the_wire_only_without_encryption(
    tmp_path: Path, conf: dict[str, str], seen: bool
) -> None:
    """On the driver's ports. Between a JVM and its own Python it passes by loopback of that machine, and no further."""
    driver, blocks = free_port(), free_port()
    ports = {"spark.driver.port": str(driver), "spark.driver.blockManager.port": str(blocks)}
    command = spark.command(
        "spark-submit",
        MASTER,
        REPOSITORY / "tests" / "spark" / "wire.py",
        tmp_path / "unused",
        name="wire",
        conf=OPEN | ports | conf,
        py_files=spark.carried(MASTER, tmp_path) or "",
    )
    env = os.environ | spark.launch_env(os.environ, local=True) | {"PGDDL_TEST_WORD": WORD}
    env |= {"PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable}
    with Wire(driver, blocks) as wire:
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.stdout.count("[3, 3]") == 3, done.stdout + done.stderr
    assert wire.packets > 50
    assert (WORD.encode() in wire.said) is seen
