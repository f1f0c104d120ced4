"""Servers beside the clusters: PgBouncer in front of one, and what it takes to start another."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def as_nobody() -> dict[str, Any]:
    """Servers refuse to run as root."""
    return {"user": pwd.getpwnam("nobody").pw_uid} if os.geteuid() == 0 else {}


def answers(port: int, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    """Until the server takes connections, which for Postgres is when it takes queries."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
                probe.sendall(b"\x00\x00\x00\x08\x04\xd2\x16\x2f")  # SSLRequest: answered with S or N
                if probe.recv(1):
                    return
        except OSError:
            threading.Event().wait(0.05)
    raise AssertionError("the server does not answer")


@pytest.fixture
def pgbouncer(pg16: Cluster) -> Iterator[Callable[[str, str], str]]:
    """``pgbouncer(dsn, mode)``: a connection string through a PgBouncer of its own."""
    binary = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if binary is None:
        pytest.skip("no pgbouncer here: apt-get install pgbouncer")
    started: list[subprocess.Popen[bytes]] = []
    folder = Path(tempfile.mkdtemp(prefix="pgddl-pgbouncer-"))
    folder.chmod(0o755)  # it refuses to run as root

    def start(dsn: str, mode: str, extra: str = "") -> str:
        parts, port = conninfo_to_dict(dsn), free_port()
        config = folder / f"{mode}.ini"
        (folder / "users.txt").write_text(f'"postgres" "{pg16.password}"\n')
        config.write_text(
            f"[databases]\n* = host=127.0.0.1 port={parts['port']}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
            f"unix_socket_dir =\nauth_type = plain\nauth_file = {folder / 'users.txt'}\npool_mode = {mode}\n{extra}\n"
        )
        process = subprocess.Popen(
            [binary, "-q", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", **as_nobody()
        )
        started.append(process)
        answers(port, process)
        return make_conninfo(**{**parts, "port": port})

    yield start
    for process in started:
        process.terminate()
        process.wait(10)
    shutil.rmtree(folder)
