"""The ALTER TABLE actions of `rewrite.alter`: taken apart, what cannot be done to a copy refused. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from postgast import ParseResult, PgQueryError, pg_query_pb2
from postgast import parse as parse_any

from airflow_provider_pgddl.engine.ddl.node_names import action_name
from airflow_provider_pgddl.engine.ddl.parse import Node, deparse, kind_of, parse, statement_node, unwrap, walk
from airflow_provider_pgddl.engine.errors import StageFailed, UsageError

# What an action may be, and its name here. A copy is made by SELECT: RENAME would lose a column's values (C12),
# constraints and triggers come from the live table, and a column that the live table lacks has no values.
_KINDS = {
    "AT_AlterColumnType": "TYPE",
    "AT_SetNotNull": "SET NOT NULL",
    "AT_DropNotNull": "DROP NOT NULL",
    "AT_SetStatistics": "SET STATISTICS",
    "AT_SetStorage": "SET STORAGE",
    "AT_SetCompression": "SET COMPRESSION",
    "AT_SetOptions": "SET",
    "AT_ResetOptions": "RESET",
    "AT_SetRelOptions": "SET",
    "AT_ResetRelOptions": "RESET",
    "AT_SetTableSpace": "SET TABLESPACE",
    "AT_DropColumn": "DROP COLUMN",
}
_SETTINGS = ("SET DEFAULT", "DROP DEFAULT", "SET STATISTICS", "SET STORAGE", "SET COMPRESSION")
_SUPPORTED = (
    "ALTER COLUMN … TYPE [USING], SET/DROP NOT NULL, SET/DROP DEFAULT, SET STATISTICS/STORAGE/COMPRESSION, "
    "SET/RESET (…), SET TABLESPACE, DROP COLUMN"
)


@dataclass(frozen=True, slots=True)
class AlterAction:
    """One action of an ALTER TABLE."""

    kind: str
    """``TYPE``, ``SET DEFAULT``, ``DROP COLUMN`` …"""
    column: str | None
    suffix: str
    """The action as SQL, to stand behind ALTER TABLE and a name; without USING."""
    using: str | None = None
    """The expression that makes the new value from the old row; belongs into the copying SELECT, never here."""

    @property
    def is_setting(self) -> bool:
        """Whether pg_dump has a statement of its own for what this sets, behind CREATE TABLE."""
        return self.kind in _SETTINGS or (self.kind in ("SET", "RESET") and self.column is not None)

    def on(self, schema: str, table: str, *, only: bool = True) -> str:
        """The action as a statement on a table; without `only` on its partitions too."""
        tree = parse(f"ALTER TABLE {'ONLY ' if only else ''}t {self.suffix}")
        target = statement_node(tree).relation
        target.schemaname, target.relname = schema, table
        return deparse(tree)


def alter_actions(actions: Iterable[str]) -> list[AlterAction]:
    """The actions of `rewrite.alter`, several in one text told apart; UsageError names one that is not supported."""
    return [taken for text in actions for taken in _taken_apart(text)]


def dropped_columns(actions: Iterable[str]) -> list[str]:
    """The columns that the copy does not have any more."""
    return [a.column for a in alter_actions(actions) if a.kind == "DROP COLUMN" and a.column]


def retyped_columns(actions: Iterable[str]) -> list[str]:
    """The columns that get another type."""
    return [a.column for a in alter_actions(actions) if a.kind == "TYPE" and a.column]


@lru_cache(10_000)  # asked for each table and column, of a file that may have hundreds
def _taken_apart(text: str) -> tuple[AlterAction, ...]:
    try:
        tree = parse_any(f"ALTER TABLE ONLY t {text}")
    except PgQueryError as error:
        raise UsageError(f"rewrite.alter: cannot read {text!r}: {error.message}", todo=_todo()) from None
    if len(tree.stmts) != 1:
        raise UsageError(f"rewrite.alter: one action is expected, not several statements: {text!r}", todo=_todo())
    node = statement_node(tree)
    if kind_of(node) != "AlterTableStmt":
        name = "RENAME" if kind_of(node) == "RenameStmt" else text
        raise UsageError(f"rewrite.alter: {name} is not supported: {text!r}", todo=_todo())
    return tuple(_action(unwrap(command), text) for command in node.cmds)


def _action(command: Node, text: str) -> AlterAction:
    name = action_name(command)
    kind = _KINDS.get(name)
    if name == "AT_ColumnDefault":
        kind = "SET DEFAULT" if command.HasField("def") else "DROP DEFAULT"
    if kind is None:
        raise UsageError(f"rewrite.alter: {_words(name)} is not supported: {text!r}", todo=_todo())
    if command.behavior == pg_query_pb2.DROP_CASCADE:
        raise UsageError(f"rewrite.alter: CASCADE is not supported: {text!r}", todo="name what else is to go")
    using = None
    if name == "AT_AlterColumnType":
        column = unwrap(getattr(command, "def"))
        if column.HasField("raw_default"):
            using = _expression(column.raw_default, text)
            column.ClearField("raw_default")
    elif kind == "SET DEFAULT":
        _expression(getattr(command, "def"), text)
    try:
        suffix = deparse(_alone(command)).removeprefix("ALTER TABLE ONLY t ")
    except StageFailed as error:
        raise UsageError(f"rewrite.alter: {error.what}: {text!r}") from None
    return AlterAction(kind=kind, column=_column(name, command), suffix=suffix, using=using)


def _alone(command: Node) -> ParseResult:
    tree = parse("ALTER TABLE ONLY t DROP COLUMN x")
    only = statement_node(tree).cmds[0].alter_table_cmd
    only.CopyFrom(command)
    return tree


def _column(name: str, command: Node) -> str | None:
    return command.name or None if name != "AT_SetTableSpace" else None


def _expression(expression: Node, text: str) -> str:
    """An expression as text; one with a query in it is none that ALTER TABLE takes."""
    if any(kind_of(node) in ("SubLink", "SelectStmt") for node in walk(expression)):
        raise UsageError(f"rewrite.alter: a query in an expression is not supported: {text!r}")
    tree = parse("SELECT 1")
    statement_node(tree).target_list[0].res_target.val.CopyFrom(expression)
    return deparse(tree).removeprefix("SELECT ")


def _words(name: str) -> str:
    """AT_AddConstraint as ``ADD CONSTRAINT``."""
    return "".join(f" {letter}" if letter.isupper() else letter for letter in name.removeprefix("AT_")).strip().upper()


def _todo() -> str:
    return f"use one of: {_SUPPORTED}"
