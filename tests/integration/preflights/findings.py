"""What preflight finds about a pipeline, and the roles that it is asked for."""

from __future__ import annotations

import os
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.selection import matches
from airflow_provider_pgddl.engine.preflight import preflight
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import connect

ROLES: list[tuple[Cluster, str]] = []


def role(cluster: Cluster, name: str, options: str = "LOGIN") -> str:
    """A role of this test alone; its password is the cluster's."""
    name = f"{name}_{os.getpid()}"
    with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE ROLE {} {} PASSWORD {}").format(
                sql.Identifier(name), sql.SQL(options), sql.Literal(cluster.password)
            )
        )
    ROLES.append((cluster, name))
    return name


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        for statement in statements:
            admin.execute(statement)


def as_user(dsn: str, user: str) -> str:
    return make_conninfo(**{**conninfo_to_dict(dsn), "user": user})


def migrate(**sections: Any) -> dict[str, Any]:
    return {
        "pipeline": "shop",
        "source": {"conn_id": "shop_source"},
        "target": {"conn_id": "shop_target"},
        "tables": {"include": ["*.*"]},
        **sections,
    }


def in_place(*tables: str, **sections: Any) -> dict[str, Any]:
    return {"pipeline": "shop", "source": {"conn_id": "shop"}, "rewrite": {table: {} for table in tables}, **sections}


# For anybody but a superuser.
UNCAPTURED: dict[str, Any] = {"capture": {"ddl": "off"}}


def findings(pipeline: dict[str, Any], source: str, target: str | None = None) -> list[Finding]:
    file = load_pipeline(pipeline)
    with (
        connect(source, purpose="preflight", pipeline="shop") as one,
        connect(target or source, purpose="preflight", pipeline="shop") as other,
    ):
        names = matches(file, catalog.table_names(one))
        return preflight(file, one, other, [*names.rows, *names.schema_only])


def errors(found: list[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.severity == "error"]


def only(found: list[Finding], code: str) -> Finding:
    assert [finding.code for finding in errors(found)] == [code], "\n".join(map(str, found))
    return errors(found)[0]


def apply_fix(dsn: str, finding: Finding) -> None:
    """The finding's SQL, up to what it says to do after the swap."""
    assert finding.fix is not None
    run(dsn, finding.fix.split("-- after the swap")[0])


ORDERS = "CREATE TABLE public.orders (id int PRIMARY KEY, note text)"
