"""What spark-submit is called with where a cluster runs the driver, option by option as Spark documents them in
"Submitting Applications", "Running Spark on YARN" and "Running Spark on Kubernetes"."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.cli_run import Submission
from airflow_provider_pgddl.engine.errors import PreflightRefused, UsageError
from airflow_provider_pgddl.engine.job import file as jobs
from airflow_provider_pgddl.engine.job.executor_dsns import for_executors
from airflow_provider_pgddl.engine.launch import far_driver
from airflow_provider_pgddl.engine.launch import pack as packing
from airflow_provider_pgddl.engine.parallel import spark
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline

DSNS = {"source": "host=a user=mover password=hush-a dbname=shop", "target": "host=b user=mover password=hush-b"}
COMMON = {"spark.submit.deployMode": "cluster", "spark.authenticate": True, "spark.network.crypto.enabled": True}

Submit = Callable[..., Submission]


@pytest.fixture
def submission(monkeypatch: pytest.MonkeyPatch) -> Submit:
    for side, dsn in DSNS.items():
        monkeypatch.setenv(f"PGDDL_TEST_{side.upper()}", dsn)
    monkeypatch.setattr(
        spark, "why_no_launch", lambda *_: None
    )  # nothing is launched: neither Java nor Spark is needed

    def submission(master: str, **conf: Any) -> Submission:
        ends = {side: {"dsn": f"${{PGDDL_TEST_{side.upper()}}}"} for side in DSNS}
        given = {"master": master, "conf": {**COMMON, **conf}, "secrets": {"file": "/etc/pgddl/pgpass"}}
        pipeline = load_pipeline({"pipeline": "shop", **ends, "tables": {"include": ["shop.*"]}, "spark": given})
        return Submission(argparse.Namespace(master=None, conf=[]), pipeline, lambda _: None)

    return submission


@pytest.mark.parametrize(
    ("master", "conf"),
    [
        ("yarn", {"spark.yarn.queue": "migrations", "spark.archives": "/srv/env.tar.gz#pgddl_env"}),
        ("k8s://https://kube:6443", {"spark.kubernetes.file.upload.path": "s3a://bucket/spark"}),
    ],
)
def test_the_command_line_is_spark_s(submission: Submit, tmp_path: Path, master: str, conf: dict[str, str]) -> None:
    ours = submission(master, **conf)
    job = ours.job("schema_sync")
    assert ours._command(job, tmp_path) == [
        "spark-submit",
        "--master", master,
        "--name", "pgddl shop schema_sync" if master == "yarn" else "pgddl-shop-schema-sync",
        "--conf", "spark.ui.enabled=false",
        *(["--conf", "spark.yarn.maxAppAttempts=1"] if master == "yarn" else []),
        "--py-files", str(tmp_path / "pgddl_engine.zip"),
        "--properties-file", str(tmp_path / "spark.conf"),
        "--deploy-mode", "cluster",
        "--files", str(tmp_path / "job.json"),
        str(spark.application("schema_sync")),
        "job.json",
    ]  # fmt: skip
    said = "".join((tmp_path / name).read_text() for name in ("spark.conf", "job.json"))
    assert all(f"{key}={value}" in said.replace("\\", "") for key, value in conf.items())
    assert "hush" not in said
    assert not {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"} & (ours._env.keys() - os.environ.keys())
    travelled = jobs.read(tmp_path / "job.json")
    assert conninfo_to_dict(travelled.conninfo("target")) == {
        "host": "b", "user": "mover", "passfile": "/etc/pgddl/pgpass",
    }  # fmt: skip
    assert travelled == job and travelled.watch is None and not travelled.secrets


def test_an_archive_for_another_python_is_refused_where_the_driver_is_here(
    submission: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "NEEDED", ())
    archive = tmp_path / "env.tar.gz"
    packing.pack(archive)
    client = {"spark.submit.deployMode": "client", "spark.archives": f"/nowhere.zip,{archive}#pgddl_env"}
    submission("yarn", **client)
    monkeypatch.setattr(packing, "here", lambda: {"python": "cpython 3.99", "machine": "Linux x86_64"})
    with pytest.raises(PreflightRefused, match=r"was made for cpython 3\.\d+ on .*, and the driver is cpython 3.99"):
        submission("yarn", **client)
    submission("yarn", **client | {"spark.submit.deployMode": "cluster"})


def test_the_same_job_is_known_by_the_same_name(submission: Submit) -> None:
    ours = submission("yarn")
    one, again = ours.job("backfill"), ours.job("backfill")
    assert one.id != again.id and one.known_as == again.known_as
    others = [
        ours.job("replay"),
        ours.job("backfill", tables=("shop.a",)),
    ]
    assert one.known_as == submission("yarn", **{"spark.a": "b"}).job("backfill").known_as
    assert one.known_as not in {other.known_as for other in others}
    assert len({other.known_as for other in others}) == len(others)


@pytest.mark.parametrize("secret", ["sslpassword=x", "scram_client_key=x"])
def test_a_secret_that_no_password_file_holds_is_refused(
    submission: Submit, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("PGDDL_TEST_SOURCE", f"{DSNS['source']} {secret}")
    with pytest.raises(UsageError, match="would have to travel"):
        submission("yarn").job("backfill")
    client = {"spark.submit.deployMode": "client"}
    ours = submission("yarn", **client)
    with pytest.raises(UsageError, match=f"the source's {secret[:-2]} would have to travel"):
        for_executors(ours.pipeline, "source", ours.found["source"])


def test_what_hands_out_credentials_here_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spark, "why_no_launch", lambda *_: None)
    content = {
        "pipeline": "shop",
        "source": {"dsn_command": ["echo", "host=a user=mover dbname=shop"]},
        "tables": {"include": ["shop.*"]},
        "rewrite": {"shop.a": {}},
        "spark": {"master": "yarn", "conf": COMMON, "secrets": {"file": "/etc/pgddl/pgpass"}},
    }
    file = tmp_path / "shop.yaml"
    file.write_text(json.dumps({key: value for key, value in content.items() if key != "tables"}))
    with pytest.raises(UsageError, match="credentials are made anew here"):
        Submission(argparse.Namespace(master=None, conf=[]), load_pipeline(file), lambda _: None)


def test_a_driver_is_known_again_behind_an_upgrade_or_another_value_of_a_free_key(submission: Submit) -> None:
    def known_as(stage: str, **changed: Any) -> str | None:
        job = submission("yarn").job(stage)
        pipeline = load_pipeline({**job.pipeline.to_json(), **changed})
        return far_driver.elsewhere(replace(job, pipeline=pipeline), DSNS).known_as

    longer = {"replay": {"run_for": "6h"}}
    assert known_as("replay") == known_as("replay", **longer)
    assert known_as("setup") != known_as("setup", **longer), "which takes the file up"
    assert known_as("replay") != known_as("verify")
    assert known_as("replay") != known_as("replay", pipeline="other")
