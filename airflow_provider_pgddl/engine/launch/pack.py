"""`pgddl pack`: what executors need beside Python and the engine, as an archive for `spark.archives`.

Parts of it are compiled for one Python on one kind of machine, so it says which, and a driver of another refuses it."""

from __future__ import annotations

import gzip
import json
import os
import platform
import sys
import tarfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from io import BytesIO
from pathlib import Path

from airflow_provider_pgddl.engine.errors import PreflightRefused, StageFailed

# Distributions that spread functions import, with what these need.
NEEDED = (
    "psycopg", "psycopg-binary", "typing-extensions", "pydantic", "pydantic-core", "annotated-types",
    "typing-inspection", "postgast", "protobuf",
)  # fmt: skip
_OPTIONAL = {"psycopg-binary", "protobuf"}
MADE_FOR = "pgddl-made-for.json"


def here() -> dict[str, str]:
    """The Python and the machine of this process, as far as compiled parts depend on them."""
    return {
        "python": f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}",
        "machine": f"{platform.system()} {platform.machine()}",
    }


def pack(archive: Path) -> dict[str, str]:
    """Writes the archive from this interpreter's packages, the same bytes each time; returns what it was made for.
    What was there stays until the new one is whole. StageFailed for a package that is missing, or of which nobody
    knows the files."""
    made_for = here()
    files = sorted((place, file) for name in NEEDED for file, place in _files(name))
    fresh = archive.with_name(f".{archive.name}.{os.getpid()}")
    try:
        with (
            fresh.open("xb") as out,
            gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=out, mtime=0) as zipped,
            tarfile.open(mode="w", fileobj=zipped) as tar,
        ):
            _add(tar, MADE_FOR, json.dumps(made_for).encode())
            for place, file in files:
                _add(tar, place, file.read_bytes(), executable=bool(file.stat().st_mode & 0o111))
        fresh.replace(archive)
    finally:
        fresh.unlink(missing_ok=True)
    return made_for


def _add(tar: tarfile.TarFile, place: str, content: bytes, *, executable: bool = False) -> None:
    """With nothing of the machine: no owner, no time, no link."""
    info = tarfile.TarInfo(place)
    info.size, info.mode = len(content), 0o755 if executable else 0o644
    tar.addfile(info, BytesIO(content))


def _files(name: str) -> Iterator[tuple[Path, str]]:
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        if name in _OPTIONAL:
            return
        raise StageFailed(f"{name} is not installed here", todo=f"pip install {name}") from None
    if not distribution.files:
        raise StageFailed(
            f"the installation of {name} does not say which files it has (RECORD)",
            todo=f"install it with pip: pip install --force-reinstall {name}",
        )
    for file in distribution.files:
        place = Path(distribution.locate_file(file))  # type: ignore[arg-type]
        if ".." not in file.parts and file.suffix != ".pyc" and place.is_file():
            yield place, str(file)


def refuse_other(conf: Mapping[str, str], archives: str | None = None) -> None:
    """PreflightRefused where `spark.archives`, or `archives` beside it, name one of ours that was made for another
    Python or machine."""
    for place in filter(None, f"{conf.get('spark.archives', '')},{archives or ''}".split(",")):
        file = Path(place.partition("#")[0].removeprefix("file://"))
        if not file.is_file() or not tarfile.is_tarfile(file):
            continue
        with tarfile.open(file) as tar:
            first = tar.next()
            content = tar.extractfile(first) if first is not None and first.name == MADE_FOR else None
            made_for = json.loads(content.read()) if content is not None else here()
        if made_for != here():
            raise PreflightRefused(
                f"{file} was made for {made_for['python']} on {made_for['machine']}, and the driver is "
                f"{here()['python']} on {here()['machine']}",
                todo="make it by the driver's interpreter on a machine like the executors': pgddl pack -o env.tar.gz",
            )
