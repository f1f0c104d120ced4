"""Assets, on which DAGs are scheduled: tables whose rows have changed, of which tasks tell Airflow, and what waits for
a person, which the triggerer watches."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias, AssetWatcher
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.connections import refuse_commands

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgddl.engine.journal.pipelines import Journal
    from airflow_provider_pgddl.engine.journal.tables import TableRow


def alias(pipeline: str) -> AssetAlias:
    """The outlet of the tasks of a pipeline that change tables: which these are is known only once they have."""
    return AssetAlias(f"pgddl/{pipeline}")


def ddl_waits(pipeline: str | os.PathLike[str] | Mapping[str, Any], *, poke_interval: float = 30) -> Asset:
    """An asset with an event each time when more DDL of this pipeline waits for a person: `schedule=[ddl_waits(...)]`.
    `pipeline` is a dict, YAML text, or an absolute path; looked for every `poke_interval` seconds, by the triggerer."""
    return _watched(pipeline, "ddl", poke_interval)


def mismatch_stands(pipeline: str | os.PathLike[str] | Mapping[str, Any], *, poke_interval: float = 30) -> Asset:
    """The same for each table that the schema gate stops."""
    return _watched(pipeline, "mismatch", poke_interval)


def _watched(
    given: str | os.PathLike[str] | Mapping[str, Any], watched: Literal["ddl", "mismatch"], poke_interval: float
) -> Asset:
    from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline, refuse_literal_secrets
    from airflow_provider_pgddl.triggers.schema import ends_of
    from airflow_provider_pgddl.triggers.watch import PgddlWatchTrigger

    refuse_literal_secrets(given)
    pipeline = load_pipeline(given)
    refuse_commands(pipeline)
    ends = json.dumps(ends_of(pipeline), sort_keys=True)
    trigger = PgddlWatchTrigger(pipeline=ends, watched=watched, poke_interval=poke_interval)
    name = f"pgddl/{pipeline.pipeline}/{watched}"
    return Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])


def place(conninfo: str, schema: str, table: str) -> tuple[str, str]:
    """`postgres://host:port` and `database.schema.table`, which is how OpenLineage has it."""
    parts = conninfo_to_dict(conninfo)
    host = str(parts.get("host") or parts.get("hostaddr") or "").partition(",")[0]
    port = str(parts.get("port") or "").partition(",")[0] or "5432"
    where = "localhost" if not host or host.startswith(("/", "@")) else host
    if ":" in where:  # an IPv6 address
        where = f"[{where}]"
    return f"postgres://{where}:{port}", f"{_database(conninfo)}.{schema}.{table}"


def uri(conninfo: str, schema: str, table: str) -> str:
    """`postgres://host:port/database/schema/table`, as the Postgres provider has it."""
    server, _ = place(conninfo, schema, table)
    return "/".join((server, *(quote(name, safe="") for name in (_database(conninfo), schema, table))))


def _database(conninfo: str) -> str:
    parts = conninfo_to_dict(conninfo)
    return str(parts.get("dbname") or parts.get("user") or "")


def tell(
    context: Context,
    journal: Journal,
    run: int,
    stage: str,
    changed: Mapping[str, Mapping[str, Any]] | None,
    conninfo: str,
) -> bool:
    """An event for each of these tables (`schema.table` → figures) of a run, or for all where None; none, and False,
    where the task has not the pipeline's alias as an outlet."""
    outlet = alias(journal.pipeline)
    if outlet not in context["task"].outlets:
        return False
    tables = journal.tables.of(run)
    rows = _compared(journal, tables) if stage == "swap" else {}
    for table in tables:
        name = table.qualified
        if changed is None or name in changed:
            figures = {**rows.get(name, {}), **(changed or {}).get(name, {})}
            asset = Asset(uri(conninfo, table.schema, table.name))
            extra = {"pipeline": journal.pipeline, "run": run, "stage": stage, **figures}
            context["outlet_events"][outlet].add(asset, extra=extra)
    return True


def _compared(journal: Journal, tables: Sequence[TableRow]) -> dict[str, dict[str, int]]:
    """How many rows each table had when it was last compared whole; those that were not are left out."""
    found = journal.verification.of_tables([table.id for table in tables])
    return {t.qualified: {"rows": found[t.id].rows} for t in tables if t.id in found and not found[t.id].ranges_left}
