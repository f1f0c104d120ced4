"""An archive of Spark's loaded classes: with it the JVM of spark-submit computes a third less.

A JVM writes it at its end, which takes seconds. So that is done once for a Java and a Spark, and not by the first run
that makes our cache folder: in a container that is thrown away with its run nobody would ever read it. A JVM that does
not recognize an archive as its own goes on without; one that a run came to grief with is taken away.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# What a JVM says of an archive that it cannot use, or of a class that it cannot put into one, is nobody's concern.
_QUIET = "-Xlog:cds*=off,class+path*=off"
TRY_AGAIN = 24 * 3600.0  # seconds after a run that was to make an archive and left none


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one run; `draft` is where this run's JVM writes one, None where it only reads."""

    path: Path
    draft: Path | None

    @property
    def java_options(self) -> str:
        """What the JVM is told."""
        told = f"-XX:ArchiveClassesAtExit={self.draft}" if self.draft else f"-XX:SharedArchiveFile={self.path}"
        return f"{told} {_QUIET}"

    def settle(self, *, ended: bool, well: bool) -> None:
        """Behind a run that has `ended` with a result or not. What a JVM has written that ended `well` is for the runs
        to come; where a run has left no result, the archive may be why."""
        with suppress(OSError):
            if not ended:
                self.path.unlink(missing_ok=True)
            elif well and self.draft is not None:
                beside = self.path.with_suffix(f".{os.getpid()}")
                with self.draft.open("rb") as written, beside.open("wb") as copy:
                    shutil.copyfileobj(written, copy)
                    copy.flush()
                    os.fsync(copy.fileno())  # a JVM would die of an archive that a crash has cut short
                os.replace(beside, self.path)


def class_archive(env: Mapping[str, str], folder: Path, binary: str = "spark-submit") -> ClassArchive | None:
    """The archive of the Java and the Spark that `env` leads to; `folder` is the run's own. None where there is none
    and this run is not to make it."""
    cache = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache", "pgddl", "jvm")
    home = env.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=env.get("PATH"))
    script = shutil.which(binary, path=env.get("PATH"))
    if java is None or script is None or any(c.isspace() or c in "\"'\\" for c in f"{cache}{folder}"):
        return None
    try:
        if not cache.exists():
            cache.mkdir(mode=0o700, parents=True)
            return None
        if not _ours(cache):
            return None
        path = cache / f"spark-{_key(Path(java), Path(script), env.get('SPARK_HOME', ''))}.jsa"
        if path.exists():
            return ClassArchive(path, None)
        tried = path.with_suffix(".tried")
        if tried.exists() and time.time() - tried.stat().st_mtime < TRY_AGAIN:
            return None  # another run makes it, or was killed, or came to grief with it
        tried.touch()
    except OSError:
        return None
    return ClassArchive(path, folder / "classes.jsa")


def _key(java: Path, script: Path, spark_home: str) -> str:
    told = [spark_home]
    for file in (java.resolve(), script.resolve()):
        told += [str(file), str(file.stat().st_mtime_ns)]
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:16]


def _ours(folder: Path) -> bool:
    """What is in it becomes code: nobody else may write to it."""
    state = folder.lstat()
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o022
