"""An expression that somebody would have us run: what it calls, whether that is always the same, and of what type it
is. Asked of the server in a transaction that is rolled back, on an empty table of ours; no relation of anybody is
touched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import psycopg
from psycopg import sql

from airflow_provider_pgddl.engine.pipeline.expressions import Expression
from airflow_provider_pgddl.engine.rights.foreign_code import foreign_code
from airflow_provider_pgddl.engine.rights.trust import untrusted
from airflow_provider_pgddl.engine.schema.table_model import TypeModel
from airflow_provider_pgddl.engine.server import schema_reading
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("rights")
_TABLE, _VIEW = sql.Identifier("pg_temp", "pgddl_row"), sql.Identifier("pg_temp", "pgddl_expression")
# What a date or a time is read as when it is read: another value tomorrow.
_MOMENT = re.compile(r"\b(now|today|tomorrow|yesterday)\b", re.IGNORECASE)


class Unfit(Exception):
    """Why an expression is not to be run."""


def examine(
    conn: Session, columns: Mapping[str, str], of: Expression, becomes: str | None, trusted: Sequence[str]
) -> TypeModel:
    """The type of an expression over columns of these types; `becomes` is the type that it is cast to, None for a
    condition. Unfit where its value could change without the row, or it calls code of a role that is not trusted."""
    value = sql.SQL(of.sql)
    definitions = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in columns.items()
    )
    if becomes is None:
        query = sql.SQL("SELECT true AS c FROM {} AS r WHERE ({})").format(_TABLE, value)
        predicate: sql.Composable = value
    else:
        cast = sql.SQL("CAST({} AS {})").format(value, sql.SQL(becomes))
        query = sql.SQL("SELECT ({}) AS c, {} AS becomes FROM {} AS r").format(value, cast, _TABLE)
        predicate = sql.SQL("({}) IS NOT NULL").format(cast)
    try:
        with conn.transaction(force_rollback=True):
            _refuse_types(conn, {*columns.values(), *of.types}, trusted)
            conn.execute(sql.SQL("CREATE TEMPORARY TABLE {} ({})").format(_TABLE, definitions))
            conn.execute(sql.SQL("CREATE TEMPORARY VIEW {} AS {}").format(_VIEW, query))
            _refuse_strangers(conn, trusted)
            # Refused by the server unless all of it is immutable, and no aggregate, query or set of rows is in it.
            index = sql.SQL("CREATE INDEX pgddl_predicate ON {} ((1)) WHERE ({})").format(_TABLE, predicate)
            conn.execute(index)
            _refuse_moments(conn, of)
            return schema_reading.read_temporary(conn, "pgddl_expression").columns[0].type
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError, psycopg.InternalError) as error:
        said = str(error.diag.message_primary)
        if "IMMUTABLE" in said:
            said = "is not immutable: its value could change with the time or with a session's settings, and no row"
        raise Unfit(said.replace("index predicates", "it")) from None


def _refuse_types(conn: Session, types: Iterable[str], trusted: Sequence[str]) -> None:
    """Before anything of it is parsed, which reads texts as values of these."""
    own = sorted(type_ for type_ in types if "." in type_)  # the server's own are printed without a schema
    row = conn.execute(_Q["code_of_types"], {"types": own, "trusted": list(trusted)}).fetchone() if own else None
    if row is not None:
        type_, author, code = row
        raise Unfit(
            f"is about type {type_}, of which a value runs {code} of role {author} wherever it is read, here with our"
            f" rights: set trusted_roles: [{author}], or do without"
        )


def _refuse_strangers(conn: Session, trusted: Sequence[str]) -> None:
    """Before anything of it is planned, which runs what is constant in it."""
    ((view,),) = conn.execute("SELECT %s::pg_catalog.regclass::oid", [_VIEW.as_string(conn)])
    for code in foreign_code(conn, [view], trusted).get(view, ()):
        if code.kind == "expression":
            raise Unfit(
                f"calls {code.code} of role {code.author}, which would run with our rights: call another, or set "
                f"trusted_roles: [{code.author}]"
            )
    makers = conn.execute(_Q["makers_beside"], [view]).fetchall()
    strange = untrusted(conn, {role for _, role in makers if role}, trusted)
    for schema, role in makers:
        if not role or role in strange:
            who = f"role {role}" if role else "everybody"
            raise Unfit(
                f"calls a function or an operator of schema {schema}, where {who} may make another that is taken for"
                f" it: REVOKE CREATE ON SCHEMA {sql.Identifier(schema).as_string(conn)} FROM "
                f"{sql.Identifier(role).as_string(conn) if role else 'PUBLIC'}"
            )


def _refuse_moments(conn: Session, of: Expression) -> None:
    """The server has read such a text as a date, which it is no more tomorrow."""
    moments = [text for text in of.texts if _MOMENT.search(text)]
    if not moments:
        return
    query = "SELECT pg_catalog.pg_get_expr(indpred, indrelid) FROM pg_catalog.pg_index WHERE indrelid = %s::regclass"
    ((printed,),) = conn.execute(query.encode(), [_TABLE.as_string(conn)])
    for text in moments:
        if printed.count(sql.Literal(text).as_string(conn)) < moments.count(text):
            raise Unfit(f"is not immutable: '{text}' is another moment each time that it is read")
