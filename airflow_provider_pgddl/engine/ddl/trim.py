"""A statement of an event in scope without what is not: excluded actions, references that lead out, CASCADE. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from postgast import ParseResult, pg_query_pb2

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, TableMeta
from airflow_provider_pgddl.engine.ddl.decision import Stop
from airflow_provider_pgddl.engine.ddl.deparse import printed
from airflow_provider_pgddl.engine.ddl.drop_statements import cascade_statements
from airflow_provider_pgddl.engine.ddl.event_objects import EventObject
from airflow_provider_pgddl.engine.ddl.node_names import action_name
from airflow_provider_pgddl.engine.ddl.out_of_scope_references import (
    cut_constraint_actions,
    cut_foreign_keys,
    cut_owner,
    family_outside,
)
from airflow_provider_pgddl.engine.ddl.parse import Node, kind_of, quoted, statement_node, texts, unwrap
from airflow_provider_pgddl.engine.ddl.scope import Coverage, Rules
from airflow_provider_pgddl.engine.ddl.subcommands import cut
from airflow_provider_pgddl.engine.ddl.volatile_defaults import pin_defaults
from airflow_provider_pgddl.engine.errors import CannotRebuild


@dataclass(frozen=True, slots=True)
class Trim:
    """Of one event; what is left out is told in `notes`."""

    event: CapturedEvent
    rules: Rules
    versions: Mapping[int, TableMeta]
    targets: Sequence[EventObject]
    coverage: Coverage
    notes: list[str]

    def finished(self, tree: ParseResult, written: str, *, text: bool = True) -> list[str]:
        """A tree of which all that is to be left out is cut, and what has to be done before and behind it."""
        node = statement_node(tree)
        for outside in family_outside(node, self.coverage.covers_table):
            raise Stop("unhandled", outside)
        statements = self._cascade(node) if text else []
        whole = _length(node)
        excluded = self._cut_subcommands(node)
        reasons = [f"subcommand {name} is excluded" for name in excluded]
        for name in cut_foreign_keys(node, self.coverage.covers_table):
            if self.rules.out_of_scope_references == "unhandled":
                raise Stop("unhandled", f"it refers to {quoted(name)}, which is out of scope")
            reasons.append(f"foreign key to {quoted(name)}, which is out of scope, left out")
        for name in cut_owner(node, self.coverage.covers_table):
            reasons.append(f"owner {quoted(name)}, which is out of scope, left out")
        if self.rules.out_of_scope_references == "strip":
            for constraint in cut_constraint_actions(node, self._left_out_keys()):
                reasons.append(f"the foreign key {quoted(('', constraint))} was left out")
        self.notes.extend(reasons)
        if reasons and whole and not _length(node):
            raise Stop("skip", reasons[0])
        if self._about_left_out_key(node):
            raise Stop("skip", "it is about a foreign key that was left out")
        _if_built(node)
        oid = self.targets[0].oid if text and self.targets else None
        behind = pin_defaults(tree, self.event, oid)
        return [*statements, *printed(tree, written), *behind]

    def _cut_subcommands(self, node: Node) -> list[str]:
        if self.rules.in_place or kind_of(node) != "AlterTableStmt":
            return []
        return cut(node, self.rules.excluded_subcommands) if node.objtype == pg_query_pb2.OBJECT_TABLE else []

    def _left_out_keys(self) -> set[str]:
        """Foreign keys of the event's table that the target was not given."""
        keys: set[str] = set()
        for target in self.targets:
            for meta in (self.versions.get(target.oid or 0), self.event["tables"].get(str(target.oid))):
                for constraint in meta["constraints"] if meta is not None else ():
                    other = constraint["references"]
                    if constraint["type"] == "f" and other and not self.coverage.covers_table((other[0], other[1])):
                        keys.add(constraint["name"])
        return keys

    def _about_left_out_key(self, node: Node) -> bool:
        if self.rules.out_of_scope_references != "strip" or self.rules.in_place:
            return False
        if kind_of(node) == "RenameStmt" and node.rename_type == pg_query_pb2.OBJECT_TABCONSTRAINT:
            return node.subname in self._left_out_keys() or node.newname in self._left_out_keys()
        if kind_of(node) == "CommentStmt" and node.objtype == pg_query_pb2.OBJECT_TABCONSTRAINT:
            return texts(unwrap(node.object).items)[-1] in self._left_out_keys()
        return False

    def _cascade(self, node: Node) -> list[str]:
        """CASCADE is never run: what it took along is dropped by name before."""
        changed = False
        if kind_of(node) == "AlterTableStmt" and node.objtype != pg_query_pb2.OBJECT_TYPE:
            for command in (unwrap(each) for each in node.cmds):
                if command.behavior == pg_query_pb2.DROP_CASCADE:
                    command.behavior = pg_query_pb2.DROP_RESTRICT
                    changed = True
        elif kind_of(node) == "AlterDomainStmt" and node.behavior == pg_query_pb2.DROP_CASCADE:
            node.behavior = pg_query_pb2.DROP_RESTRICT
            changed = True
        if not changed:
            return []
        try:
            statements, notes = cascade_statements(self.event, self.coverage.covers_dropped)
        except CannotRebuild as error:
            raise Stop("unhandled", error.what) from None
        self.notes.extend(notes)
        return statements


def _if_built(node: Node) -> None:
    """What CREATE INDEX CONCURRENTLY leaves where it fails has no event, and is not on the target."""
    if kind_of(node) == "AlterTableStmt" and node.objtype == pg_query_pb2.OBJECT_INDEX:
        node.missing_ok = all(action_name(unwrap(each)) != "AT_AttachPartition" for each in node.cmds)
    elif kind_of(node) == "RenameStmt" and node.rename_type == pg_query_pb2.OBJECT_INDEX:
        node.missing_ok = True


def _length(node: Node) -> int:
    """How many actions a statement has that can all be cut out."""
    field = {"AlterTableStmt": "cmds", "AlterSeqStmt": "options"}.get(kind_of(node))
    return len(getattr(node, field)) if field else 0
