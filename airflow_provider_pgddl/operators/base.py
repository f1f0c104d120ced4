"""What all operators share: from a pipeline to a Spark application, and from its end to the state of a task."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import psycopg
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_pgddl import assets, lineage, links
from airflow_provider_pgddl.connections import (
    handed_out,
    in_environment,
    lookup_in_task,
    refuse_changing,
    refuse_commands,
    secrets,
)
from airflow_provider_pgddl.description import Described, describe
from airflow_provider_pgddl.engine import failpoints
from airflow_provider_pgddl.engine.errors import EXIT_BLOCKED, EXIT_DONE, PgddlError, UsageError, from_postgres
from airflow_provider_pgddl.engine.job import file as jobs
from airflow_provider_pgddl.engine.job.file import SECRETS, Job, Outcome, Watched
from airflow_provider_pgddl.engine.job.folder import job_folder
from airflow_provider_pgddl.engine.job.result import StageResult
from airflow_provider_pgddl.engine.journal import stage_runs
from airflow_provider_pgddl.engine.journal.pipelines import Journal
from airflow_provider_pgddl.engine.launch import driver, far_driver
from airflow_provider_pgddl.engine.launch import pack as packing
from airflow_provider_pgddl.engine.parallel import spark, spark_settings
from airflow_provider_pgddl.engine.parallel.class_archive import ClassArchive, class_archive
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline, refuse_literal_secrets
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.operators.hook import PrivateEnvHook, no_spark
from airflow_provider_pgddl.retrying import fail, give_up, is_first_try, policy

if TYPE_CHECKING:
    from airflow.sdk import Context


class PgddlOperator(Described, lineage.TellsLineage, SparkSubmitOperator):  # type: ignore[misc]
    """Runs one stage of a pipeline as a Spark application, through the Spark provider.

    :param pipeline: path of the pipeline file (a relative one counts from the DAG's folder), its YAML text, or a dict
    :param tables: only these tables (`schema.table`); None means all of the pipeline
    :param on_blocked: what becomes of a task that had to leave tables out. `skip`, the default, shows the task as
        skipped, and tasks behind it do not run unless their trigger rule lets them. `fail` fails it for good. `go_on`
        takes it for a success. A swap leaves no table out: there it is about a swap that is done, and left to a person
        what could not be finished
    :param conn_id: the Spark connection; wins over the pipeline's `spark.conn_id`, which wins over Airflow's
        configuration (`[pgddl] spark_conn_id`)

    Everything else is SparkSubmitOperator's, but `durable=True` is refused: a stage goes on by its journal, which
    also knows of a driver elsewhere that is alive. The result is a small dict: stage, pipeline, run, state (`done` or
    `nothing_to_do`), tables (how many), figures, and blocked: the tables that this stage had to leave out, each with
    the reason. A failure that a retry may cure raises AirflowException, a final one AirflowFailException. From Airflow
    3.3 on the first retry of what passes within seconds, such as somebody's lock, comes after five of them, and every
    other after `retry_delay`; the task's log and record say why. A `retry_policy` of your own wins.
    """

    stage: str
    changes_live_tables: bool = False
    left: ClassVar[str] = "{stage} went on without {tables}, which is blocked"
    name: str
    outlets: list[Any]
    _conn_id: str
    _spark_host: str | None = None
    _hook: PrivateEnvHook | None

    template_fields: Sequence[str] = ("pipeline", "tables", *SparkSubmitOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {"pipeline": "yaml", "tables": "json"}
    operator_extra_links = (links.PipelineLink(), links.SparkLink())
    ui_color = "#dbeafe"

    def __init__(
        self,
        *,
        pipeline: str | os.PathLike[str] | Mapping[str, Any],
        tables: Sequence[str] | None = None,
        on_blocked: Literal["skip", "fail", "go_on"] = "skip",
        conn_id: str | None = None,
        name: str | None = None,
        deploy_mode: str | None = None,
        durable: bool | None = None,
        retries: int = 3,
        retry_delay: timedelta | float = timedelta(seconds=15),
        retry_exponential_backoff: float = 2.0,
        max_retry_delay: timedelta | float = timedelta(minutes=10),
        retry_policy: Any = None,
        **kwargs: Any,
    ) -> None:
        refuse_literal_secrets(pipeline)  # before Airflow keeps it
        if durable:
            raise ValueError("durable is for jobs that outlive their task; a pgddl stage resumes from its journal")
        super().__init__(
            conn_id=conn_id or "",
            name=name or "",
            deploy_mode=deploy_mode,
            durable=False,
            retries=retries,
            retry_delay=retry_delay,
            retry_exponential_backoff=retry_exponential_backoff,
            max_retry_delay=max_retry_delay,
            **policy(retry_policy),
            **kwargs,
        )
        self.pipeline = os.fspath(pipeline) if isinstance(pipeline, os.PathLike) else pipeline
        self.tables = tables
        if on_blocked not in ("skip", "fail", "go_on"):
            raise ValueError(f"on_blocked is skip, fail or go_on, not {on_blocked!r}")
        self.on_blocked = on_blocked
        if self.changes_live_tables and (told := describe(self)):
            self.outlets = [*self.outlets, assets.alias(told["pipeline"])]
        self._private_env: dict[str, str] = {}
        self._on_spark_page: Callable[[str], None] | None = None
        self._folder = Path()
        self._given: dict[str, str] = {}
        self._behind: Path | None = None
        self._around: Mapping[str, str] = {}
        self._archive: ClassArchive | None = None
        self._in_cluster = False
        self._followed: far_driver.Followed | None = None  # a driver that the cluster runs

    @property
    def lineage_stages(self) -> Sequence[str]:
        return (self.stage,)

    def execute(self, context: Context) -> dict[str, Any]:
        from airflow_provider_pgddl.engine.job.idle import (
            first_idle,  # a DAG file is parsed far more often than it runs
        )

        self._hook = self._followed = None
        links.show(self, context)
        try:
            pipeline = load_pipeline(self.pipeline, base=Path(context["dag"].folder))
            refuse_commands(pipeline)
            found = secrets(pipeline, lookup_in_task, os.environ)
            self._check_spark(pipeline)
            master, target = self._bare_hook().master, found.get("target", found["source"])
            job, began = replace(self._job(pipeline, found), master=master), time.monotonic()
            at_work, quiet = None, list[StageResult]()
            if self._in_cluster:
                job = far_driver.elsewhere(job, found)
                at_work = far_driver.at_work(target, job)
            if at_work is None:
                with handed_out(pipeline, lookup_in_task, os.environ, found, "127.0.0.1") as ends:
                    quiet = first_idle(job, ends["source"], ends.get("target", ends["source"]))
            self._tell_again(quiet, pipeline, target, context)
            for one in quiet:
                self.log.info("%s; nothing is submitted", driver.closing_line(one.to_json(), time.monotonic() - began))
            if len(quiet) == len(job.stages):
                return self._told([one.to_json() for one in quiet])
            job = at_work or job.without_first(len(quiet))
        except psycopg.Error as error:
            give_up(from_postgres(error, doing="looking at the journal"))
        except PgddlError as error:
            give_up(error)
        if self._in_cluster:
            outcome, submit_error = self._follow(job, target, context, submit=at_work is None)
        else:
            outcome, submit_error = self._run_here(job, found, context)
        if outcome is None:  # killed, or it never came to run: what spark-submit said last is all there is
            raise submit_error or AirflowException(f"the application of {self.stage} ended without a result")
        if outcome.exit_code not in (EXIT_DONE, EXIT_BLOCKED) or outcome.error:
            fail(f"{self.stage}: {outcome.explain()}", outcome.cause, retryable=outcome.retryable)
        result = self._told([*(one.to_json() for one in quiet), *self._results(job, pipeline, context, outcome)])
        if result["blocked"] and self.on_blocked != "go_on":
            context["ti"].xcom_push("return_value", result)
            left = ", ".join(sorted({entry["table"] for entry in result["blocked"]}))
            raise (AirflowSkipException if self.on_blocked == "skip" else AirflowFailException)(
                f"{self.left.format(stage=self.stage, tables=left)} (on_blocked={self.on_blocked}); "
                "the log has the reasons"
            )
        return result

    def _run_here(
        self, job: Job, found: Mapping[jobs.End, str], context: Context
    ) -> tuple[Outcome | None, AirflowException | None]:
        """The outcome of a driver on this machine, and what spark-submit ended with, which is of the same mind."""
        with job_folder() as folder:
            result_path = folder / "result.json"
            host = spark_settings.reachable_host(str(job.master), self._around)
            with handed_out(job.pipeline, lookup_in_task, os.environ, found, host) as given:
                self._prepare(replace(job, result_path=str(result_path)), folder, in_environment(given))
                error = self._submit(context)
            outcome = jobs.read_outcome(result_path)
            if self._archive is not None:
                self._archive.settle(ended=outcome is not None, well=error is None)
        if outcome is not None and (error is None) != (outcome.exit_code == EXIT_DONE):
            outcome = None
        return outcome, error

    def _follow(
        self, job: Job, target: str, context: Context, *, submit: bool
    ) -> tuple[Outcome | None, AirflowException | None]:
        """The same of a driver that the cluster runs, which is submitted unless it is at work. What spark-submit ends
        with tells of the cluster only. Whatever interrupts this stops the driver."""
        error, began = None, time.monotonic()
        try:
            with job_folder() as folder, far_driver.Followed(target, job) as self._followed:
                try:
                    if submit:
                        self._prepare(job, folder, {})
                        error = self._submit(context)
                    else:
                        self.log.info("a driver is at work on %s, and is waited for", job.stage)
                    outcome = self._followed.settle()
                except (PgddlError, psycopg.Error):  # the driver goes on, and a retry finds it
                    raise
                except BaseException:
                    self._followed.stop()
                    raise
        except psycopg.Error as lost:
            give_up(from_postgres(lost, doing="waiting for the driver"))
        except PgddlError as lost:
            give_up(lost)
        if outcome is None and (self._followed.seen or error is None):
            raise AirflowException(f"{self.stage}: {far_driver.VANISHED}") from error
        for text in [] if outcome is None else driver.told(job, outcome, time.monotonic() - began):
            self.log.info("%s", text)
        return outcome, error

    def _job(self, pipeline: Pipeline, found: Mapping[jobs.End, str]) -> Job:
        return Job(
            stage=self.stage,
            pipeline=pipeline,
            tables=jobs.names(self.tables),
            watch=Watched.me(),
            secrets={side: SECRETS[side] for side in found},
        )

    def _check_spark(self, pipeline: Pipeline) -> None:
        """One clear line before anything is submitted; SparkSubmitHook turns a missing connection into yarn."""
        if not self._conn_id:
            named = "conn_id" in pipeline.spark.model_fields_set
            here = conf.get("pgddl", "spark_conn_id", fallback="") or pipeline.spark.conn_id
            self._conn_id = pipeline.spark.conn_id if named else here
        found = lookup_in_task(self._conn_id)
        if found is None:
            raise no_spark(self._conn_id)
        self._spark_host = found.host
        if failpoints.VARIABLE in (self.env_vars or ()):
            raise UsageError(f"{failpoints.VARIABLE} is for tests, and no DAG sets it", todo="take it out of env_vars")
        hook = self._bare_hook()
        self._given, self._behind = self._settings(pipeline, hook)
        around = {**(spark_settings.read(self._behind) if self._behind else {}), **self._given}
        spark_settings.refuse(hook.master, around, pipeline.spark.needs)
        self._around = around
        self._in_cluster = hook.in_cluster_mode or (hook.deploy_mode is None and spark_settings.in_cluster(around))
        if self._in_cluster:
            spark_settings.refuse_in_cluster(hook.master, around, pipeline.spark.secrets.file)
            refuse_changing(pipeline, lookup_in_task)
            self._deploy_mode = "cluster"  # which the hook reads, wherever it was said
        else:
            packing.refuse_other(around, hook._archives)
        if missing := spark.why_no_launch(self._launch_env(hook), hook.binary):
            raise missing

    def _settings(self, pipeline: Pipeline, hook: PrivateEnvHook) -> tuple[dict[str, str], Path | None]:
        """What the pipeline and the operator say to Spark, and the file of settings that stands behind it."""
        own = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in hook._conf.items()}
        given = spark_settings.resolved({**pipeline.spark.conf, **own}, os.environ)
        if self.properties_file is not None:
            return given, Path(self.properties_file)
        return given, spark_settings.defaults(self._launch_env(hook), hook.binary)

    def _prepare(self, job: Job, folder: Path, private: Mapping[str, str]) -> None:
        jobs.write(job, folder / "job.json")
        self.application = str(spark.application(job.stage))
        self.application_args = ["job.json" if self._in_cluster else str(folder / "job.json")]
        self._folder = folder
        self.name = self.name or spark_settings.application_name(str(job.master), job.pipeline.pipeline, job.stage)
        self._private_env = dict(private)

    def _bare_hook(self) -> PrivateEnvHook:
        """The Spark provider's, with whatever options this version of it knows."""
        return PrivateEnvHook.of(super()._get_hook(), self._spark_host)

    def _launch_env(self, hook: PrivateEnvHook) -> dict[str, str]:
        """What spark-submit is started with, but for the secrets."""
        around = {**os.environ, **{key: str(value) for key, value in (self.env_vars or {}).items()}}
        local = spark_settings.is_local(hook.master)
        return around | spark.launch_env(around, local=local, binary=hook.binary, in_cluster=self._in_cluster)

    def _get_hook(self) -> PrivateEnvHook:
        hook = self._bare_hook()
        hook.on_spark_page = self._on_spark_page
        local = spark_settings.is_local(hook.master)
        own = hook._py_files or self._around.get("spark.submit.pyFiles")
        hook._py_files = ",".join(filter(None, [own, spark.carried(hook.master, self._folder)])) or None
        if self._in_cluster:  # into the folder in which the driver begins
            files = [hook._files or self._around.get("spark.files"), str(self._folder / "job.json")]
            hook._files = ",".join(filter(None, files))
        env = self._launch_env(hook) | self._private_env
        hook.private_env = {key: value for key, value in env.items() if os.environ.get(key) != value}
        # With what the Spark provider has put in since, such as the lineage of a parent.
        given = {**{key: str(value) for key, value in hook._conf.items()}, **self._given}
        told = self.properties_file is not None or any("JavaOptions" in key for key in given)
        self._archive = class_archive(env, self._folder, hook.binary, told=told) if local else None
        if given:  # in a file that only we can read: a command line shows in `ps`
            spark_settings.write(self._folder / "spark.conf", given, self._behind)
            hook._properties_file = str(self._folder / "spark.conf")
        base = spark.base_conf(hook.master, env, self._archive, in_cluster=self._in_cluster)
        hook._conf = {key: value for key, value in base.items() if key not in {**self._around, **given}}
        return hook

    def _submit(self, context: Context) -> AirflowException | None:
        """Run spark-submit to its end. Whatever interrupts that (a timeout, ^C) ends every process of the run."""
        self._on_spark_page = partial(links.show_spark, context)
        try:
            super().execute(context)
        except AirflowFailException:
            raise
        except AirflowException as error:
            return error
        except PgddlError as error:
            give_up(error)
        finally:
            self._end_processes()
        return None

    def on_kill(self) -> None:
        """End the JVM, the driver and the workers; SparkSubmitHook would end the JVM only. A driver that the cluster
        runs is told to stop first, then the cluster is."""
        if self._followed is not None:
            self._followed.stop()
        if self._hook is None:
            return
        self._end_processes()
        self._hook.on_kill()

    def _end_processes(self) -> None:
        hook = self._hook
        if hook is None or hook.process is None or hook.process.poll() is not None:
            return
        if self._followed is not None:
            self._followed.stop()
            hook.on_kill()  # it asks YARN or Kubernetes only while spark-submit is alive
            return
        hook.end_family()

    def _results(
        self,
        job: Job,
        pipeline: Pipeline,
        context: Context,
        outcome: Outcome,  # noqa: ARG002 - for a rehearsal, of which the journal keeps nothing
    ) -> list[dict[str, Any]]:
        """What the journal says of each stage that was run."""
        results: list[dict[str, Any]] = []
        try:
            found = secrets(pipeline, lookup_in_task, os.environ)  # a stage may have outlived what it began with
            target, name = found.get("target", found["source"]), job.pipeline.pipeline
            with connect(target, purpose="result", pipeline=name) as conn:
                for one in job.each():
                    recorded = stage_runs.stage_result(conn, one.id)
                    if recorded is None and not (results and results[-1].get("blocked")):
                        raise AirflowException(f"{one.stage} ended well, but the journal has no result of job {one.id}")
                    if recorded is None:
                        break  # it was not begun, as tables are blocked
                    if self._tells_of(one.stage):
                        self._tell_assets(conn, one, recorded, target, context)
                    results.append(dict(recorded))
                if lineage.is_wanted():
                    self._note_lineage(conn, pipeline, found["source"], target, results)
        except psycopg.Error as error:
            give_up(from_postgres(error, doing="looking at the journal"))
        except PgddlError as error:
            give_up(error)
        for entry in (entry for recorded in results for entry in recorded.get("blocked", ())):
            self.log.warning("blocked: %s: %s", entry["table"], entry["reason"])
        return results

    def _note_lineage(
        self, conn: Session, pipeline: Pipeline, source: str, target: str, results: Sequence[Mapping[str, Any]]
    ) -> None:
        """What is told of a stage fails none: it is done by then."""
        try:
            self.lineage_found = lineage.lineage(conn, pipeline, source, target, self.lineage_stages, results)
        except Exception as error:  # noqa: BLE001
            self.log.warning("OpenLineage is told nothing of the tables: %s", type(error).__name__)

    def _tells_of(self, stage: str) -> bool:  # noqa: ARG002 - an operator of several stages asks
        """Whether others learn which tables it has changed."""
        return self.changes_live_tables

    def _told(self, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The task's result."""
        return small(results[-1])

    def _tell_assets(self, conn: Session, job: Job, recorded: Mapping[str, Any], target: str, context: Context) -> None:
        """Once at least: a try that was killed, and a task that is shown as skipped, have told nobody. So has a worker
        that was lost behind the end of its application, wherefore the journal remembers who has."""
        journal, run, ti = Journal(conn, job.pipeline.pipeline), recorded["run"], context["ti"]
        who = f"assets of {job.stage}"
        changed = journal.stage_runs.untold(run, job.stage, job.id, journal.schema.shown_last(who))
        if not is_first_try(ti.try_number, ti.max_tries, self.retries):
            changed = None
        is_told = self._tell(journal, run, job.stage, changed, target, context)
        if is_told and (self.on_blocked == "go_on" or not recorded["blocked"]):
            journal.schema.shown(who, job.id)

    def _tell_again(self, quiet: Sequence[StageResult], pipeline: Pipeline, target: str, context: Context) -> None:
        """Of stages that have nothing to do any more: an earlier try may have done it, and have been killed before it
        could tell."""
        missed = [one for one in quiet if self._tells_of(one.stage)]
        if not missed or context["ti"].try_number == 1:
            return
        with connect(target, purpose="result", pipeline=pipeline.pipeline) as conn:
            for one in missed:
                self._tell(Journal(conn, pipeline.pipeline), one.run, one.stage, None, target, context)

    def _tell(self, journal: Journal, run: int, stage: str, changed: Any, target: str, context: Context) -> bool:
        """Whether there was anybody to tell. A stage that is done does not fail for what Airflow makes of it."""
        try:
            return assets.tell(context, journal, run, stage, changed, target)
        except (psycopg.Error, PgddlError):  # worth a retry, which tells of all
            raise
        except Exception as error:  # noqa: BLE001
            self.log.warning("no DAG starts on what %s has changed: %s: %s", stage, type(error).__name__, error)
            return False


def small(result: Mapping[str, Any]) -> dict[str, Any]:
    """A stage's result as an XCom: the figures and what is blocked, but of all other tables only their number."""
    return {
        "stage": result["stage"],
        "pipeline": result["pipeline"],
        "run": result["run"],
        "state": result["state"],
        "tables": len(result.get("tables", ())),
        "figures": dict(result.get("figures", {})),
        "blocked": list(result.get("blocked", ())),
    }
