"""The one place that talks to Spark: spreading work over its workers, and starting an application.

pyspark is imported when work is spread and not before: a session takes seconds to start, and most stages of a small
pipeline have nothing to spread.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import signal
import sys
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_pgddl.engine import failpoints
from airflow_provider_pgddl.engine.errors import Busy, PgddlError, PreflightRefused, Retry, StageFailed
from airflow_provider_pgddl.engine.parallel import executor_slots
from airflow_provider_pgddl.engine.parallel.class_archive import ClassArchive
from airflow_provider_pgddl.engine.parallel.executor_settings import DEFAULT, Settings
from airflow_provider_pgddl.engine.parallel.job_watch import SAY_AFTER, JobWatch
from airflow_provider_pgddl.engine.parallel.part_results import attempt_each, be_there, dealt, gathered, results
from airflow_provider_pgddl.engine.parallel.spark_settings import is_local, refuse, retrying
from airflow_provider_pgddl.engine.progress import repeating

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

T = TypeVar("T")
R = TypeVar("R")

# A JVM that waits for Postgres needs no optimizing compiler. Its collector is not said here: a JVM that is told of two
# does not start, and somebody else may tell it of one.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"

# Seconds after which a window gives its snapshot up where none of its parts has found a free core.
BEGIN_WITHIN = 5.0
CANCELLED_WITHIN = 2.0  # seconds
JVM_ENDED = "Spark's JVM ended, or the cluster has ended the application"


def spread(
    work: Callable[[T], R],
    parts: Sequence[T],
    *,
    workers: int,
    app: str,
    begin_within: float | None = None,
    settings: Settings = DEFAULT,
    needed: Callable[[], bool] = lambda: True,
    gives_way: Callable[[], bool] = lambda: False,
    within: float | None = None,
) -> list[R]:
    """`work` of each part, on Spark's workers, at most `workers` beside each other; results in the order of `parts`.

    `work` is a function of a module (workers import it by name), its results are small. An error of ours, or of
    Postgres, comes back as itself once every part has ended: a final one before one that a retry may cure. Anything
    else is a bug: Spark tries that part again, then it comes back as Spark reports it. Busy where Spark has begun
    none of them after so many seconds (`begin_within`), where they are not done `within` so many, and as soon as what
    they are done for `gives_way`: none of them goes on then. Retry where there has been no executor
    for as long as `settings` say. NotNeeded where it is not `needed` any more before there is one.
    """
    context = begin(app, workers, settings)
    context.environment[failpoints.VARIABLE] = os.environ.get(failpoints.VARIABLE, "")  # to workers, wherever they are
    watch = JobWatch(context, begin_within, settings, needed, gives_way, within)
    try:
        with watch:
            too_many = len(parts) > workers and executor_slots.at_most(context) > workers
            shares = dealt(parts, workers if too_many else len(parts))
            ended = gathered(_distributed(context, shares).map(partial(attempt_each, work)).collect())
    except KeyboardInterrupt:
        _cancel(context)
        raise
    except Exception as error:
        if _stopped(error):
            raise KeyboardInterrupt from None
        if _jvm_ended(error):
            raise Retry(JVM_ENDED, todo="the stage tries again; it goes on where it was") from None
        if watch.not_needed:
            raise NotNeeded from None
        if watch.lost:
            raise Retry(
                f"Spark had no executor for {settings.wait:.0f} s: {watch.lost}",
                todo="give the cluster workers, or this application cores of its own; then run the stage again, which "
                "goes on where it was (spark.wait says how long executors are waited for)",
            ) from None
        if watch.given_up:
            raise Busy(
                watch.given_up, todo="give the application cores of its own, or wait: this is tried again"
            ) from None
        if said := executor_slots.unable(str(error)):
            raise PreflightRefused(said[0], todo=said[1]) from None
        raise
    return results(ended, f"running {app}")


def _cancel(context: SparkContext) -> None:
    """All jobs, if the JVM takes that in time: it may have been told to stop as well. By another thread, with its own
    connection to the JVM: that of this one may wait for the answer to the call that was cut short."""

    def cancel() -> None:
        with suppress(Exception):
            context.cancelAllJobs()

    thread = threading.Thread(target=cancel, name="pgddl-cancel", daemon=True)
    thread.start()
    thread.join(CANCELLED_WITHIN)


def _distributed(context: SparkContext, parts: Sequence[T]) -> RDD[T]:
    """Each part in a partition of its own, so that a task gets its own part and no other.

    Parts travel in memory: what PySpark parallelizes goes through a file, and parts may hold a connection string."""
    from pyspark import RDD
    from pyspark.serializers import CPickleSerializer

    pickled = context._jvm.java.util.ArrayList()
    for part in parts:
        pickled.add(bytearray(pickle.dumps(part)))
    return RDD(context._jsc.parallelize(pickled, len(parts)), context, CPickleSerializer())


def _stopped(error: BaseException | None) -> bool:
    """Whether KeyboardInterrupt was on its way when it came up: PySpark talks to the JVM on its way out, over a
    connection whose call was cut short."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _jvm_ended(error: Exception) -> bool:
    """What Py4J says of a call that got no answer; an error in the JVM, or in a worker, has a Java exception to it. A
    cluster may also end the application from its side."""
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

    unanswered = isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    words = ("SparkContext was shut down", "stopped SparkContext", "JAVA_GATEWAY_EXITED")
    return unanswered or isinstance(error, (EOFError, ConnectionError)) or any(w in str(error) for w in words)


class NotNeeded(Exception):
    """What was to be spread has been done meanwhile."""


def start(app: str, *, workers: int, settings: Settings = DEFAULT, needed: Callable[[], bool] = lambda: True) -> int:
    """Starts the session and its workers now, so that what is spread later need not wait for them while it holds
    something, or counts how long it is kept waiting. Returns how many parts can run beside each other, at most
    `workers`; Retry where no executor has come for as long as `settings` say, NotNeeded where none is by then."""
    spread(be_there, [None] * workers, workers=workers, app=app, settings=settings, needed=needed)
    return max(1, min(workers, executor_slots.slots(begin(app, workers, settings))))


def begin(app: str, workers: int, settings: Settings) -> SparkContext:
    """The session, which is started where there is none yet; executors are not waited for."""
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        return SparkContext._active_spark_context
    try:
        return _new_context(app, workers, settings)
    except PgddlError:
        raise
    except Exception as error:
        if _stopped(error):
            raise KeyboardInterrupt from None
        if _jvm_ended(error):
            raise Retry(JVM_ENDED, todo="the stage tries again; it goes on where it was") from None
        raise


def _new_context(app: str, workers: int, settings: Settings) -> SparkContext:
    from pyspark import SparkConf, SparkContext

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # PySpark asks for pandas when it first talks to the JVM: more than a second, and a warning, for nothing here.
        sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
        SparkContext._ensure_initialized()
        conf = SparkConf()  # what spark-submit was given
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf = SparkConf(loadDefaults=False)
    master = retrying(conf.get("spark.master", None) or f"local[{workers}]")
    conf.setMaster(master)
    refuse(master, dict(conf.getAll()), settings.needs)
    conf.setIfMissing("spark.app.name", app)
    # Above this size a function's pickle would travel through a file.
    conf.setIfMissing("spark.broadcast.UDFCompressionThreshold", "1g")
    # Else it is not known of a task that has begun for as long as nothing else happens; see `JobWatch`.
    conf.setIfMissing("spark.ui.liveUpdate.period", "0ms")
    if not is_local(master):
        conf.setIfMissing("spark.cores.max", str(workers))  # a cluster of one's own would give us all that it has
    for key, value in local_conf(master).items():
        conf.setIfMissing(key, value)
    told_to_stop = signal.getsignal(signal.SIGINT)
    with repeating("pgddl-spark", SAY_AFTER, lambda: settings.say(f"waiting for {master} to take the application")):
        try:
            context = SparkContext.getOrCreate(conf)
        except Exception as error:
            if is_local(master) or _stopped(error) or _jvm_ended(error):
                raise
            raise Retry(
                f"{master} does not take the application",
                todo="look whether the master is up and reached from here, and whether it has the same "
                "spark.authenticate.secret; Spark's own messages are in the log above",
            ) from None
    if not is_local(master):
        settings.say(f"executors of {master} run {context.pythonExec}")
    settings.say_page(context.uiWebUrl)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, told_to_stop)  # it has put its own in the place
    context.setLogLevel("ERROR")
    return context


def base_conf(
    master: str, env: Mapping[str, str], archive: ClassArchive | None = None, *, in_cluster: bool = False
) -> dict[str, str]:
    """What spark-submit is given beside a user's settings, which win: no page of Spark's that anybody could open, and
    on a cluster this interpreter for the driver, whatever executors have, unless the cluster runs the driver, too."""
    if is_local(master):
        return local_conf(master, archive)
    if in_cluster:
        # Nothing of this machine is where the driver runs. One that failed is ours to begin again, not YARN's.
        return {"spark.ui.enabled": "false", **({"spark.yarn.maxAppAttempts": "1"} if master == "yarn" else {})}
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.pyspark.driver.python": env["PYSPARK_DRIVER_PYTHON"],
        "spark.driver.defaultJavaOptions": f"{_quiet()} {JAVA_OPTIONS}",
    }


def _quiet() -> str:
    if not Path(__file__).is_file():
        return ""  # a driver that has this package from a zip
    return f"-Dlog4j2.configurationFile={(application_folder() / 'log4j2.properties').as_uri()}"


def local_conf(master: str, archive: ClassArchive | None = None) -> dict[str, str]:
    """Spark settings that make an application in local mode quick, quiet and closed; none elsewhere."""
    if not is_local(master):
        return {}
    java = f"{_quiet()} {JAVA_OPTIONS}"
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A worker imports all of pyspark, whose warnings are not about this.
        "spark.executorEnv.PYTHONWARNINGS": "ignore::FutureWarning",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Its ports are open to every user of this machine. Spark makes the secret itself, anew for each application.
        "spark.authenticate": "true",
        # defaultJavaOptions, so that what a user gives as extraJavaOptions is added to these and wins.
        "spark.driver.defaultJavaOptions": f"{java} {archive.java_options}" if archive else java,
    }


def application_folder() -> Path:
    """Where the Spark applications are: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "spark_jobs", package.parent / "spark_jobs"):
        if folder.is_dir():
            return folder
    raise StageFailed(
        f"the Spark applications are missing: neither {package / 'spark_jobs'} nor a folder beside the package",
        todo="install airflow-provider-pgddl again",
    )


def application(stage: str) -> Path:
    """The Spark application of a stage."""
    return application_folder() / f"{stage}.py"


def engine_archive(folder: Path) -> Path:
    """The engine as a zip for workers on other machines, which need Python, psycopg and nothing else of ours.

    Not for local masters: workers there find the installed package, and the zip would shadow it in the driver.
    """
    package = Path(__file__).resolve().parents[2]
    archive = folder / "pgddl_engine.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bundle:
        # Folders too: without an entry of its own a folder that has no __init__.py is no package in a zip.
        for file in (package / "__init__.py", package / "engine", *sorted((package / "engine").rglob("*"))):
            if file.suffix in (".py", ".sql") or (file.is_dir() and file.name != "__pycache__"):
                bundle.write(file, Path(package.name) / file.relative_to(package))
    return archive


def carried(master: str, folder: Path) -> str | None:
    """What of ours travels to executors; nothing where they are on this machine."""
    return None if is_local(master) else str(engine_archive(folder))


def launch_env(
    env: Mapping[str, str], *, local: bool, binary: str = "spark-submit", in_cluster: bool = False
) -> dict[str, str]:
    """What spark-submit (or what else `binary` is) needs beside `env`: only what is missing or has to be changed.

    A virtual environment need not be on PATH: spark-submit is looked for beside this interpreter too, and driver and
    workers run on this interpreter unless told otherwise, or `in_cluster`: YARN takes these variables to the driver.
    """
    python = env.get("PYSPARK_PYTHON") or sys.executable
    driver = env.get("PYSPARK_DRIVER_PYTHON") or python
    added = {} if in_cluster else {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": driver}
    path = env.get("PATH", os.defpath)
    if shutil.which("spark-submit", path=path) is None:
        path = os.pathsep.join([path, *map(str, _folders_of_spark_submit())])
    added["PATH"] = path
    if local:
        # Otherwise Spark looks its own host name up, which fails or takes long on many machines.
        added["SPARK_LOCAL_IP"] = env.get("SPARK_LOCAL_IP") or "127.0.0.1"
        # For the JVM that only puts the command of the real one together.
        added["SPARK_LAUNCHER_OPTS"] = env.get("SPARK_LAUNCHER_OPTS") or JAVA_OPTIONS
    home = _home_of(shutil.which(binary, path=path)) if driver == sys.executable else None
    if home is not None and "SPARK_HOME" not in env:
        # What the script of a pip installation starts a Python of its own for, to find out.
        added["SPARK_HOME"] = str(home)
    return added


def _folders_of_spark_submit() -> list[Path]:
    home = _installed()
    return [Path(sys.executable).parent, *([home / "bin"] if home else [])]


def _installed() -> Path | None:
    """The folder of this interpreter's pyspark, which is not imported."""
    spec = importlib.util.find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _home_of(script: str | None) -> Path | None:
    """The home of the spark-submit that pip has installed with this interpreter's pyspark; None for any other."""
    home = _installed()
    if script is None or home is None or Path(script).parent not in _folders_of_spark_submit():
        return None
    return home if (home / "jars").is_dir() and not (home / "spark-distribution").exists() else None


def why_no_launch(env: Mapping[str, str], binary: str = "spark-submit") -> StageFailed | None:
    """What is missing on this machine to start `binary`; None where nothing is."""
    path = env.get("PATH", os.defpath)
    if shutil.which(binary, path=path) is None:
        return StageFailed(
            f"{binary} is not found on PATH nor beside {sys.executable}",
            todo="install it: pip install 'apache-airflow-providers-apache-spark[pyspark]'",
        )
    home = env.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else None
    if java is not None and not java.is_file():
        return StageFailed(f"JAVA_HOME is {home}, but there is no bin/java in it", todo="correct or unset JAVA_HOME")
    if java is None and shutil.which("java", path=path) is None:
        return StageFailed(
            "Java is not found, and Spark needs Java 17 or newer",
            todo="install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME",
        )
    return None


def command(
    binary: str,
    master: str,
    app: Path,
    job_file: Path,
    *,
    name: str,
    conf: Mapping[str, Any],
    py_files: str = "",
    properties: Path | None = None,
    files_in_cluster: str | None = None,
) -> list[str]:
    """The spark-submit call of the command line; operators leave this to Airflow's hook. `files_in_cluster` travel to
    the driver, the job file among them."""
    settings = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    carried = ["--py-files", py_files] if py_files else []
    carried += ["--properties-file", str(properties)] if properties is not None else []
    carried += ["--deploy-mode", "cluster", "--files", files_in_cluster] if files_in_cluster else []
    job = job_file.name if files_in_cluster else str(job_file)
    return [binary, "--master", master, "--name", name, *settings, *carried, str(app), job]
