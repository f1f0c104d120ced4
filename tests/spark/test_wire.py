"""What passes between driver and executors, as a raw socket on loopback sees it."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

import pytest

from airflow_provider_pgddl.demo.clusters import _free_port as free_port
from airflow_provider_pgddl.engine.parallel import spark
from tests.conftest import REPOSITORY
from tests.spark.standalone import ENCRYPTED

pytestmark = pytest.mark.spark

WORD = "correct-horse-battery-staple"
MASTER = "local-cluster[2,1,512]"
# Nothing may hide in what is compressed.
OPEN = {
    "spark.broadcast.compress": "false", "spark.rdd.compress": "false", "spark.shuffle.compress": "false",
    "spark.executor.memory": "512m", "spark.ui.enabled": "false",
}  # fmt: skip
ETH_P_ALL = 3


class Wire:
    """All packets from and to these TCP ports on loopback, while the block runs."""

    def __init__(self, *ports: int) -> None:
        self._ports, self._over = set(ports), threading.Event()
        self.said, self.packets = bytearray(), 0
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(ETH_P_ALL))
        except (PermissionError, AttributeError) as error:
            pytest.skip(f"a raw socket on loopback needs CAP_NET_RAW: {error}")
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.2)
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        while not self._over.is_set():
            try:
                frame = self._socket.recv(1 << 17)
            except TimeoutError:
                continue
            if len(frame) < 54 or frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
                continue
            tcp = 14 + 4 * (frame[14] & 15)
            if self._ports & {*struct.unpack("!HH", frame[tcp : tcp + 4])}:
                self.packets += 1
                self.said += frame[tcp + 4 * (frame[tcp + 12] >> 4) :]


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
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.stdout.count("[3, 3]") == 3, done.stdout + done.stderr
    assert wire.packets > 50
    assert (WORD.encode() in wire.said) is seen
