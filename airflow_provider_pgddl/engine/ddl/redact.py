"""Statements that may hold a password are not kept: client strings before they are written to the journal. Pure."""

from __future__ import annotations

import re

from airflow_provider_pgddl.engine.ddl.parse import kind_of, parse, split, statement_node
from airflow_provider_pgddl.engine.errors import StageFailed

LEFT_OUT = "/* left out by pgddl: may hold a secret */"

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
