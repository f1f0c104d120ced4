"""The folder of one run's files: the job, its result, what the driver is given beside them. None of them is a secret.

A run that is killed leaves its folder behind; the next one, whoever's pipeline it runs, takes it away. Whose run is
still under way is told by a lock on the folder, which the kernel lets go with the process: a pid would be somebody
else's in another container that shares the folder above, or later.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

PREFIX = "pgddl-job-"  # versions that held no lock had another


def job_folder() -> AbstractContextManager[Path]:
    """A new folder that only its owner can look into, until the end of the block."""
    return own_folder(PREFIX)


@contextmanager
def own_folder(prefix: str) -> Iterator[Path]:
    """The same, whose name begins so."""
    remove_left(prefix)
    folder, lock = locked_folder(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left(prefix: str, top: str | None = None, owner: int | None = None) -> None:
    """Takes away what dead runs of this user, or of `owner`, have left. What cannot be taken away is nobody's error."""
    for folder in Path(top or tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            lock = _open(folder)
            try:
                if _is_ours(lock, os.geteuid() if owner is None else owner):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)  # it follows no link
            finally:
                os.close(lock)


def locked_folder(prefix: str, top: str | None = None) -> tuple[Path, int]:
    """A new one, and what locks it. Another run may take it for a dead one's until it is locked: then the next one."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=top))  # mode 0700
        try:
            lock = _open(folder)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        except OSError:  # a file system without locks: nobody takes it away
            return folder, lock
        if folder.exists():
            return folder, lock
        os.close(lock)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _is_ours(folder: int, owner: int) -> bool:
    state = os.fstat(folder)
    return state.st_uid == owner and not state.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
