"""Spark's settings: which are refused, and how they are read and written."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import get_args

import pytest

from airflow_provider_pgddl.engine.errors import PipelineFileError, UsageError
from airflow_provider_pgddl.engine.parallel import spark_settings
from airflow_provider_pgddl.engine.parallel.executor_slots import unable
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.spark import Needs

HEAD = "spark://head:7077"
AUTHENTICATED = {"spark.authenticate": "true"}
ALL_NEEDS: tuple[Needs, ...] = get_args(Needs)
CRYPTO = {"spark.network.crypto.enabled": "true"}


def pipeline(**spark: object) -> dict[str, object]:
    return {"pipeline": "shop", "source": {"conn_id": "a"}, "target": {"conn_id": "b"},
            "tables": {"include": ["public.*"]}, "spark": spark}  # fmt: skip


@pytest.mark.parametrize(
    ("master", "given"),
    [
        ("local", {}),
        ("local[2]", {}),
        ("local-cluster[1,2,512]", {}),
        (HEAD, AUTHENTICATED | CRYPTO),
        ("yarn", AUTHENTICATED | {"spark.ssl.rpc.enabled": "TRUE"}),
        ("k8s://https://host", AUTHENTICATED | CRYPTO | {"spark.submit.deployMode": "client"}),
    ],
)
def test_what_nobody_else_can_read_is_taken(master: str, given: dict[str, str]) -> None:
    for needs in ALL_NEEDS:
        spark_settings.refuse(master, given, needs)


@pytest.mark.parametrize("master", [HEAD, "yarn", "k8s://https://host", "localhost", "spark://localhost:7077"])
@pytest.mark.parametrize("given", [{}, AUTHENTICATED, CRYPTO, AUTHENTICATED | {"spark.network.crypto.enabled": "no"}])
def test_passwords_in_plain_text_are_refused_unless_asked_for(master: str, given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="is not encrypted") as refused:
        spark_settings.refuse(master, given, load_pipeline(pipeline()).spark.needs)
    assert refused.value.exit_code == 2
    spark_settings.refuse(master, given, load_pipeline(pipeline(allow_plaintext=True)).spark.needs)


@pytest.mark.parametrize("master", [HEAD, "yarn", "k8s://https://host"])
def test_a_password_file_does_without_encryption_and_keeps_nobody_out(master: str) -> None:
    """Whoever may speak to the driver or an executor has it run what he sends."""
    told = load_pipeline(pipeline(secrets={"file": "/etc/pgddl/pgpass"})).spark
    spark_settings.refuse(master, AUTHENTICATED, told.needs)
    for given in ({}, CRYPTO, {"spark.authenticate": "false"}):
        with pytest.raises(UsageError, match="what arrives there is run") as refused:
            spark_settings.refuse(master, given, told.needs)
        assert refused.value.exit_code == 2
    told = load_pipeline(pipeline(secrets={"file": "/etc/pgddl/pgpass"}, allow_plaintext=True)).spark
    spark_settings.refuse(master, {}, told.needs)


@pytest.mark.parametrize(("master", "given"), [("sc://head:15002", {}), ("local", {"spark.remote": "sc://head"})])
def test_spark_connect_is_refused(master: str, given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="Spark Connect"):
        spark_settings.refuse(master, given, "nothing")


def test_cluster_mode_is_seen_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "spark-defaults.conf"
    file.write_text("# ours\nspark.submit.deployMode   cluster\n")
    assert spark_settings.defaults({"SPARK_CONF_DIR": str(tmp_path)}) == file
    assert spark_settings.in_cluster(spark_settings.read(file))
    assert not spark_settings.in_cluster({}) and not spark_settings.in_cluster({"spark.submit.deployMode": "client"})


@pytest.mark.parametrize(
    ("master", "given", "password_file", "why"),
    [
        ("spark://head:7077", {}, "/etc/pgpass", "runs no driver in Python"),
        ("local[2]", {}, "/etc/pgpass", "runs no driver in Python"),
        ("yarn", {}, None, "runs where the passwords are not"),
        ("yarn", {"spark.yarn.submit.waitAppCompletion": "false"}, "/etc/pgpass", "waited for until its end"),
        ("k8s://https://host", {}, "/etc/pgpass", "spark.kubernetes.file.upload.path is not set"),
        (
            "k8s://https://host",
            {"spark.kubernetes.file.upload.path": "s3a://b", "spark.kubernetes.submission.waitAppCompletion": "false"},
            "/etc/pgpass",
            "waited for until its end",
        ),
    ],
)
def test_a_driver_that_would_not_begin_elsewhere_is_refused(
    master: str, given: dict[str, str], password_file: str | None, why: str
) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        spark_settings.refuse_in_cluster(master, given, password_file)
    assert refused.value.exit_code == 2


def test_a_driver_that_a_cluster_runs_is_taken() -> None:
    spark_settings.refuse_in_cluster("yarn", {}, "/etc/pgpass")
    there = {"spark.kubernetes.file.upload.path": "s3a://bucket/spark"}
    spark_settings.refuse_in_cluster("k8s://https://host", there, "/etc/pgpass")


def test_defaults_are_looked_for_where_spark_submit_does(tmp_path: Path) -> None:
    for folder in ("bin", "conf"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bin" / "spark-submit").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "spark-submit").chmod(0o755)
    file = tmp_path / "conf" / "spark-defaults.conf"
    assert spark_settings.defaults({"PATH": str(tmp_path / "bin")}) is None
    file.touch()
    assert spark_settings.defaults({"PATH": str(tmp_path / "bin")}) == file
    assert spark_settings.defaults({"SPARK_HOME": str(tmp_path)}) == file
    assert spark_settings.defaults({}) is None


def test_a_properties_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    before, file = tmp_path / "before", tmp_path / "spark.conf"
    before.write_text("spark.a: 1\n! a remark\nspark.b = two\\\n    words\nspark.c\\ d=e\\u0041\nspark.x 1")
    given = {"spark.b": "hash # and = and : and \\ and a line\nmore", "spark.secret": " begins with a space"}
    spark_settings.write(file, given, before)
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert spark_settings.read(file) == {"spark.a": "1", "spark.c d": "eA", "spark.x": "1", **given}


def test_settings_take_their_secrets_from_the_environment() -> None:
    given = load_pipeline(pipeline(conf={"spark.authenticate": True, "spark.authenticate.secret": "${KEY}"})).spark.conf
    assert given == {"spark.authenticate": "true", "spark.authenticate.secret": "${KEY}"}
    assert spark_settings.resolved(given, {"KEY": "x"})["spark.authenticate.secret"] == "x"
    with pytest.raises(UsageError, match="environment variable KEY is not set"):
        spark_settings.resolved(given, {})


@pytest.mark.parametrize(
    "key", ["spark.authenticate.secret", "spark.ssl.keyPassword", "spark.hadoop.fs.s3a.access.key", "spark.my.Token"]
)
def test_a_literal_secret_is_refused_and_never_repeated(key: str) -> None:
    with pytest.raises(PipelineFileError, match="a literal secret is refused") as refused:
        load_pipeline(pipeline(conf={key: "hush-hush"}))
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("key", ["spark.kubernetes.executor.secrets.shop", "spark.authenticate.secret.driver.file"])
def test_where_a_secret_is_may_be_said(key: str) -> None:
    assert load_pipeline(pipeline(conf={key: "/etc/shop"})).spark.conf == {key: "/etc/shop"}


@pytest.mark.parametrize("key", ["executor.memory", "spark.a b"])
def test_what_is_no_setting_of_spark_is_refused(key: str) -> None:
    with pytest.raises(PipelineFileError, match="expected the name of a setting"):
        load_pipeline(pipeline(conf={key: "1"}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('java.io.IOException: Cannot run program "/opt/python3": error=2', "executors have no /opt/python3"),
        ("ModuleNotFoundError: No module named 'psycopg'", "executors lack the Python package psycopg"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11, PySpark",
            "executors run Python 3.9, the driver Python 3.11",
        ),
    ],
)
def test_an_executor_that_cannot_run_python_is_one_line(text: str, words: str) -> None:
    found = unable(text)
    assert found is not None
    assert words in found[0]
    assert unable("ZeroDivisionError: a defect") is None
