"""The commands that submit to Spark: `run`, `check --executors`, and `pack`, which makes what travels along."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_pgddl.connections import handed_out, in_environment, secrets
from airflow_provider_pgddl.engine.errors import EXIT_DONE, PgddlError, PreflightRefused, Retry, UsageError
from airflow_provider_pgddl.engine.job import file as jobs
from airflow_provider_pgddl.engine.job.folder import job_folder
from airflow_provider_pgddl.engine.launch import pack as packing
from airflow_provider_pgddl.engine.parallel import spark, spark_settings
from airflow_provider_pgddl.engine.parallel.class_archive import class_archive
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.spark import spark_setting

Lookup = Callable[[str], Any]
_KINDS: Mapping[int, type[PgddlError]] = {kind.exit_code: kind for kind in (UsageError, PreflightRefused, Retry)}


class Submission:
    """A Spark application of one pipeline as the shell submits it; refuses at once what Spark would not take."""

    def __init__(self, args: argparse.Namespace, pipeline: Pipeline, lookup: Lookup):
        self.pipeline, self._lookup = pipeline, lookup
        self.found = secrets(pipeline, lookup, os.environ)
        self._master = args.master or pipeline.spark.master or spark_settings.DEFAULT_MASTER
        self._local = spark_settings.is_local(self._master)
        self._env = os.environ | spark.launch_env(os.environ, local=self._local)
        if missing := spark.why_no_launch(self._env):
            raise missing
        self._given = spark_settings.resolved({**pipeline.spark.conf, **_conf(args)}, os.environ)
        self._defaults = spark_settings.defaults(self._env)
        self._around = {**(spark_settings.read(self._defaults) if self._defaults else {}), **self._given}
        spark_settings.refuse(self._master, self._around, allow_plaintext=pipeline.spark.may_be_read)
        packing.refuse_other(self._around)

    def job(self, stage: str, **options: Any) -> jobs.Job:
        return jobs.Job(
            stage=stage,
            pipeline=self.pipeline,
            watch=jobs.Watched.me(),
            secrets={side: jobs.SECRETS[side] for side in self.found},
            master=self._master,
            **options,
        )

    def submit(self, job: jobs.Job, *, quiet: bool) -> tuple[jobs.Outcome | None, int]:
        """The job's outcome, None where it came to none, and spark-submit's exit code. What is said goes to stderr
        where stdout is to be `quiet`."""
        with job_folder() as folder:
            job_file, result_path = folder / "job.json", folder / "result.json"
            jobs.write(replace(job, result_path=str(result_path)), job_file)
            told = any("JavaOptions" in key for key in self._given)
            archive = class_archive(self._env, folder, told=told) if self._local else None
            if self._given:
                spark_settings.write(folder / "spark.conf", self._given, self._defaults)
            base = spark.base_conf(self._master, self._env, archive)
            carried = [self._around.get("spark.submit.pyFiles"), spark.carried(self._master, folder)]
            command = spark.command(
                "spark-submit",
                self._master,
                spark.application(job.stage),
                job_file,
                name=f"pgddl {self.pipeline.pipeline} {job.stage}",
                conf={key: value for key, value in base.items() if key not in self._around},
                py_files=",".join(filter(None, carried)),
                properties=folder / "spark.conf" if self._given else None,
            )
            host = spark_settings.reachable_host(self._master, self._around)
            with (
                handed_out(self.pipeline, self._lookup, os.environ, self.found, host) as given,
                subprocess.Popen(
                    command, env=self._env | in_environment(given), stdout=sys.stderr if quiet else None
                ) as process,
            ):
                try:
                    process.wait()
                except KeyboardInterrupt:
                    # ^C reached the whole foreground group: let the application cancel what it does and say so.
                    process.wait()
                    raise
            outcome = jobs.read_outcome(result_path)
            if archive is not None:
                archive.settle(ended=outcome is not None, well=process.returncode == 0)
        return outcome, process.returncode


def run(args: argparse.Namespace, pipeline: Pipeline, lookup: Lookup) -> int:
    """One stage; one that has nothing to do is not submitted."""
    from airflow_provider_pgddl.engine import stages
    from airflow_provider_pgddl.engine.launch import driver

    if args.dry_run and args.stage != "swap":
        raise UsageError(f"{args.stage} has no dry run", todo="`pgddl plan` lists what each stage does")
    submission = Submission(args, pipeline, lookup)
    job = submission.job(
        args.stage, tables=jobs.names(args.tables), dry_run=args.dry_run, again=args.again, mend=args.mend
    )
    began, found = time.monotonic(), submission.found
    if quiet := stages.idle(job, found["source"], found.get("target", found["source"])):
        print(driver.closing_line(quiet.to_json(), time.monotonic() - began), file=sys.stderr if args.json else None)
        if args.json:
            print(json.dumps(quiet.to_json(), indent=2, default=str))
        return quiet.exit_code
    outcome, code = submission.submit(job, quiet=args.json)
    if outcome is None:
        # The application could not even read its job, or was killed; spark-submit's exit code is all there is.
        return code if 0 < code < 128 else 5
    if args.json:
        print(json.dumps(outcome.result if outcome.result is not None else outcome.error, indent=2, default=str))
    return outcome.exit_code


def check_executors(args: argparse.Namespace, pipeline: Pipeline, lookup: Lookup) -> Sequence[Mapping[str, Any]]:
    """What executors say of themselves, as findings; the application's own error where they could not be asked."""
    submission = Submission(args, pipeline, lookup)
    outcome, code = submission.submit(submission.job("check_executors"), quiet=True)
    if outcome is not None and outcome.result is not None:
        return list(outcome.result["findings"])
    if outcome is not None and outcome.error is not None:
        kind = _KINDS.get(outcome.exit_code, PgddlError)
        raise kind(str(outcome.error["what"]), todo=outcome.error.get("todo"))
    raise _KINDS.get(code, Retry)("the executors could not be asked; what Spark said is above")


def pack(args: argparse.Namespace) -> int:
    """What executors need beside Python, as an archive that travels with a job."""
    archive = Path(args.output)
    try:
        made_for = packing.pack(archive)
    except OSError as error:
        raise UsageError(f"{archive} cannot be written: {error.strerror}") from None
    size = archive.stat().st_size
    if args.json:
        print(json.dumps({"file": str(archive), "bytes": size, **made_for}, indent=2))
        return EXIT_DONE
    print(f"{archive}: {size >> 20} MB, for {made_for['python']} on {made_for['machine']}. In the pipeline file:")
    print("spark:\n  conf:")
    print(f"    spark.archives: {archive.resolve()}#pgddl_env")
    print("    spark.executorEnv.PYTHONPATH: ./pgddl_env")
    return EXIT_DONE


def _conf(args: argparse.Namespace) -> dict[str, str]:
    """The settings of `--conf`, each as `KEY=VALUE`."""
    found = {}
    for text in args.conf:
        key, equals, value = text.partition("=")
        try:
            if not equals:
                raise ValueError("expected KEY=VALUE")
            found[key] = spark_setting(key, value)
        except ValueError as error:
            raise UsageError(f"--conf {key}: {error}") from None
    return found
