"""Why a password file did not help."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.engine.server.password_file import why_without_password


def why(file: Path) -> str:
    dsn = make_conninfo(host="db", port=5433, dbname="shop", user="mover", passfile=str(file))
    found = why_without_password(dsn)
    assert found is not None
    assert found[1]
    return found[0].replace(socket.gethostname(), "HERE")


def test_what_libpq_passes_over_in_silence_is_said(tmp_path: Path) -> None:
    file = tmp_path / "pgpass"
    assert why(file) == f"there is no password file {file} on HERE"
    assert why(tmp_path) == f"the password file {tmp_path} on HERE is not a regular file"
    file.write_text("db:5433:other:mover:hush-hush\n")
    for mode in (0o644, 0o640, 0o604):
        file.chmod(mode)
        assert why(file) == f"the password file {file} on HERE has mode {mode:04o}, and is not read for that"
    file.chmod(0o600)
    assert why(file) == f"the password file {file} on HERE has no line for db:5433:shop:mover"


def test_a_file_of_somebody_else_is_not_read(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads every file")
    file = tmp_path / "pgpass"
    file.touch(mode=0o000)
    assert why(file).endswith("cannot be read by us")


def test_a_connection_without_a_password_file_is_no_matter_of_it() -> None:
    assert why_without_password("host=db dbname=shop user=mover") is None
