"""Airflow connections as libpq connection strings.

Not `PostgresHook.get_uri()`, which drops sslmode and every extra, nor `Connection.get_uri()`, which yields
`?__extra__=`. The strings hold passwords: they go into the environment of a driver and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.job.file import SECRETS, End
from airflow_provider_pgddl.engine.pipeline.endpoint import Endpoint
from airflow_provider_pgddl.engine.pipeline.model import Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable

# What may come from a connection's extra: how to reach a server and prove who we are. Session settings are not among
# these (search_path, timeouts, encodings: the engine pins its own).
LIBPQ_EXTRAS = frozenset(
    (
        "hostaddr", "passfile", "require_auth", "channel_binding", "connect_timeout", "options", "keepalives",
        "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout", "gssencmode",
        "krbsrvname", "gsslib", "gssdelegation", "service", "sslmode", "sslnegotiation", "sslcompression",
        "sslcert", "sslkey", "sslpassword", "sslcertmode", "sslrootcert", "sslcrl", "sslcrldir", "sslsni",
        "ssl_min_protocol_version", "ssl_max_protocol_version", "requirepeer", "target_session_attrs",
        "load_balance_hosts",
    )
)  # fmt: skip
# Extras with which PostgresHook makes a password itself; without it the login would fail for no visible reason.
REFUSED_EXTRAS = ("iam", "azure_conn_id", "ssh_conn_id")


def conninfo_of(connection: Any) -> str:
    """The connection string of an Airflow connection object; `UsageError` where it cannot be one."""
    where = f"connection {connection.conn_id}"
    if connection.conn_type not in ("postgres", "postgresql"):
        raise UsageError(f"{where} is of type {connection.conn_type}, not postgres", todo="change its type")
    extra: Mapping[str, Any] = connection.extra_dejson
    for key in REFUSED_EXTRAS:
        if extra.get(key):
            raise UsageError(f"{where}: the extra {key} is not supported", todo="give it a login and a password")
    parts = {
        "host": connection.host,
        "port": connection.port,
        "dbname": connection.schema,
        "user": connection.login,
        "password": connection.password,
        **{key: value for key, value in extra.items() if key in LIBPQ_EXTRAS},
    }
    return make_conninfo("", **{key: value for key, value in parts.items() if value not in (None, "")})


def secrets(pipeline: Pipeline, lookup: Callable[[str], Any], env: Mapping[str, str]) -> dict[End, str]:
    """The connection string of each side that the pipeline names: a dsn from `env`, a conn_id by `lookup`."""

    def conninfo(endpoint: Endpoint, side: End) -> str:
        if endpoint.conn_id is None:
            return endpoint.resolve(env)
        connection = lookup(endpoint.conn_id)
        if connection is None:
            raise UsageError(
                f"{pipeline.where(side, 'conn_id')}: Airflow knows no connection {endpoint.conn_id}",
                todo=f"airflow connections add {endpoint.conn_id} --conn-type postgres --conn-host ... "
                f"or set AIRFLOW_CONN_{endpoint.conn_id.upper()}",
            )
        return conninfo_of(connection)

    found: dict[End, str] = {"source": conninfo(pipeline.source, "source")}
    if pipeline.target is not None:
        found["target"] = conninfo(pipeline.target, "target")
    return found


def in_environment(found: Mapping[End, str]) -> dict[str, str]:
    """Connection strings under the names that a job file gives."""
    return {SECRETS[side]: conninfo for side, conninfo in found.items()}


def lookup_in_task(conn_id: str) -> Any:
    """The connection as a running task sees it (every configured secrets backend); None where there is none."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        return None


def lookup_in_shell(conn_id: str) -> Any:
    """The connection as `airflow connections get` sees it: environment, secrets backends, Airflow's database."""
    from airflow.exceptions import AirflowNotFoundException
    from airflow.models.connection import Connection

    try:
        return Connection.get_connection_from_secrets(conn_id)
    except AirflowNotFoundException:
        return None
