"""What is not kept of client strings before they are written to the journal: statements that may hold a password, and,
where values are to stay on the source (`tables.where`, `tables.transform`), all that may hold one of these. Pure."""

from __future__ import annotations

import re

from airflow_provider_pgddl.engine.ddl.client_string import Statement, read_string
from airflow_provider_pgddl.engine.ddl.node_names import object_type_words
from airflow_provider_pgddl.engine.ddl.parse import deparse, kind_of, parse, split, statement_node
from airflow_provider_pgddl.engine.errors import StageFailed

LEFT_OUT = "/* left out by pgddl: may hold a secret */"
VALUE_LEFT_OUT = "/* left out by pgddl: may hold a value that stays on the source */"

# Where SQL has a place for a password or a connection string.
_KINDS = {
    "CreateRoleStmt",
    "AlterRoleStmt",
    "CreateUserMappingStmt",
    "AlterUserMappingStmt",
    "CreateSubscriptionStmt",
    "AlterSubscriptionStmt",
}
# What can have one in it, and mostly has not.
_PERHAPS = {"CreateForeignServerStmt", "AlterForeignServerStmt", "DoStmt", "CallStmt", "SelectStmt"}
_SUSPECT = re.compile(r"\b(password|mapping|subscription|server)\b", re.IGNORECASE)
_QUOTED_SECRET = re.compile(r"\b(?:password|connection)\b\s*=?\s*'", re.IGNORECASE)
# Commands that say what a schema is, so what they say is on the target anyway.
_OF_A_SCHEMA = re.compile(
    "Alter|Cluster|Comment|CompositeType|Create|Define|Drop|Grant|ImportForeign|Index|Lock|ReassignOwned|Refresh|Reindex"
    "|Rename|Rule|SecLabel|Transaction|Truncate|View"
)


def without_values(text: str) -> str:
    """The same string of commands that say what a schema is; a remark stands for each other statement (it writes rows,
    or runs code), and for what cannot be read. Comments go as well."""
    return ";\n".join(_without_values(statement) for statement in read_string(text))


def _without_values(statement: Statement) -> str:
    if statement.tree is None or not _OF_A_SCHEMA.match(kind := kind_of(statement.node)):
        return VALUE_LEFT_OUT
    if kind == "CreateTableAsStmt" and object_type_words(statement.node.objtype) == "TABLE":
        return VALUE_LEFT_OUT  # rows are chosen by it
    if "--" not in statement.text and "/*" not in statement.text:
        return statement.text
    try:
        return deparse(statement.tree)
    except StageFailed:
        return VALUE_LEFT_OUT


def without_secrets(text: str) -> str:
    """The same string, each statement that may hold a secret replaced by a remark."""
    if not _SUSPECT.search(text):
        return text
    try:
        statements = split(text)
        kinds = [kind_of(statement_node(parse(statement))) for statement in statements]
    except StageFailed:
        return LEFT_OUT if _QUOTED_SECRET.search(text) else text
    secret = [
        kind in _KINDS or (kind in _PERHAPS and bool(_QUOTED_SECRET.search(statement)))
        for kind, statement in zip(kinds, statements, strict=True)
    ]
    if not any(secret):
        return text
    return ";\n".join(LEFT_OUT if s else statement for s, statement in zip(secret, statements, strict=True))
