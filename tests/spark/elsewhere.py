"""A stand-in for a cluster that runs drivers: what `spark-submit --deploy-mode cluster` is to YARN and Kubernetes.

The driver begins in a folder of its own that holds copies of what the command line names and nothing else, with an
environment and a folder for temporary files of its own, in a session of its own; as another user where there is the
right to. `spark-submit` waits for its end and tells no more of it than failed or not. A standalone cluster would not
do: it takes no Python application in cluster mode."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from airflow_provider_pgddl.engine.failpoints import VARIABLE

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
FOLDER = "PGDDL_TEST_ELSEWHERE"
OPTIONS_WITH_FILES = ("--files", "--py-files", "--archives")


class Elsewhere:
    """Its `bin` goes first on PATH; `containers` are the folders of the drivers that have run, in order."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pgddl-elsewhere-"))
        self.folder.chmod(0o755)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        script = self.bin / "spark-submit"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" "$@"\n')
        script.chmod(0o755)
        self.user = NOBODY if _may_be_nobody() else os.getuid()
        self.image({})

    def image(self, variables: dict[str, str]) -> None:
        """What the drivers to come find in their environment."""
        (self.folder / "image.json").write_text(json.dumps({"user": self.user, "variables": variables}))

    def strikes(self, name: str, failpoint: str) -> Path:
        """Turns a failpoint on for the drivers to come; the folder of its marks."""
        marks = self.folder / name
        marks.mkdir()
        self.image({VARIABLE: f"{self.owned(marks)} {failpoint}"})
        return marks

    def owned(self, path: Path) -> Path:
        """A file, or a folder, of the drivers' user."""
        os.chown(path, self.user, -1)
        return path

    @property
    def containers(self) -> list[Path]:
        return sorted(self.folder.glob("container-*"))

    def driver(self) -> int:
        """The process of the last one."""
        return int((self.containers[-1] / "pid").read_text())

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _may_be_nobody() -> bool:
    """Whether another user can be had, and finds Python and this package, in whatever it starts."""
    needed = (Path(sys.executable).resolve(), Path(sys.prefix, "bin"), Path(__file__).resolve())
    return (
        os.getuid() == 0
        and shutil.which(AS_NOBODY[0]) is not None
        and all(folder.stat().st_mode & stat.S_IXOTH for path in needed for folder in path.parents)
    )


def submit(argv: list[str]) -> int:
    folder = Path(os.environ[FOLDER])
    image = json.loads((folder / "image.json").read_text())
    container = folder / f"container-{len(list(folder.glob('container-*'))):02}"
    container.mkdir()
    (container / "argv.json").write_text(json.dumps(argv))
    given, rest = _options(argv)
    copied = {
        option: [_copy(Path(file), container) for file in given.get(option, "").split(",") if file]
        for option in OPTIONS_WITH_FILES
    }
    application = _copy(Path(rest[0]), container)
    (container / "tmp").mkdir()
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(container),
        "TMPDIR": str(container / "tmp"),
        "PYTHONPATH": os.pathsep.join(map(str, copied["--py-files"])),
        "PYTHONDONTWRITEBYTECODE": "1",
        **image["variables"],
    }
    for path in (container, *container.rglob("*")):
        os.chown(path, image["user"], -1)
    with (container / "log").open("w") as log:
        driver = subprocess.Popen(
            [*(AS_NOBODY if image["user"] != os.getuid() else ()), sys.executable, application.name, *rest[1:]],
            cwd=container, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    (container / "pid").write_text(str(driver.pid))
    print("Submitted application application_1_0001", flush=True)
    return 1 if driver.wait() else 0


def _options(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """Each option has a value; what comes behind them is the application with its arguments."""
    given, number = dict[str, str](), 0
    while argv[number].startswith("--"):
        given[argv[number]] = argv[number + 1]
        number += 2
    return given, argv[number:]


def _copy(file: Path, folder: Path) -> Path:
    return Path(shutil.copy(file, folder))


if __name__ == "__main__":
    sys.exit(submit(sys.argv[1:]))
