"""The commands that submit to Spark: `run`, `check --executors`, and `pack`, which makes what travels along."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from airflow_provider_pgddl.connections import handed_out, in_environment, refuse_changing, secrets
from airflow_provider_pgddl.engine.errors import EXIT_DONE, EXIT_RETRY, PgddlError, PreflightRefused, Retry, UsageError
from airflow_provider_pgddl.engine.job import file as jobs
from airflow_provider_pgddl.engine.job.folder import job_folder
from airflow_provider_pgddl.engine.launch import far_driver
from airflow_provider_pgddl.engine.launch import pack as packing
from airflow_provider_pgddl.engine.parallel import spark, spark_settings
from airflow_provider_pgddl.engine.parallel.class_archive import ClassArchive, class_archive
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.spark import spark_setting

if TYPE_CHECKING:
    from airflow_provider_pgddl.engine import stages

Lookup = Callable[[str], Any]
NO_OUTCOME = "the application has ended without an outcome: it was killed, or could not begin"
_KINDS: Mapping[int, type[PgddlError]] = {kind.exit_code: kind for kind in (UsageError, PreflightRefused, Retry)}


class Submission:
    """A Spark application of one pipeline as the shell submits it; refuses at once what Spark would not take."""

    def __init__(self, args: argparse.Namespace, pipeline: Pipeline, lookup: Lookup):
        self.pipeline, self._lookup = pipeline, lookup
        self.found = secrets(pipeline, lookup, os.environ)
        self._master = args.master or pipeline.spark.master or spark_settings.DEFAULT_MASTER
        self._local = spark_settings.is_local(self._master)
        self._env: dict[str, str] = os.environ | spark.launch_env(os.environ, local=self._local)
        if missing := spark.why_no_launch(self._env):
            raise missing
        self._given = spark_settings.resolved({**pipeline.spark.conf, **_conf(args)}, os.environ)
        self._defaults = spark_settings.defaults(self._env)
        self._around = {**(spark_settings.read(self._defaults) if self._defaults else {}), **self._given}
        spark_settings.refuse(self._master, self._around, pipeline.spark.needs)
        self._in_cluster = spark_settings.in_cluster(self._around)
        if not self._in_cluster:
            packing.refuse_other(self._around)
            return
        spark_settings.refuse_in_cluster(self._master, self._around, pipeline.spark.secrets.file)
        refuse_changing(pipeline, lookup)
        self._env = os.environ | spark.launch_env(os.environ, local=False, in_cluster=True)

    def job(self, stage: str, **options: Any) -> jobs.Job:
        job = jobs.Job(
            stage=stage,
            pipeline=self.pipeline,
            watch=jobs.Watched.me(),
            secrets={side: jobs.SECRETS[side] for side in self.found},
            master=self._master,
            **options,
        )
        return far_driver.elsewhere(job, self.found) if self._in_cluster else job

    def at_work(self, job: jobs.Job) -> jobs.Job | None:
        """The job of a driver elsewhere that somebody has submitted for the same and that is still alive."""
        return far_driver.at_work(self._target, job) if self._in_cluster else None

    @property
    def _target(self) -> str:
        return self.found.get("target", self.found["source"])

    def submit(self, job: jobs.Job, *, quiet: bool) -> tuple[jobs.Outcome | None, int]:
        """The job's outcome, None where it came to none, and spark-submit's exit code. What is said goes to stderr
        where stdout is to be `quiet`."""
        if self._in_cluster:
            return self.follow(job, submit=True, quiet=quiet)
        with job_folder() as folder:
            result_path = folder / "result.json"
            job = replace(job, result_path=str(result_path))
            told = any("JavaOptions" in key for key in self._given)
            archive = class_archive(self._env, folder, told=told) if self._local else None
            command = self._command(job, folder, archive)
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

    def _command(self, job: jobs.Job, folder: Path, archive: ClassArchive | None = None) -> list[str]:
        """What submits the job, whose files it writes."""
        jobs.write(job, folder / "job.json")
        if self._given:
            spark_settings.write(folder / "spark.conf", self._given, self._defaults)
        base = spark.base_conf(self._master, self._env, archive, in_cluster=self._in_cluster)
        carried = [self._around.get("spark.submit.pyFiles"), spark.carried(self._master, folder)]
        files = [self._around.get("spark.files"), str(folder / "job.json")]
        return spark.command(
            "spark-submit",
            self._master,
            spark.application(job.stage),
            folder / "job.json",
            name=spark_settings.application_name(self._master, self.pipeline.pipeline, job.stage),
            conf={key: value for key, value in base.items() if key not in self._around},
            py_files=",".join(filter(None, carried)),
            properties=folder / "spark.conf" if self._given else None,
            files_in_cluster=",".join(filter(None, files)) if self._in_cluster else None,
        )

    def follow(self, job: jobs.Job, *, submit: bool, quiet: bool) -> tuple[jobs.Outcome | None, int]:
        """The same of a driver elsewhere, which is submitted unless it is at work. ^C and SIGTERM stop it."""
        from airflow_provider_pgddl.engine.launch import driver

        said, process, code, began = sys.stderr if quiet else sys.stdout, None, EXIT_DONE, time.monotonic()
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with job_folder() as folder, far_driver.Followed(self._target, job) as followed:
                try:
                    if submit:
                        process = subprocess.Popen(
                            self._command(job, folder), env=self._env, stdout=sys.stderr if quiet else None
                        )
                        code = process.wait()
                    else:
                        print(f"pgddl {job.stage}: a driver is at work on it, and is waited for", file=said, flush=True)
                    outcome = followed.settle()
                except KeyboardInterrupt:
                    followed.stop()
                    if process is not None:
                        process.terminate()
                        process.wait()
                    raise
        finally:
            signal.signal(signal.SIGTERM, before)
        if outcome is None:
            gone = followed.seen or not code
            what, code = (far_driver.VANISHED, EXIT_RETRY) if gone else (far_driver.NEVER_SEEN, code)
            print(f"pgddl: {job.stage} of {self.pipeline.pipeline}: {what}", file=sys.stderr, flush=True)
            return None, code
        for text in driver.told(job, outcome, time.monotonic() - began):
            print(text, file=said, flush=True)
        if outcome.error is not None:
            print(f"pgddl: {self.pipeline.pipeline}: {outcome.explain()}", file=sys.stderr, flush=True)
        return outcome, code


def run(args: argparse.Namespace, pipeline: Pipeline, lookup: Lookup) -> int:
    """One stage, or several in one application; what has nothing to do before the first that has is not submitted."""
    _refuse_options(args)
    submission = Submission(args, pipeline, lookup)
    first, *others = args.stages
    job = submission.job(
        first,
        then=tuple(others),
        tables=jobs.names(args.tables),
        dry_run=args.dry_run,
        again=args.again,
        reconfigure=args.reconfigure,
        mend=args.mend,
        asked="verify" in args.stages,
    )
    several, quiet = bool(others), list[Mapping[str, Any]]()
    if (at_work := submission.at_work(job)) is not None:
        job = at_work
        outcome, code = submission.follow(job, submit=False, quiet=args.json)
    else:
        with handed_out(pipeline, lookup, os.environ, submission.found, "127.0.0.1") as found:
            quiet = _idle(job, found, sys.stderr if args.json else sys.stdout)
        if len(quiet) == len(args.stages):
            _print_result(args, {"pipeline": pipeline.pipeline, "stages": quiet} if several else quiet[0])
            return EXIT_DONE
        job = job.without_first(len(quiet))
        outcome, code = submission.submit(job, quiet=args.json)
    if outcome is None:
        # The application could not even read its job, or was killed; spark-submit's exit code is all there is.
        code = code if 0 < code < 128 else 5
        if args.json:
            why = Retry(NO_OUTCOME, todo="see what spark-submit said, then run it again").to_json()
            _print_result(args, why | {"exit_code": code})
        return code
    if several:
        done = [] if outcome.result is None else outcome.result["stages"] if job.then else [outcome.result]
        error = {} if outcome.error is None else {"error": outcome.error}
        _print_result(args, {"pipeline": pipeline.pipeline, "stages": [*quiet, *done], **error})
    else:
        _print_result(args, outcome.result if outcome.result is not None else outcome.error)
    return outcome.exit_code


def _refuse_options(args: argparse.Namespace) -> None:
    """Before anything is connected to. Where one stage is named, it says so itself."""
    for option, of in (("again", "setup"), ("reconfigure", "setup"), ("mend", "verify")):
        if getattr(args, option) and len(args.stages) > 1 and of not in args.stages:
            named = ", ".join(args.stages)
            raise UsageError(f"--{option} is for stage {of}, which is not among {named}", todo="leave it out")
    if args.dry_run and args.stages != ("swap",):
        named = ", ".join(args.stages)
        raise UsageError(f"{named} has no dry run", todo="`pgddl plan` lists what each stage does")


def _idle(job: jobs.Job, found: Mapping[jobs.End, str], said: TextIO) -> list[Mapping[str, Any]]:
    """The results of the first stages, as long as they have nothing to do."""
    from airflow_provider_pgddl.engine.job.idle import first_idle
    from airflow_provider_pgddl.engine.launch import driver

    began, quiet = time.monotonic(), list[Mapping[str, Any]]()
    with redirect_stdout(said):
        for one in first_idle(job, found["source"], found.get("target", found["source"])):
            quiet.append(one.to_json())
            print(driver.closing_line(quiet[-1], time.monotonic() - began))
    return quiet


def here(
    args: argparse.Namespace, pipeline: Pipeline, lookup: Lookup, stage: str, **options: Any
) -> stages.StageResult:
    """A stage that moves no rows, in this process; what it says goes to stderr where stdout is for JSON."""
    from airflow_provider_pgddl.engine import stages
    from airflow_provider_pgddl.engine.launch import driver

    began, found = time.monotonic(), secrets(pipeline, lookup, os.environ)
    with (
        handed_out(pipeline, lookup, os.environ, found, "127.0.0.1") as given,
        redirect_stdout(sys.stderr if args.json else sys.stdout),
    ):
        os.environ.update(in_environment(given))
        job = jobs.Job(stage, pipeline, secrets={side: jobs.SECRETS[side] for side in given}, **options)
        result = stages.run(job)
        print(driver.closing_line(result.to_json(), time.monotonic() - began))
    return result


def _print_result(args: argparse.Namespace, found: Mapping[str, Any] | None) -> None:
    if args.json:
        print(json.dumps(found, indent=2, default=str))


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
