"""An archive of Spark's loaded classes: with it the JVM of spark-submit computes a third less.

A JVM writes it at its end, which takes seconds. So that is done once for a Java and a Spark, and not by the first run
that makes our cache folder: in a container that is thrown away with its run nobody would ever read it. A JVM that does
not recognize an archive as its own goes on without; one that a run came to grief with is taken away. But a JVM that is
to write one and cannot (an agent is loaded, or its own archive is missing) does not start: it is asked before, and
where somebody has told JVMs anything, none is made.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# What a JVM says of an archive that it cannot use, or of a class that it cannot put into one, is nobody's concern.
_QUIET = "-Xlog:cds*=off,class+path*=off"
TRY_AGAIN = 24 * 3600.0  # seconds after a run that was to make an archive and left none
ASKED = 60  # seconds for a JVM to start and end
# What tells every JVM, or every one of Spark's, something that we do not see.
_TOLD_BY = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR")


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
                number, beside = tempfile.mkstemp(dir=self.path.parent)
                try:
                    with self.draft.open("rb") as written, open(number, "wb") as copy:
                        shutil.copyfileobj(written, copy)
                        copy.flush()
                        os.fsync(copy.fileno())  # a JVM would die of an archive that a crash has cut short
                    os.replace(beside, self.path)
                except BaseException:
                    os.unlink(beside)
                    raise


def class_archive(
    env: Mapping[str, str], folder: Path, binary: str = "spark-submit", *, told: bool = False
) -> ClassArchive | None:
    """The archive of the Java and the Spark that `env` leads to; `folder` is the run's own. None where there is none
    and this run is not to make it, for one where its JVM is `told` anything by others."""
    home = env.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=env.get("PATH"))
    script = shutil.which(binary, path=env.get("PATH"))
    try:
        top = env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or Path.home(), ".cache")
        cache = Path(top, "pgddl", "jvm")
        if java is None or script is None or any(c.isspace() or c in "\"'\\" for c in f"{cache}{folder}"):
            return None
        if not cache.exists():
            Path(top).mkdir(parents=True, exist_ok=True)
            for made in (cache.parent, cache):
                made.mkdir(mode=0o700, exist_ok=True)
            return None
        if not (_ours(cache.parent) and _ours(cache)):
            return None
        path = cache / f"spark-{_key(Path(java), Path(script), env.get('SPARK_HOME', ''))}.jsa"
        if path.exists():
            return ClassArchive(path, None)
        tried = path.with_suffix(".tried")
        if tried.exists() and time.time() - tried.stat().st_mtime < TRY_AGAIN:
            return None  # another run makes it, or was killed, or came to grief with it
        tried.touch()
        if told or _is_told(env) or not _can_write(java, env, folder):
            return None
    except (OSError, RuntimeError, subprocess.TimeoutExpired):  # such as no home folder
        return None
    return ClassArchive(path, folder / "classes.jsa")


def _is_told(env: Mapping[str, str]) -> bool:
    """Whether JVMs get options from elsewhere; where Spark's home is not known, neither are its defaults."""
    home = env.get("SPARK_HOME")
    return any(env.get(name) for name in _TOLD_BY) or not home or Path(home, "conf", "spark-defaults.conf").exists()


def _can_write(java: str, env: Mapping[str, str], folder: Path) -> bool:
    """Whether this Java makes archives at all."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [java, f"-XX:ArchiveClassesAtExit={scratch}/classes.jsa", *_QUIET.split(), "-version"]
        return subprocess.run(command, env=env, capture_output=True, timeout=ASKED, check=False).returncode == 0


def _key(java: Path, script: Path, spark_home: str) -> str:
    told = [spark_home]
    for file in (java.resolve(), script.resolve()):
        told += [str(file), str(file.stat().st_mtime_ns)]
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:16]


def _ours(folder: Path) -> bool:
    """What is in it becomes code: nobody else may write to it."""
    state = folder.lstat()
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o022
