"""The archive of Spark's classes: made once, in the second run, and never the reason why a stage does not start."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_pgddl.engine.parallel import spark
from airflow_provider_pgddl.engine.parallel.class_archive import TRY_AGAIN, ClassArchive, class_archive

pytestmark = pytest.mark.spark

Submit = Callable[..., tuple[ClassArchive | None, str]]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    found = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    return found | spark.launch_env(found, local=True)


@pytest.fixture
def submit(env: dict[str, str], tmp_path: Path) -> Submit:
    """Submits a script that says hello, as a stage is submitted; returns its archive and all that was said."""

    def run() -> tuple[ClassArchive | None, str]:
        (tmp_path / "app.py").write_text("print('hello')")
        archive = class_archive(env, tmp_path)
        conf = spark.local_conf("local[2]", archive) | {
            "spark.driver.extraJavaOptions": f"-Xlog:class+load:file={tmp_path}/classes"
        }
        command = spark.command("spark-submit", "local[2]", tmp_path / "app.py", tmp_path / "job", name="t", conf=conf)
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        if archive is not None:
            archive.settle(ended="hello" in done.stdout, well=done.returncode == 0)
        return archive, done.stdout + done.stderr

    return run


def quiet(said: str) -> list[str]:
    """Without what every JVM of Spark says."""
    return [line for line in said.splitlines() if "incubator" not in line]


def test_the_second_run_makes_it_and_the_third_reads_it(submit: Submit, tmp_path: Path) -> None:
    shared = "org.apache.spark.deploy.SparkSubmit source: shared objects file (top)"
    assert submit()[0] is None
    made, said = submit()
    assert made is not None
    assert made.draft is not None
    assert quiet(said) == ["hello"]
    assert shared not in (tmp_path / "classes").read_text()
    read, said = submit()
    assert read == ClassArchive(made.path, None)
    assert quiet(said) == ["hello"]
    assert shared in (tmp_path / "classes").read_text()


def test_one_that_a_run_came_to_grief_with_is_taken_away(submit: Submit, env: dict[str, str], tmp_path: Path) -> None:
    class_archive(env, tmp_path)
    made, _ = submit()
    assert made is not None
    whole = made.path.read_bytes()
    made.path.write_bytes(whole[: len(whole) // 2])
    _, said = submit()
    assert "hello" not in said
    after, said = submit()
    assert after is None
    assert quiet(said) == ["hello"]


def test_what_is_no_archive_is_not_read(submit: Submit, env: dict[str, str], tmp_path: Path) -> None:
    class_archive(env, tmp_path)
    made = class_archive(env, tmp_path)
    assert made is not None
    made.path.write_text("no archive")
    assert quiet(submit()[1]) == ["hello"]


def test_two_runs_do_not_both_make_it(env: dict[str, str], tmp_path: Path) -> None:
    class_archive(env, tmp_path)
    assert class_archive(env, tmp_path) is not None
    assert class_archive(env, tmp_path) is None


def test_a_day_after_one_that_was_killed_another_makes_it(env: dict[str, str], tmp_path: Path) -> None:
    class_archive(env, tmp_path)
    made = class_archive(env, tmp_path)
    assert made is not None
    yesterday = time.time() - TRY_AGAIN
    os.utime(made.path.with_suffix(".tried"), (yesterday, yesterday))
    assert class_archive(env, tmp_path) == made


def test_a_folder_that_others_may_write_to_is_not_used(env: dict[str, str], tmp_path: Path) -> None:
    class_archive(env, tmp_path)
    (tmp_path / "cache" / "pgddl" / "jvm").chmod(0o777)
    assert class_archive(env, tmp_path) is None


@pytest.mark.parametrize(
    "told", [{"JAVA_TOOL_OPTIONS": "-Xshare:off"}, {"SPARK_CONF_DIR": "/etc/spark"}, {"SPARK_HOME": ""}]
)
def test_none_is_made_where_somebody_has_told_jvms_anything(
    env: dict[str, str], tmp_path: Path, told: dict[str, str]
) -> None:
    class_archive(env, tmp_path)
    assert class_archive(env | told, tmp_path) is None


def test_none_is_made_by_a_java_that_cannot(env: dict[str, str], tmp_path: Path) -> None:
    """As one without its own archive, which does not start then."""
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text('#!/bin/sh\ncase "$*" in *ArchiveClassesAtExit*) exit 1;; esac\n')
    java.chmod(0o755)
    env |= {"JAVA_HOME": str(tmp_path)}
    class_archive(env, tmp_path)
    assert class_archive(env, tmp_path) is None


def test_there_may_be_no_home(env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    nowhere = {key: value for key, value in env.items() if key not in ("HOME", "XDG_CACHE_HOME")}
    assert class_archive(nowhere, tmp_path) is None
