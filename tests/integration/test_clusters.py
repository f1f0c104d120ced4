"""The embedded servers that everything else here stands on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import psycopg
import pytest

from airflow_provider_pgddl.demo import clusters
from airflow_provider_pgddl.demo.clusters import Cluster, ClusterFailed


def test_both_versions_run_side_by_side(source_dsn: str, target_dsn: str) -> None:
    versions = []
    for dsn in (source_dsn, target_dsn):
        with psycopg.connect(dsn) as connection:
            versions.append(connection.info.server_version // 10000)
    assert versions == [16, 18]


def test_committed_rows_survive_a_crash_of_the_server() -> None:
    with Cluster(16) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE TABLE public.kept AS SELECT 1 AS id")
        port = cluster.port
        cluster.restart("immediate")
        assert cluster.port == port
        with psycopg.connect(cluster.conninfo()) as connection:
            assert connection.execute("SELECT id FROM public.kept").fetchall() == [(1,)]
        pid, folder = cluster.pid, cluster.folder
    assert not psutil.pid_exists(pid)
    assert not folder.exists()


def test_a_kept_folder_starts_again_with_its_password() -> None:
    folder = Path(tempfile.mkdtemp(prefix="pgddl-kept-"))
    try:
        with Cluster(18, folder) as first:
            password = first.password
        with Cluster(18, folder) as again:
            assert again.password == password
            psycopg.connect(again.conninfo()).close()
    finally:
        shutil.rmtree(folder)


def test_a_failing_start_shows_the_servers_log() -> None:
    cluster = Cluster(16, settings={"shared_buffers": "nonsense"})
    with pytest.raises(ClusterFailed, match='invalid value for parameter "shared_buffers"'):
        cluster.start()
    cluster.close()


def test_another_version_is_refused() -> None:
    with pytest.raises(ClusterFailed, match="no embedded Postgres 17, only 16 and 18"):
        Cluster(17).start()


def test_the_server_ends_with_a_process_that_is_killed() -> None:
    code = (
        "import sys; from airflow_provider_pgddl.demo.clusters import Cluster\n"
        "c = Cluster(16); c.start(); print(c.pid, c.folder, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, folder = owner.stdout.readline().split()
    server = psutil.Process(int(pid))
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    server.wait(timeout=30)
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_binaries_below_a_closed_home_are_copied_where_the_server_can_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "home"
    closed.mkdir(mode=0o700)
    bin_dir = clusters.embedded_binaries(18)
    package = bin_dir.parent.parent
    for part in (package, package.with_name(package.name + ".libs")):
        shutil.copytree(part, closed / part.name, symlinks=True)
    cache = Path(tempfile.mkdtemp(prefix="pgddl-cache-"))
    cache.chmod(0o755)
    try:
        monkeypatch.setattr(clusters, "_cache", lambda: cache)
        copy = clusters._open_copy(closed / package.name, "copy")
        with Cluster(18, bin_dir=copy / "pginstall18" / "bin") as cluster:
            psycopg.connect(cluster.conninfo()).close()
        (copy / "pginstall18" / "bin" / "psql").unlink()
        assert (clusters._open_copy(closed / package.name, "copy") / "pginstall18" / "bin" / "psql").exists()
        assert [path.name for path in cache.iterdir()] == ["copy"]
    finally:
        shutil.rmtree(cache)


def test_a_cache_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "pgddl"
    folder.mkdir()
    folder.chmod(0o777)
    assert not clusters._ours(folder)
    folder.chmod(0o755)
    assert clusters._ours(folder)
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert not clusters._ours(link)
