"""The Spark provider's hook, with an environment that only its process has."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any, cast

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_provider_pgddl.engine.parallel.executor_settings import PAGE


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
    def of(cls, hook: SparkSubmitHook) -> PrivateEnvHook:
        """The same hook, which nobody else has yet, with an environment of its own."""
        hook.__class__, hook.private_env = cls, {}
        return cast("PrivateEnvHook", hook)

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
            if self.on_spark_page is not None and (url := str(line).partition(PAGE)[2].strip()):
                self.on_spark_page(url)
            yield line

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
