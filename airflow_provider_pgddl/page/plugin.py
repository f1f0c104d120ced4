"""What Airflow loads: the page under `/pgddl`, in the navigation, and on each DAG, run and task instance."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

PREFIX = "/pgddl"


def page_url() -> str:
    """The page's path, behind that of the API server."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/") + PREFIX + "/"


class Page:
    """The app, which the API server imports when it is first asked for: every task loads plugins, too."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from airflow_provider_pgddl.page.app import app

        await app(scope, receive, send)


class PgddlPlugin(AirflowPlugin):  # type: ignore[misc]
    """See `Page`."""

    name = "pgddl"
    fastapi_apps: ClassVar[list[Any]] = [{"app": Page(), "url_prefix": PREFIX, "name": "pgddl"}]
    # Airflow shows a tab on whatever it has of that kind; where nothing is ours, the page says so. It looks for a view
    # by its route alone, so each has its own.
    external_views: ClassVar[list[Any]] = [
        {"name": "pgddl", "href": page_url(), "destination": "nav", "url_route": "pgddl", "category": "browse"},
        *(
            {"name": "pgddl", "href": page_url() + query, "destination": kind, "url_route": f"pgddl-{kind}"}
            for kind, query in (
                ("dag", "{DAG_ID}"), ("dag_run", "{DAG_ID}"), ("task_instance", "{DAG_ID}?task={TASK_ID}"),
            )
        ),
    ]  # fmt: skip
