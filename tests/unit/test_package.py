"""What a person installs: the wheel, the lock, the provider's description, and the look at Python and Java first."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import jsonschema
import pytest
from packaging.requirements import Requirement

from airflow_provider_pgddl import __version__, get_provider_info
from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "airflow_provider_pgddl"


def shipped(folder: Path, suffix: str) -> set[str]:
    """The files that git would know below a folder, relative to the repository."""
    return {path.relative_to(REPOSITORY).as_posix() for path in folder.rglob(f"*{suffix}")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in the wheel that is built from the source distribution, as an index would get both."""
    dist = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(REPOSITORY)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as archive:
        return set(archive.namelist())


def test_provider_info_passes_airflows_own_schema() -> None:
    import airflow

    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.Draft7Validator(schema).validate(get_provider_info())


def test_provider_info_imports_neither_airflow_nor_pyspark() -> None:
    code = (
        "import sys, airflow_provider_pgddl as p; p.get_provider_info();"
        "print([m for m in ('airflow', 'pyspark', 'psycopg', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_module_of_the_provider_info_exists() -> None:
    import importlib

    info = get_provider_info()
    for kind in ("operators", "sensors"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                importlib.import_module(module)
    for function in [*info["cli"], *info["extra-links"]]:
        module, _, name = function.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_the_page_is_a_plugin_that_airflow_finds() -> None:
    import importlib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    ((_, where),) = project["entry-points"]["airflow.plugins"].items()
    module, _, name = where.partition(":")
    plugin = getattr(importlib.import_module(module), name)
    assert plugin.name == "pgddl"
    assert [app["url_prefix"] for app in plugin.fastapi_apps] == ["/pgddl"]
    views = {view["destination"]: view["href"] for view in plugin.external_views}
    task = "/pgddl/{DAG_ID}?task={TASK_ID}"
    assert views == {"nav": "/pgddl/", "dag": "/pgddl/{DAG_ID}", "dag_run": "/pgddl/{DAG_ID}", "task_instance": task}
    routes = [view["url_route"] for view in plugin.external_views]
    assert len(routes) == len(set(routes)), "Airflow takes the first view of a route, wherever it is shown"


@pytest.mark.airflow
def test_airflow_lists_the_provider(tmp_path: Path) -> None:
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    command = [sys.executable, "-m", "airflow", "providers", "get", "airflow-provider-pgddl", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "Exception when importing" not in done.stdout + done.stderr
    listed = json.loads(done.stdout.splitlines()[-1])
    assert [(entry["Provider"], entry["Version"]) for entry in listed] == [("airflow-provider-pgddl", __version__)]


def test_the_wheel_has_the_applications_the_example_dags_and_all_sql(wheel: set[str]) -> None:
    applications = shipped(REPOSITORY / "spark_jobs", ".py")
    examples = shipped(REPOSITORY / "dags_examples", ".py") | shipped(REPOSITORY / "dags_examples", ".yaml")
    statements = shipped(PACKAGE, ".sql")
    assert applications
    assert examples
    assert statements
    assert {f"airflow_provider_pgddl/{name}" for name in applications | examples} <= wheel
    assert statements | shipped(PACKAGE, ".py") <= wheel
    page = {name for suffix in (".html", ".css", ".js") for name in shipped(PACKAGE / "page", suffix)}
    assert len(page) == 6 and page <= wheel
    assert "airflow_provider_pgddl/py.typed" in wheel


def test_the_wheel_has_nothing_else(wheel: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert tops == {"airflow_provider_pgddl", f"airflow_provider_pgddl-{__version__}.dist-info"}
    assert not [name for name in wheel if "test" in name.lower() or name.endswith(".pyc")]


def test_the_lock_pins_with_hashes_and_names_no_host() -> None:
    text = (REPOSITORY / "requirements.lock").read_text()
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip())
    assert len(entries) > 100
    for entry in entries:
        assert re.match(r"[A-Za-z0-9._-]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry
    assert not re.search(r"://|--index|--find-links|--extra-index|--trusted| @ ", text)


def test_the_lock_satisfies_what_the_package_asks_for() -> None:
    text = (REPOSITORY / "requirements.lock").read_text()
    locked = {name.lower().replace("_", "-"): v for name, v in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["demo"]]
    wanted += project["optional-dependencies"]["dev"]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(locked[requirement.name.lower()]), requirement
    assert locked["pyspark"] == locked["pyspark-client"]


# The programs below stand in for a Java or a Python that this machine does not have.


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A machine with coreutils, apt-get and a fitting Python."""
    for tool in ("sh", "sed", "head", "grep", "dirname"):
        found = shutil.which(tool)
        assert found
        (tmp_path / tool).symlink_to(found)
    program(tmp_path, "apt-get", "exit 0")
    program(tmp_path, "python3", 'case "$2" in *ensurepip*) exit 0 ;; esac; echo 3.11')
    return tmp_path


def java(folder: Path, version: str, module: str = "jdk.incubator.vector") -> None:
    program(
        folder,
        "java",
        f"""case "$1" in
-version) echo 'openjdk version "{version}" 2025-01-01' >&2 ;;
--list-modules) echo 'java.base@17'; echo '{module}@17' ;;
esac""",
    )


def prerequisites(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    script = REPOSITORY / ".ci" / "prerequisites"
    return subprocess.run([folder / "sh", script], capture_output=True, text=True, env={"PATH": str(folder), **env})


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.2", "25-ea"])
def test_a_fitting_machine_is_told_nothing(bare: Path, version: str) -> None:
    java(bare, version)
    done = prerequisites(bare)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(bare / "python3"), "")


@pytest.mark.parametrize("version", [None, "11.0.2", "1.8.0_392"])
def test_missing_or_old_java_is_one_line_with_the_command(bare: Path, version: str | None) -> None:
    if version:
        java(bare, version)
    done = prerequisites(bare)
    assert done.returncode == 1
    assert done.stderr == (
        f"Java 17 or newer is needed, found: {version or 'none'}. "
        "Install it with: sudo apt-get install -y openjdk-17-jre-headless\n"
    )


def test_a_java_without_the_vector_module_is_named(bare: Path) -> None:
    java(bare, "17.0.15", module="java.sql")
    done = prerequisites(bare)
    assert done.returncode == 1
    assert "lacks" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_java_home_that_is_not_there_is_named(bare: Path) -> None:
    java(bare, "17.0.15")
    done = prerequisites(bare, JAVA_HOME="/nowhere")
    assert done.returncode == 1
    assert "JAVA_HOME is /nowhere" in done.stderr


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 3.9", "3.9"),
        ("echo 3.14", "3.14"),
        ("exit 127", "none"),
        ('case "$2" in *ensurepip*) exit 1 ;; esac; echo 3.12', "3.12 (without venv)"),
    ],
)
def test_a_python_that_does_not_fit_is_one_line_with_the_command(bare: Path, script: str, found: str) -> None:
    java(bare, "17.0.15")
    program(bare, "python3", script)
    done = prerequisites(bare)
    assert done.returncode == 1
    assert done.stderr == (
        f"Python 3.11, 3.12 or 3.13 with venv is needed, found: {found}. "
        "Install it with: sudo apt-get install -y python3 python3-venv\n"
    )


def test_a_newer_python_beside_an_old_one_is_found(bare: Path) -> None:
    java(bare, "17.0.15")
    program(bare, "python3", "echo 3.9")
    program(bare, "python3.12", 'case "$2" in *ensurepip*) exit 0 ;; esac; echo 3.12')
    done = prerequisites(bare)
    assert (done.returncode, done.stdout.strip()) == (0, str(bare / "python3.12"))
