"""The Spark provider's hook, with an environment that only its process has."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import psutil
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_provider_pgddl.engine.errors import NoConnection
from airflow_provider_pgddl.engine.parallel.executor_settings import PAGE

# From SIGTERM to SIGKILL: Airflow's supervisor gives a task five seconds before it kills the task itself.
LAST_WORDS = 3.0
# The whole line as we say it: a table may be called as part of one.
_PAGE = re.compile(rf"pgddl \w+: {re.escape(PAGE)}(https?://\S+)")
NOT_FOUND = "yarn"  # the Spark provider's master where it finds no connection


def no_spark(conn_id: str) -> NoConnection:
    return NoConnection(
        f"Airflow knows no Spark connection {conn_id}",
        todo=f"airflow connections add {conn_id} --conn-type spark --conn-host 'local[2]' "
        "(or the URL of your master), or give the operator another conn_id",
    )


class PrivateEnvHook(SparkSubmitHook):  # type: ignore[misc]
    """spark-submit with variables that only its process environment holds.

    `env_vars` would not do: it is a template field, stored and shown in the UI, and on YARN and Kubernetes the hook
    puts it on the command line. In client mode the driver inherits the environment of spark-submit.
    """

    _submit_sp: subprocess.Popen[str] | None
    _env: dict[str, Any] | None

    private_env: dict[str, str]
    on_spark_page: Callable[[str], None] | None = None

    @classmethod
    def of(cls, hook: SparkSubmitHook, host: str | None) -> PrivateEnvHook:
        """The same hook, which nobody else has yet, with an environment of its own. `host` is what its connection had
        a moment ago; the Spark provider goes to YARN where it cannot be had."""
        hook.__class__, hook.private_env = cls, {}
        own = cast("PrivateEnvHook", hook)
        if own.master == NOT_FOUND and host != NOT_FOUND:
            raise no_spark(hook._conn_id)
        return own

    @property
    def master(self) -> str:
        """The Spark master of the connection."""
        return str(self._connection["master"])

    @property
    def process(self) -> subprocess.Popen[str] | None:
        """spark-submit, which is the driver's JVM, once it has been started."""
        return self._submit_sp

    @property
    def binary(self) -> str:
        """What is started to submit."""
        return str(self._connection["spark_binary"])

    def on_kill(self) -> None:
        """Also where this machine has no `yarn`: a driver that runs elsewhere has been told to stop by then."""
        try:
            super().on_kill()
        except FileNotFoundError as missing:
            self.log.warning("no %s is found here, so the cluster itself is not told to stop", missing.filename)

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        super()._process_spark_submit_log(self._watched(itr))

    def _watched(self, lines: Iterator[Any]) -> Iterator[Any]:
        for line in lines:
            if self.on_spark_page is not None and (found := _PAGE.fullmatch(str(line).rstrip())):
                self.on_spark_page(found[1])
            yield line

    def end_family(self) -> None:
        """The processes of spark-submit, which runs. A driver told to stop cancels what the servers are doing for it,
        so it comes before its JVM."""
        try:
            jvm = psutil.Process(self._submit_sp.pid)  # type: ignore[union-attr]
            family = [*jvm.children(recursive=True), jvm]
        except psutil.NoSuchProcess:
            return
        for process in family:
            _signal(process.terminate)
        # The JVM is our child: its exit status belongs to the Popen object, psutil must not reap it.
        _, alive = psutil.wait_procs(family[:-1], timeout=LAST_WORDS)
        for process in [*alive, jvm]:
            _signal(process.kill)

    @property
    def deploy_mode(self) -> str | None:
        """What the operator or the connection says; it wins over Spark's settings."""
        return cast("str | None", self._connection["deploy_mode"])

    @property
    def in_cluster_mode(self) -> bool:
        return self.deploy_mode == "cluster"

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command: list[str] = super()._build_spark_submit_command(application)
        # submit() starts the process with os.environ and this; building the command has just set it from env_vars.
        self._env = {**(self._env or {}), **self.private_env}
        return command


def _signal(send: Callable[[], object]) -> None:
    with suppress(psutil.NoSuchProcess):
        send()
