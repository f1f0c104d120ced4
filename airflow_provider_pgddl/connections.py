"""Airflow connections as libpq connection strings.

Not `PostgresHook.get_uri()`, which drops sslmode and every extra, nor `Connection.get_uri()`, which yields
`?__extra__=`. The strings hold passwords: they go into the environment of a driver and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.engine.errors import NoConnection, Retry, UsageError
from airflow_provider_pgddl.engine.job.file import SECRETS, End
from airflow_provider_pgddl.engine.pipeline.endpoint import Endpoint
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.server.credentials import Broker

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
# With which PostgresHook makes a password itself, that is good for a while.
TOKEN_EXTRAS = ("iam", "azure_conn_id")
REFUSED_EXTRAS = ("ssh_conn_id",)


def conninfo_of(connection: Any) -> str:
    """The connection string of an Airflow connection object; `UsageError` where it cannot be one."""
    where = f"connection {connection.conn_id}"
    if connection.conn_type not in ("postgres", "postgresql"):
        raise UsageError(f"{where} is of type {connection.conn_type}, not postgres", todo="change its type")
    extra: Mapping[str, Any] = connection.extra_dejson
    for key in REFUSED_EXTRAS:
        if extra.get(key):
            raise UsageError(f"{where}: the extra {key} is not supported", todo="give it a login and a password")
    login, password, port = connection.login, connection.password, connection.port
    if has_token(connection):
        login, password, port = _token(connection)
    parts = {
        "host": connection.host,
        "port": port,
        "dbname": connection.schema,
        "user": login,
        "password": password,
        **{key: value for key, value in extra.items() if key in LIBPQ_EXTRAS},
    }
    return make_conninfo("", **{key: value for key, value in parts.items() if value not in (None, "")})


def has_token(connection: Any) -> bool:
    """Whether the connection's password is one that the Postgres provider's hook asks a cloud for."""
    return any(connection.extra_dejson.get(key) for key in TOKEN_EXTRAS)


def _token(connection: Any) -> tuple[str, str, int]:
    """Login, password and port by that hook."""
    from airflow.exceptions import AirflowOptionalProviderFeatureException
    from airflow.providers.postgres.hooks.postgres import PostgresHook

    try:
        return PostgresHook(connection=connection).get_iam_token(connection)  # type: ignore[no-any-return]
    except AirflowOptionalProviderFeatureException:
        raise UsageError(
            f"connection {connection.conn_id}: its extra asks for a cloud's token, and that provider is missing",
            todo="pip install apache-airflow-providers-amazon (for iam), apache-airflow-providers-microsoft-azure (for "
            "azure_conn_id)",
        ) from None
    except Exception as error:  # noqa: BLE001 - the clouds' errors have no class in common
        # Its text may repeat what was asked for.
        raise Retry(
            f"connection {connection.conn_id}: the Postgres provider's hook got no token ({type(error).__name__})",
            todo="try it with PostgresHook by hand; the provider of the cloud has to be installed",
        ) from None


def refuse_commands(pipeline: Pipeline) -> None:
    """UsageError for a dsn_command: an operator's pipeline is a template, whose author would choose what is run."""
    for side, endpoint in (("source", pipeline.source), ("target", pipeline.target)):
        if endpoint is not None and endpoint.dsn_command is not None:
            raise UsageError(
                f"{pipeline.where(side, 'dsn_command')}: a command is not run in an operator",
                todo="use conn_id, whose extras iam and azure_conn_id do the same",
            )


@contextmanager
def handed_out(
    pipeline: Pipeline, lookup: Callable[[str], Any], env: Mapping[str, str], found: Mapping[End, str], host: str
) -> Iterator[dict[End, str]]:
    """The connection strings for a run: where a credential changes, one with which every new session gets a fresh one
    from this process, at `host`."""
    ends: dict[End, Endpoint] = {"source": pipeline.source}
    if pipeline.target is not None:
        ends["target"] = pipeline.target
    changing = {side: end for side, end in ends.items() if _changes(pipeline, end, side, lookup)}
    if not changing:
        yield dict(found)
        return
    ask: dict[str, Callable[[], str]] = {}
    for side, end in changing.items():
        ask[side] = partial(_conninfo, pipeline, end, side, lookup, env)
    broker = Broker(ask, known={side: found[side] for side in changing}, host=host)
    try:
        yield {**found, **{side: broker.reference(side) for side in changing}}
    finally:
        broker.close()


def refuse_changing(pipeline: Pipeline, lookup: Callable[[str], Any]) -> None:
    """UsageError where this process would have to hand out credentials to a driver that may outlive it."""
    ends: tuple[tuple[End, Endpoint | None], ...] = (("source", pipeline.source), ("target", pipeline.target))
    for side, end in ends:
        if end is not None and _changes(pipeline, end, side, lookup):
            raise UsageError(
                f"deploy mode cluster: the {side}'s credentials are made anew here, and the driver is elsewhere",
                todo="use a password that stays, in the file of spark.secrets, or client mode",
            )


def _changes(pipeline: Pipeline, endpoint: Endpoint, side: End, lookup: Callable[[str], Any]) -> bool:
    if endpoint.conn_id is None:
        return endpoint.dsn_command is not None
    return has_token(_connection(pipeline, endpoint.conn_id, side, lookup))


def secrets(pipeline: Pipeline, lookup: Callable[[str], Any], env: Mapping[str, str]) -> dict[End, str]:
    """The connection string of each side that the pipeline names: a dsn from `env`, a conn_id by `lookup`."""
    found: dict[End, str] = {"source": _conninfo(pipeline, pipeline.source, "source", lookup, env)}
    if pipeline.target is not None:
        found["target"] = _conninfo(pipeline, pipeline.target, "target", lookup, env)
    return found


def _conninfo(
    pipeline: Pipeline, endpoint: Endpoint, side: End, lookup: Callable[[str], Any], env: Mapping[str, str]
) -> str:
    if endpoint.conn_id is None:
        return endpoint.resolve(env)
    return conninfo_of(_connection(pipeline, endpoint.conn_id, side, lookup))


def _connection(pipeline: Pipeline, conn_id: str, side: End, lookup: Callable[[str], Any]) -> Any:
    connection = lookup(conn_id)
    if connection is None:
        raise NoConnection(
            f"{pipeline.where(side, 'conn_id')}: Airflow knows no connection {conn_id}",
            todo=f"airflow connections add {conn_id} --conn-type postgres --conn-host ... "
            f"or set AIRFLOW_CONN_{conn_id.upper()}",
        )
    return connection


def in_environment(found: Mapping[End, str]) -> dict[str, str]:
    """Connection strings under the names that a job file gives."""
    return {SECRETS[side]: conninfo for side, conninfo in found.items()}


def lookup_in_task(conn_id: str) -> Any:
    """The connection as a running task sees it (every configured secrets backend); None where there is none, and where
    a backend, or the API server, does not answer: Airflow tells nobody which of both it was."""
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
