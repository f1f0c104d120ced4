"""Links that a task has in Airflow's pages."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink, conf

from airflow_provider_pgddl.description import describe

log = logging.getLogger(__name__)


class PipelineLink(BaseOperatorLink):  # type: ignore[misc]
    """To the pipeline's page."""

    name = "Pipeline"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        told = describe(operator)
        if told is None:
            return ""
        base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
        return f"{base}/pgddl/{quote(ti_key.dag_id, safe='')}/{quote(told['pipeline'], safe='')}"


class SparkLink(BaseOperatorLink):  # type: ignore[misc]
    """To Spark's own page, which is there while the application is: only a running task knows where (`show_spark`)."""

    name = "Spark"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow asks once the task has ended
        return ""


def show_spark(context: Any, url: str) -> None:
    _push(context, SparkLink().xcom_key, url)


def show(task: Any, context: Any) -> None:
    """While the task runs, too: Airflow itself looks for links once it has ended."""
    for link in task.operator_extra_links:
        if url := link.get_link(task, ti_key=context["ti"]):
            _push(context, link.xcom_key, url)


def _push(context: Any, key: str, url: str) -> None:
    """No stage ends for a link that Airflow could not be given."""
    try:
        context["ti"].xcom_push(key, url)
    except Exception as error:  # noqa: BLE001
        log.warning("%s is not shown: %s", key, type(error).__name__)
