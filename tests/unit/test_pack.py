"""`pgddl pack`: an archive that is whole or not there, and the same wherever it is made of the same packages."""

from __future__ import annotations

import os
import tarfile
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.launch import pack as packing


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a module, a program and a link, which is all that executors need."""
    folder = tmp_path / "site"
    (folder / "thing").mkdir(parents=True)
    (folder / "thing" / "module.py").write_text("x = 1\n")
    (folder / "thing" / "program").write_text("#!/bin/sh\n")
    (folder / "thing" / "program").chmod(0o700)
    (tmp_path / "elsewhere.so").write_text("compiled")
    (folder / "thing" / "part.so").symlink_to(tmp_path / "elsewhere.so")
    names = ["thing/part.so", "thing/module.py", "thing/program", "thing/gone.pyc", "../bin/thing"]
    found = SimpleNamespace(
        files=[metadata.PackagePath(name) for name in names], locate_file=lambda file: folder / str(file)
    )
    monkeypatch.setattr(packing, "NEEDED", ("thing",))
    monkeypatch.setattr(metadata, "distribution", lambda _: found)
    return folder


def members(archive: Path) -> dict[str, tuple[Any, ...]]:
    with tarfile.open(archive) as tar:
        return {m.name: (m.isreg(), m.mode, m.uid, m.gid, m.uname, m.gname, m.mtime) for m in tar}


def test_two_of_the_same_packages_are_equal(installed: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.tar.gz", tmp_path / "two.tar.gz"
    packing.pack(one)
    for file in (installed / "thing").iterdir():
        os.utime(file, (1, 1))
    (installed / "thing" / "module.py").chmod(0o600)
    packing.pack(two)
    assert one.read_bytes() == two.read_bytes()
    plain = (True, 0o644, 0, 0, "", "", 0)
    assert members(one) == {
        packing.MADE_FOR: plain, "thing/module.py": plain, "thing/part.so": plain,
        "thing/program": (True, 0o755, *plain[2:]),
    }  # fmt: skip
    assert next(iter(members(one))) == packing.MADE_FOR  # where it is looked for
    with tarfile.open(one) as tar:
        assert tar.extractfile("thing/part.so").read() == b"compiled"  # type: ignore[union-attr]


def test_a_failure_leaves_what_was_there(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "env.tar.gz"
    archive.write_text("the good one")
    before = sorted(tmp_path.iterdir())

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(tarfile.TarFile, "addfile", full)
        with pytest.raises(OSError, match="No space left"):
            packing.pack(archive)
    assert archive.read_text() == "the good one" and sorted(tmp_path.iterdir()) == before
    packing.pack(archive)
    assert "thing/module.py" in members(archive) and sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("files", [None, []])
def test_a_package_that_does_not_tell_its_files_is_refused(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Any
) -> None:
    monkeypatch.setattr(metadata.distribution("thing"), "files", files)
    with pytest.raises(StageFailed, match="thing does not say which files it has"):
        packing.pack(tmp_path / "env.tar.gz")
    assert not (tmp_path / "env.tar.gz").exists()
