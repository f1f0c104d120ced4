"""Clusters are started once a session; every test gets databases of its own. A failure is told when it happens."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import select
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.clusters import Cluster
from tests import combinations, costs, time_limit
from tests.failpoints import At

if TYPE_CHECKING:
    from tests.integration.lifecycle import Lifecycle

# What several files of tests share says as much about an assertion that fails as they do.
pytest.register_assert_rewrite("tests.dags", "tests.integration", "tests.unit")

REPOSITORY = Path(__file__).resolve().parent.parent
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")

Database = Callable[..., str]

_numbers = itertools.count(1)

MEMORY = Path("/dev/shm")
MEMORY_NEEDED = 8 << 30  # bytes
# What is in memory is not there twice: a server keeps little WAL, and its files are copied to make a database.
# Nothing here is large enough to be worth a compiler, which Debian's server would start for a costly plan.
SETTINGS = {"max_wal_size": "512MB", "shared_buffers": "128MB", "jit": "off"}
# glibc's: a session takes its memory in few large pages and keeps what a statement has freed for the next one. Most
# sessions of ours are short, and a tenth of their time went into the faults of small pages.
MALLOC = {"hugetlb": 1, "top_pad": 4 << 20, "trim_threshold": 64 << 20, "mmap_threshold": 8 << 20}
ENVIRONMENT = {"GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in MALLOC.items())}


def keep_in_memory() -> None:
    """Temporary files are kept in memory where there is room for them: to make a database and to drop it, which most
    tests do twice, takes a fifth of the time. TMPDIR chooses another place."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return
    for left in MEMORY.glob("pgddl-tests-*"):  # by a run that was killed
        with contextlib.suppress(ValueError):
            if not Path(f"/proc/{int(left.name.split('-')[2])}").exists():
                shutil.rmtree(left, ignore_errors=True)
    if shutil.disk_usage(MEMORY).free < MEMORY_NEEDED:
        return
    folder = tempfile.mkdtemp(prefix=f"pgddl-tests-{os.getpid()}-", dir=MEMORY)
    os.chmod(folder, 0o755)  # the servers run as somebody else where the tests run as root
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def keep_bytecode() -> None:
    """Stages, drivers and Airflow are processes of their own: without bytecode, which an image may switch off, each one
    compiles all of our modules anew, a third of what a stage takes to start."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


class FailuresAtOnce:
    """pytest prints the texts of failures at the end, which a run that is stopped never reaches."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if not report.failed or terminal is None:
            return
        terminal.write("\n")
        terminal.write_sep("_", f"{report.nodeid} ({report.when})", red=True)
        terminal.write_line(shortened(report.longreprtext, 0, 60))
        for name, content in report.sections:  # a random test's seed is in what it printed first
            terminal.write_line(f"{name}:\n{shortened(content, 10, 20)}")
        terminal.flush()


def shortened(text: str, first: int, last: int) -> str:
    lines = text.splitlines()
    left_out = len(lines) - first - last
    if left_out > 0:
        lines[first : len(lines) - last] = [f"... {left_out} lines, in the report at the end ..."]
    return "\n".join(lines)


class OneOfEach:
    """Leaves out what `tests.combinations` says, and says how much that was."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.left = config, 0

    @pytest.hookimpl(trylast=True)  # of what -k and -m have left
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:], left = combinations.one_of_each(items)
        self.config.hook.pytest_deselected(items=left)
        self.left = len(left)
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["left"] = self.left

    @pytest.hookimpl(optionalhook=True)  # xdist's
    def pytest_testnodedown(self, node: Any) -> None:
        self.left = getattr(node, "workeroutput", {}).get("left", self.left)

    def pytest_report_header(self) -> str:
        return f"each scenario in one of its combinations; {combinations.OPTION} (make test-all) for every one"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"{self.left} further combinations were left to make test-all")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(combinations.OPTION, action="store_true", help="every scenario in each of its combinations")
    parser.addoption(time_limit.OPTION, type=float, metavar="SECONDS", help="what has not begun by then is left out")
    parser.addoption(costs.OPTION, action="store_true", help="seconds of CPU by file, at the end")


def pytest_configure(config: pytest.Config) -> None:
    keep_in_memory()
    keep_bytecode()
    if not hasattr(config, "workerinput"):  # xdist's workers hand theirs to the process that has the terminal
        config.pluginmanager.register(FailuresAtOnce(config), "failures-at-once")
    if config.getoption(costs.OPTION):
        config.pluginmanager.register(costs.Costs(config), "costs")
    if (seconds := config.getoption(time_limit.OPTION)) is not None:
        config.pluginmanager.register(time_limit.Within(seconds), "time-limit")
    if not config.getoption(combinations.OPTION):
        config.pluginmanager.register(OneOfEach(config), "one-of-each")


@pytest.fixture(scope="session")
def all_combinations(request: pytest.FixtureRequest) -> bool:
    """Whether a test that takes a part of what it could try is to try it all."""
    return bool(request.config.getoption(combinations.OPTION))


# Of each server that tests share, the session that makes and drops their databases: to open one each time took as long.
_admins: dict[Cluster, psycopg.Connection[Any] | None] = {}


@contextlib.contextmanager
def shared(cluster: Cluster) -> Iterator[Cluster]:
    with cluster:
        _admins[cluster] = None
        yield cluster
        if admin := _admins.pop(cluster):
            admin.close()


@contextlib.contextmanager
def admin_of(cluster: Cluster) -> Iterator[psycopg.Connection[Any]]:
    """An autocommit session of a superuser: on a server that tests share the same as before, if it is still there."""
    if cluster not in _admins:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            yield admin
        return
    kept = _admins[cluster]
    if kept is None or kept.closed or select.select([kept.fileno()], [], [], 0)[0]:  # the server has said goodbye
        if kept is not None:
            kept.close()
        kept = _admins[cluster] = psycopg.connect(cluster.conninfo(), autocommit=True)
    yield kept


@pytest.fixture(scope="session")
def pg16() -> Iterator[Cluster]:
    with shared(Cluster(16, settings=SETTINGS, environment=ENVIRONMENT)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def pg18() -> Iterator[Cluster]:
    with shared(Cluster(18, settings=SETTINGS, environment=ENVIRONMENT)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def pg15() -> Iterator[Cluster]:
    """Debian's Postgres 15, for its contrib extensions (hstore, citext, btree_gist)."""
    if not (DEBIAN_15 / "postgres").exists():
        pytest.skip(f"no Postgres 15 server in {DEBIAN_15}: apt-get install postgresql-15")
    with shared(Cluster(15, bin_dir=DEBIAN_15, settings=SETTINGS, environment=ENVIRONMENT)) as cluster:
        yield cluster


@pytest.fixture
def database() -> Iterator[Database]:
    """``database(cluster)`` makes a database (``template=`` names another than template1) and returns its conninfo."""
    made: list[tuple[Cluster, str]] = []

    def make(cluster: Cluster, *, template: str = "template1", name: str | None = None) -> str:
        name = name or f"test_{os.getpid()}_{next(_numbers)}"
        with admin_of(cluster) as admin:
            admin.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                    sql.Identifier(name), sql.Identifier(template)
                )
            )
        made.append((cluster, name))
        return cluster.conninfo(name)

    yield make
    for cluster, name in reversed(made):
        if not cluster.running:
            cluster.start()
        drop_database(cluster, name)


def drop_database(cluster: Cluster, name: str) -> None:
    """Drop a database with what would keep it from going: sessions, slots and prepared transactions."""
    with admin_of(cluster) as admin:
        prepared = admin.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", [name]).fetchall()
        if prepared:  # only a session of that database may end them
            with psycopg.connect(cluster.conninfo(name), autocommit=True) as inside:
                for (gid,) in prepared:
                    inside.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
        slots = "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s"
        for slot, pid in admin.execute(slots, [name]).fetchall():
            if pid is not None:
                admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
            admin.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def source_dsn(pg16: Cluster, database: Database) -> str:
    """A fresh database on Postgres 16."""
    return database(pg16)


@pytest.fixture
def target_dsn(pg18: Cluster, database: Database) -> str:
    """A fresh database on Postgres 18."""
    return database(pg18)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real databases (chinook.sql, northwind.sql)."""
    folder = Path(os.environ.get("PGDDL_SHARED_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there: set PGDDL_SHARED_DATA to the folder with chinook.sql and northwind.sql")
    return folder


@pytest.fixture
def lifecycle(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Lifecycle]:
    """``lifecycle(source, target, tables={...})``: its stages run in this process; in place without a target."""
    from tests.integration.lifecycle import Lifecycle

    return partial(Lifecycle, monkeypatch)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    item.stash[FAILED] = item.stash.get(FAILED, False) or call.excinfo is not None
    return (yield)


@pytest.fixture
def at(request: pytest.FixtureRequest) -> Iterator[At]:
    """``at("swap.before_lock", act)`` has ``act(n)`` happen at the nth pass of a failpoint; see `tests.failpoints`."""
    failpoints = At()
    yield failpoints
    failpoints.end(check=not request.node.stash.get(FAILED, False))


def database_name(conninfo: str) -> str:
    """The database that a conninfo string names."""
    return str(conninfo_to_dict(conninfo)["dbname"])
