"""What Airflow is told of tables whose rows have changed: events of assets, on which other DAGs are scheduled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.engine.model.names import Name

if TYPE_CHECKING:
    from airflow.sdk import Context


def alias(pipeline: str) -> AssetAlias:
    """The outlet of the tasks of a pipeline that change tables: which these are is known only once they have."""
    return AssetAlias(f"pgddl/{pipeline}")


def uri(conninfo: str, schema: str, table: str) -> str:
    """`postgres://host:port/database/schema/table`, as the Postgres provider has it."""
    parts = conninfo_to_dict(conninfo)
    host = str(parts.get("host") or parts.get("hostaddr") or "").partition(",")[0]
    port = str(parts.get("port") or "").partition(",")[0] or "5432"
    database = str(parts.get("dbname") or parts.get("user") or "")
    names = "/".join(quote(name, safe="") for name in (database, schema, table))
    return f"postgres://{'localhost' if not host or host.startswith(('/', '@')) else host}:{port}/{names}"


def tell(
    context: Context, pipeline: str, conninfo: str, tables: Mapping[Name, Mapping[str, Any]], **extra: Any
) -> None:
    """An event for each of these tables; nothing where the task has not the pipeline's alias as an outlet."""
    outlet = alias(pipeline)
    if outlet not in context["task"].outlets:
        return
    for name, figures in tables.items():
        asset = Asset(uri(conninfo, *name))
        context["outlet_events"][outlet].add(asset, extra={"pipeline": pipeline, **extra, **figures})
