"""Commands of DDL by their tags: the lists that `ddl.create_tags` and its like begin with."""

from __future__ import annotations

import difflib
import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from airflow_provider_pgddl.engine.ddl.subcommands import KNOWN
from airflow_provider_pgddl.engine.pipeline.fields import Text

# `ddl.tags: all`: what can be carried. Not in it is what is set up by people on each side, or holds their passwords
# (publications, subscriptions, user mappings), and what leaves no definition behind (REFRESH, REINDEX).
_MADE = (
    "ACCESS METHOD", "AGGREGATE", "CAST", "COLLATION", "CONVERSION", "DOMAIN", "EXTENSION", "FOREIGN DATA WRAPPER",
    "FOREIGN TABLE", "FUNCTION", "INDEX", "LANGUAGE", "MATERIALIZED VIEW", "OPERATOR", "OPERATOR CLASS",
    "OPERATOR FAMILY", "POLICY", "PROCEDURE", "RULE", "SCHEMA", "SEQUENCE", "SERVER", "STATISTICS", "TABLE",
    "TEXT SEARCH CONFIGURATION", "TEXT SEARCH DICTIONARY", "TEXT SEARCH PARSER", "TEXT SEARCH TEMPLATE",
    "TRANSFORM", "TRIGGER", "TYPE", "VIEW",
)  # fmt: skip
_NEVER_ALTERED = {"ACCESS METHOD", "CAST", "TRANSFORM"}
ALL_CREATE_TAGS = (
    *(f"CREATE {kind}" for kind in _MADE),
    *(f"ALTER {kind}" for kind in _MADE if kind not in _NEVER_ALTERED),
    "ALTER DEFAULT PRIVILEGES",
    "ALTER ROUTINE",
    "COMMENT",
    "GRANT",
    "REVOKE",
    "SECURITY LABEL",
)
ALL_DROP_TAGS = (*(f"DROP {kind}" for kind in _MADE), "DROP OWNED", "DROP ROUTINE")

# `ddl.tags: pgl_ddl_deploy`: the installed lists of pgl_ddl_deploy 2.1/2.2
CREATE_TAGS = (
    "ALTER TABLE", "CREATE SEQUENCE", "ALTER SEQUENCE", "CREATE SCHEMA", "CREATE TABLE", "CREATE FUNCTION",
    "ALTER FUNCTION", "CREATE TYPE", "ALTER TYPE", "CREATE VIEW", "ALTER VIEW", "COMMENT", "CREATE RULE",
    "CREATE TRIGGER", "ALTER TRIGGER",
)  # fmt: skip
DROP_TAGS = ("DROP SCHEMA", "DROP TABLE", "DROP FUNCTION", "DROP TYPE", "DROP VIEW", "DROP SEQUENCE")
# Those that can take rows away.
DROPS_OF_TABLES = ("DROP TABLE", "DROP SCHEMA", "DROP OWNED")
# With `scope: replicated_tables` nothing else can be attributed to a replicated table.
REPLICATED_TABLES_TAGS = ("ALTER TABLE", "COMMENT")
BLOCKED_TAGS = (
    "INSERT", "UPDATE", "DELETE", "TRUNCATE", "ROLLBACK", "CREATE EXTENSION", "ALTER EXTENSION", "DROP EXTENSION",
)  # fmt: skip
# pgl_ddl_deploy.common_exclude_alter_table_subcommands(); asked for by the word `common`, nothing is cut by default.
COMMON_ALTER_TABLE_SUBCOMMANDS = (
    "ADD CONSTRAINT", "ADD CONSTRAINT (and recurse)", "(re) ADD CONSTRAINT", "ALTER CONSTRAINT",
    "VALIDATE CONSTRAINT", "VALIDATE CONSTRAINT (and recurse)", "ADD (processed) CONSTRAINT",
    "ADD CONSTRAINT (using index)", "DROP CONSTRAINT", "DROP CONSTRAINT (and recurse)", "SET LOGGED",
    "SET UNLOGGED", "SET TABLESPACE", "SET RELOPTIONS", "RESET RELOPTIONS", "REPLACE RELOPTIONS", "ENABLE TRIGGER",
    "ENABLE TRIGGER (always)", "ENABLE TRIGGER (replica)", "DISABLE TRIGGER", "ENABLE TRIGGER (all)",
    "DISABLE TRIGGER (all)", "ENABLE TRIGGER (user)", "DISABLE TRIGGER (user)", "ENABLE RULE", "ENABLE RULE (always)",
    "ENABLE RULE (replica)", "DISABLE RULE", "SET OPTIONS",
)  # fmt: skip


def _tag(text: str) -> str:
    tag = " ".join(text.upper().split())
    if not re.fullmatch(r"[A-Z]+( [A-Z]+)*", tag):
        raise ValueError("expected a command tag, such as CREATE TABLE")
    return tag


def _subcommands(value: object) -> object:
    return list(COMMON_ALTER_TABLE_SUBCOMMANDS) if value == "common" else value


def _subcommand(text: str) -> str:
    known = {name.upper(): name for name in KNOWN}
    name = " ".join(text.upper().split())
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {known[close[0]]}?" if close else ""
        raise ValueError(f"{text} is no subcommand of ALTER TABLE{hint}")
    return known[name]


Tag = Annotated[str, AfterValidator(_tag)]
Subcommands = Annotated[tuple[Annotated[Text, AfterValidator(_subcommand)], ...], BeforeValidator(_subcommands)]
