"""Passwords that change under a run, client certificates, service files and ~/.pgpass: stages from setup to swap."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.stages import STAGES
from tests.conftest import DEBIAN_15, SETTINGS, Database
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.rotation import endpoint, rotated

Lifecycles = Callable[..., Lifecycle]

ROWS = """
CREATE TABLE public.orders (id int PRIMARY KEY, note text);
INSERT INTO public.orders SELECT n, repeat('x', 200) FROM generate_series(1, 20000) n;
CREATE TABLE public.customers (id int PRIMARY KEY);
INSERT INTO public.customers SELECT generate_series(1, 100)
"""
EVERYTHING = {"tables": {"include": ["public.*"]}}
# Some dozens of chunks, over workers of their own sessions.
SMALL = {"backfill": {"chunk_bytes": "64kB", "workers": 3}}


def test_passwords_that_change_every_second_while_workers_are_at_it(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    execute(source_dsn, ROWS)
    move = lifecycle(source_dsn, target_dsn, **EVERYTHING, **SMALL)
    files = {"source": tmp_path / "source", "target": tmp_path / "target"}
    with rotated(source_dsn, files["source"]) as (mine, source), rotated(target_dsn, files["target"]) as (its, target):
        move.content["source"] = endpoint(source_dsn, mine, files["source"])
        move.content["target"] = endpoint(target_dsn, its, files["target"])
        for stage in STAGES:
            known = len(source.passwords), len(target.passwords)
            # Each stage begins with passwords that are not what they were.
            wait_until(lambda known=known: len(source.passwords) > known[0] and len(target.passwords) > known[1])
            if stage in ("backfill", "replay", "verify"):
                execute(source_dsn, f"UPDATE public.orders SET note = '{stage}' WHERE id % 1000 = 0")
            assert not move.run(stage).blocked
        assert differences(source_dsn, target_dsn) == []
        used = [*source.passwords, *target.passwords]
        journal = move.journal("SELECT p::text FROM pgddl.pipelines p UNION ALL SELECT s::text FROM pgddl.stage_runs s")
        for text in ("".join(capfd.readouterr()), str(journal)):
            assert not any(password in text for password in used)
            assert "pgddl-broker" not in text


def test_what_is_no_password_any_more_is_one_line(source_dsn: str, lifecycle: Lifecycles, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hush-hush")
    move = lifecycle(source_dsn, source_dsn, **EVERYTHING)
    move.content["source"] = endpoint(source_dsn, "postgres", file)
    error = move.refused("setup")
    assert "password authentication failed" in str(error) and "hush" not in str(error)


# --- certificates -----------------------------------------------------------------------------------------------------


class Authority:
    """A certificate authority in a folder, by openssl."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=pgddl tests",
                      "-keyout", "ca.key", "-out", "ca.crt")  # fmt: skip

    def issue(self, name: str, subject: str, *, ip: str | None = None) -> tuple[Path, Path]:
        """(certificate, key) for a common name."""
        self._openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={subject}",
                      "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName=IP:{ip}\n" if ip else "basicConstraints=CA:FALSE\n")
        self._openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                      "-days", "2", "-extfile", str(extensions), "-out", f"{name}.crt")  # fmt: skip
        key = self.folder / f"{name}.key"
        key.chmod(0o600)
        return self.folder / f"{name}.crt", key

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


@pytest.fixture
def demanding(tmp_path: Path) -> Iterator[tuple[Cluster, Authority]]:
    """A Postgres 15 that lets in over TLS only, and the role `mover` by a certificate only; the embedded ones have no
    TLS."""
    if not (DEBIAN_15 / "postgres").exists():
        pytest.skip(f"no Postgres 15 server in {DEBIAN_15}: apt-get install postgresql-15")
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server", "server", ip="127.0.0.1")
    with Cluster(15, bin_dir=DEBIAN_15, settings=SETTINGS) as cluster:
        for file in (certificate, key, tmp_path / "ca.crt"):
            copy = cluster.data / file.name
            copy.write_bytes(file.read_bytes())
            os.chown(copy, cluster.data.stat().st_uid, cluster.data.stat().st_gid)
            copy.chmod(0o600)
        with psycopg.connect(cluster.conninfo(), autocommit=True) as conn:
            conn.execute("CREATE ROLE mover SUPERUSER LOGIN")
            for name, value in {"ssl": "on", "ssl_cert_file": certificate.name, "ssl_key_file": key.name,
                                "ssl_ca_file": "ca.crt"}.items():  # fmt: skip
                conn.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
            lines = "hostssl all mover 127.0.0.1/32 cert\nhostnossl all mover all reject\n"
            hba = cluster.data / "pg_hba.conf"
            hba.write_text(lines + hba.read_text())
            conn.execute("SELECT pg_reload_conf()")
            wait_until(lambda: conn.execute("SHOW ssl").fetchone() == ("on",))
        yield cluster, authority


def test_a_server_that_demands_a_client_certificate(
    demanding: tuple[Cluster, Authority], database: Database, lifecycle: Lifecycles, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, authority = demanding
    monkeypatch.setenv("PGDDL_PG_DUMP", str(DEBIAN_15 / "pg_dump"))  # the embedded ones cannot do TLS
    certificate, key = authority.issue("client", "mover")
    tls = {"sslmode": "verify-full", "sslcert": str(certificate), "sslkey": str(key),
           "sslrootcert": str(authority.folder / "ca.crt")}  # fmt: skip
    source, target = database(cluster), database(cluster)
    execute(source, ROWS)

    def by_certificate(dsn: str, **changed: str) -> str:
        parts = {name: value for name, value in conninfo_to_dict(dsn).items() if name != "password"}
        return make_conninfo("", **{**parts, "user": "mover", **tls, **changed})

    move = lifecycle(by_certificate(source), by_certificate(target), **EVERYTHING, **SMALL)
    move.run_all()
    with psycopg.connect(target) as conn:
        assert conn.execute("SELECT count(*), count(DISTINCT id) FROM public.orders").fetchone() == (20000, 20000)
    stranger, its_key = authority.issue("stranger", "somebody_else")
    for refused in (
        by_certificate(source, sslcert=str(stranger), sslkey=str(its_key)),
        by_certificate(source, host="localhost"),  # which the server's certificate does not name
        by_certificate(source, sslmode="disable"),
    ):
        with pytest.raises(PgddlError):
            connect(refused, purpose="test")


def test_a_service_file_and_a_password_file(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(source_dsn, ROWS)
    services, passwords = [], []
    for name, dsn in (("shop_source", source_dsn), ("shop_target", target_dsn)):
        parts = conninfo_to_dict(dsn)
        passwords.append(":".join(str(parts[key]) for key in ("host", "port", "dbname", "user", "password")))
        keys = [f"{key}={value}" for key, value in parts.items() if key != "password"]
        services.append("\n".join([f"[{name}]", *keys]))
    (tmp_path / "services").write_text("\n".join(services) + "\n")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".pgpass").write_text("\n".join(passwords) + "\n")
    (home / ".pgpass").chmod(0o600)
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PGPASSFILE", str(home / ".pgpass"))  # of root, libpq asks the system where that is
    move = lifecycle(source_dsn, target_dsn, **EVERYTHING, **SMALL)
    move.content["source"], move.content["target"] = {"dsn": "service=shop_source"}, {"dsn": "service=shop_target"}
    move.run_all()
    assert differences(source_dsn, target_dsn) == []
