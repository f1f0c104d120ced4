"""Links that a task has in Airflow's page."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink, conf

from airflow_provider_pgddl.description import describe


class PipelineLink(BaseOperatorLink):  # type: ignore[misc]
    """To the pipeline's page; Airflow shows it once the task has ended."""

    name = "Pipeline"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        told = describe(operator)
        if told is None:
            return ""
        base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
        return f"{base}/pgddl/{quote(ti_key.dag_id, safe='')}/{quote(told['pipeline'], safe='')}"
