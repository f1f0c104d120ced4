"""The job file: what an operator, or the command line, hands to a Spark application; and that application's life.

The file carries no secret. It names environment variables; in client mode the driver inherits them from
spark-submit, and they show nowhere else (not in argv, not in Spark's configuration). Where a cluster runs the driver,
the file has connection strings without a password, which stands in a file that is there.
"""

from __future__ import annotations

import json
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from airflow_provider_pgddl.engine.errors import PgddlError, UsageError
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.names import table_name
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.server.credentials import handed_out_here

End = Literal["source", "target"]

# Where the driver finds the conninfo of each side.
SECRETS: Mapping[End, str] = {"source": "PGDDL_SOURCE_CONNINFO", "target": "PGDDL_TARGET_CONNINFO"}

# A process's start time is computed from the boot time, which two readers may round differently by a second.
START_TOLERANCE = 2.0


@dataclass(frozen=True, slots=True)
class Watched:
    """The process on whose behalf a job runs: pid and start time, so that a reused pid is not mistaken for it."""

    pid: int
    started: float

    @classmethod
    def me(cls) -> Watched:
        """The calling process."""
        import psutil

        return cls(os.getpid(), psutil.Process().create_time())

    def alive(self) -> bool:
        """Whether that very process still runs; one that died and was not reaped yet does not."""
        import psutil

        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started) > START_TOLERANCE:
                return False
            return process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True


@dataclass(frozen=True, slots=True)
class Job:
    """One stage of one pipeline, to be run once, or several in one application: `then` are those behind the first.
    `tables` limits them to these (`schema.table`), None means all."""

    stage: str
    pipeline: Pipeline
    tables: tuple[str, ...] | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    watch: Watched | None = None
    secrets: Mapping[str, str] = field(default_factory=dict)
    result_path: str | None = None
    dry_run: bool = False
    again: bool = False  # of setup: begin the next run of a pipeline that is finished
    reconfigure: bool = False  # of setup: take up a file that has changed
    drop: bool = False  # with it: drop the copies of tables that are taken out
    mend: bool = False  # of verify: read again what differs
    asked: bool = False  # of verify: by a person, for whom what was compared just now is compared again
    master: str | None = None  # Spark's, where it is known to whoever submits
    then: tuple[str, ...] = ()
    known_as: str | None = None  # of a driver that a cluster runs elsewhere: see launch.far_driver
    ends: Mapping[str, str] = field(default_factory=dict)  # its connection strings, which name a password file

    FORMAT: ClassVar[int] = 1

    @property
    def stages(self) -> tuple[str, ...]:
        """All of them, in their order."""
        return (self.stage, *self.then)

    def each(self) -> Iterator[Job]:
        """Each stage as a job of its own, which the journal knows by an id of its own."""
        if not self.then:
            yield self
            return
        for number, stage in enumerate(self.stages):
            yield replace(
                self,
                stage=stage,
                then=(),
                id=f"{self.id}-{number}" if number else self.id,
                again=self.again and stage == "setup",
                reconfigure=self.reconfigure and stage == "setup",
                drop=self.drop and stage == "setup",
                mend=self.mend and stage == "verify",
                asked=self.asked and stage == "verify",
            )

    def without_first(self, stages: int) -> Job:
        """What is left behind so many stages, which must not be all."""
        first, *others = self.stages[stages:]
        return replace(self, stage=first, then=tuple(others))

    def conninfo(self, side: End) -> str:
        """The connection string of one side; in place both are the source's. Never log it."""
        if side == "target" and self.pipeline.in_place:
            side = "source"
        if side in self.ends:
            return self.ends[side]
        if name := self.secrets.get(side):
            try:
                return os.environ[name]
            except KeyError:
                raise UsageError(
                    f"the environment variable {name} with the {side}'s connection string is not set",
                    todo="start the stage through its operator or `pgddl run`, or set the variable",
                ) from None
        endpoint = self.pipeline.source if side == "source" else self.pipeline.target
        assert endpoint is not None
        if endpoint.dsn_command is not None:
            return handed_out_here(endpoint, partial(endpoint.resolve, os.environ))
        return endpoint.resolve(os.environ)

    def to_json(self) -> dict[str, Any]:
        """The file's content; it holds no secret."""
        return {
            "format": self.FORMAT,
            "stage": self.stage,
            "pipeline": self.pipeline.to_json(),
            "tables": None if self.tables is None else list(self.tables),
            "id": self.id,
            "watch": None if self.watch is None else {"pid": self.watch.pid, "started": self.watch.started},
            "secrets": dict(self.secrets),
            "result": self.result_path,
            "dry_run": self.dry_run,
            "again": self.again,
            "reconfigure": self.reconfigure,
            "drop": self.drop,
            "mend": self.mend,
            "asked": self.asked,
            "master": self.master,
            "then": list(self.then),
            "known_as": self.known_as,
            "ends": dict(self.ends),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Job:
        """The job of a file's content; `UsageError` for anything that `to_json` does not write."""
        keys = {
            "format",
            "stage",
            "pipeline",
            "tables",
            "id",
            "watch",
            "secrets",
            "result",
            "dry_run",
            "again",
            "reconfigure",
            "drop",
            "mend",
            "asked",
            "master",
            "then",
            "known_as",
            "ends",
        }
        if unknown := sorted(set(content) - keys):
            raise UsageError(f"the job file has keys that this version does not know: {', '.join(unknown)}")
        if missing := sorted({"format", "stage", "pipeline"} - set(content)):
            raise UsageError(f"the job file lacks {', '.join(missing)}")
        if content["format"] != cls.FORMAT:
            raise UsageError(
                f"the job file has format {content['format']}, this version reads {cls.FORMAT}",
                todo="install the same version of airflow-provider-pgddl where jobs are made and where they run",
            )
        given = {key: value for key, value in content.items() if value is not None}
        for key, (is_right, what) in _WRITTEN.items():
            if key in given and not is_right(given[key]):
                raise UsageError(f"the job file's {key} is not {what}")
        watch = given.get("watch")
        return cls(
            stage=given["stage"],
            pipeline=load_pipeline(content["pipeline"]),
            tables=names(given.get("tables")),
            id=given.get("id") or uuid.uuid4().hex,
            watch=None if watch is None else Watched(int(watch["pid"]), float(watch["started"])),
            secrets=given.get("secrets", {}),
            result_path=given.get("result"),
            dry_run=given.get("dry_run", False),
            again=given.get("again", False),
            reconfigure=given.get("reconfigure", False),
            drop=given.get("drop", False),
            mend=given.get("mend", False),
            asked=given.get("asked", False),
            master=given.get("master"),
            then=tuple(given.get("then", ())),
            known_as=given.get("known_as"),
            ends=given.get("ends", {}),
        )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


# What each key of the file holds where it is given, in words.
_WRITTEN: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "stage": (_is_text, "a stage's name"),
    "tables": (lambda v: isinstance(v, list) and all(map(_is_text, v)), "a list of names"),
    "id": (_is_text, "a text"),
    "watch": (
        lambda v: isinstance(v, dict) and all(type(v.get(key)) in (int, float) for key in ("pid", "started")),
        "a process: its pid, and when it was started",
    ),
    "secrets": (
        lambda v: isinstance(v, dict) and all(map(_is_text, v.values())),
        "the names of environment variables, by side",
    ),
    "result": (_is_text, "a path"),
    "dry_run": (lambda v: isinstance(v, bool), "true or false"),
    "again": (lambda v: isinstance(v, bool), "true or false"),
    "reconfigure": (lambda v: isinstance(v, bool), "true or false"),
    "drop": (lambda v: isinstance(v, bool), "true or false"),
    "master": (_is_text, "a text"),
    "mend": (lambda v: isinstance(v, bool), "true or false"),
    "asked": (lambda v: isinstance(v, bool), "true or false"),
    "then": (lambda v: isinstance(v, list) and all(map(_is_text, v)), "a list of stages"),
    "known_as": (_is_text, "a text"),
    "ends": (lambda v: isinstance(v, dict) and all(map(_is_text, v.values())), "connection strings, by side"),
}


def names(tables: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """Tables as people and templates give them: one name, several, or None for all. One that is given twice, also in
    another writing, is there once. UsageError for what cannot be the name of a table."""
    if tables is None:
        return None
    given = (tables,) if isinstance(tables, str) else tuple(tables)
    found = dict[Name, str]()
    for name in given:
        try:
            found.setdefault(table_name(name), name)
        except ValueError as error:
            raise UsageError(str(error), todo="`pgddl status` and `pgddl check` list the tables") from None
    return tuple(found.values())


def write_private(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON that only its owner can read, whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
    os.replace(draft, path)


def write(job: Job, path: Path) -> None:
    """Write the job file."""
    write_private(path, job.to_json())


def read(path: str | os.PathLike[str]) -> Job:
    """Read a job file; `UsageError` says what is wrong with it."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the job file {os.fspath(path)} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"the job file {os.fspath(path)} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"the job file {os.fspath(path)} is not a JSON object")
    return Job.from_json(content)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job left in its result file: the stage's result, or the error that ended it. Of several stages the result
    is `{"stages": [...]}`, one for each that came to an end, beside the error of the one that did not."""

    exit_code: int
    result: Mapping[str, Any] | None
    error: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        return {"exit_code": self.exit_code, "result": self.result, "error": self.error}

    @property
    def retryable(self) -> bool:
        """Whether starting the same job again may help."""
        return bool(self.error and self.error.get("retryable"))

    @property
    def cause(self) -> str:
        """The name of the error's class; "" where there was none."""
        return str((self.error or {}).get("error", ""))

    def explain(self) -> str:
        """The error the way its class prints it."""
        if not self.error:
            return ""
        shown = PgddlError(
            str(self.error.get("what")),
            table=self.error.get("table"),
            todo=self.error.get("todo"),
            sql=self.error.get("sql"),
        )
        return str(shown)


def read_outcome(path: Path) -> Outcome | None:
    """The result file; None where the application ended without writing one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return Outcome(content["exit_code"], content["result"], content["error"])


__all__ = [
    "SECRETS",
    "Job",
    "Outcome",
    "Watched",
    "names",
    "read",
    "read_outcome",
    "write",
    "write_private",
]
