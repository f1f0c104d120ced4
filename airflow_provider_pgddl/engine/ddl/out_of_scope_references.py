"""What a statement refers to outside of the scope: foreign keys cut out of the tree, parents told. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from airflow_provider_pgddl.engine.ddl.constraint_nodes import cut_from_column
from airflow_provider_pgddl.engine.ddl.node_names import action_name, constraint_kind
from airflow_provider_pgddl.engine.ddl.parse import Node, kind_of, qualified, quoted, relation, texts, unwrap
from airflow_provider_pgddl.engine.model.names import Name

CoversTable = Callable[[Name], bool]


def cut_foreign_keys(node: Node, covers: CoversTable) -> list[Name]:
    """Takes the foreign keys to tables out of scope out of a statement and says to which; it may be left empty."""
    kind = kind_of(node)
    cut: list[Name] = []
    if kind == "AlterTableStmt":
        for position in reversed(range(len(node.cmds))):
            command = unwrap(node.cmds[position])
            definition = unwrap(getattr(command, "def"))
            if kind_of(definition) == "ColumnDef":
                cut += _from_column(definition, covers)
            elif _leads_out(definition, covers):
                cut.append(relation(definition.pktable))
                del node.cmds[position]
    elif kind == "CreateStmt":
        for position in reversed(range(len(node.table_elts))):
            element = unwrap(node.table_elts[position])
            if kind_of(element) == "ColumnDef":
                cut += _from_column(element, covers)
            elif _leads_out(element, covers):
                cut.append(relation(element.pktable))
                del node.table_elts[position]
    elif kind == "CreateSchemaStmt":
        for element in node.schema_elts:
            cut += cut_foreign_keys(unwrap(element), covers)
    return cut[::-1]


def _from_column(column: Node, covers: CoversTable) -> list[Name]:
    cut = cut_from_column(column, lambda constraint: _leads_out(constraint, covers))
    return [relation(constraint.pktable) for constraint in reversed(cut)]


def _leads_out(node: Node, covers: CoversTable) -> bool:
    return (
        kind_of(node) == "Constraint" and constraint_kind(node) == "foreign key" and not covers(relation(node.pktable))
    )


def cut_owner(node: Node, covers: CoversTable) -> list[Name]:
    """Takes OWNED BY a column out of scope out of a statement about a sequence, which may then have nothing to do."""
    cut: list[Name] = []
    if kind_of(node) in ("CreateSeqStmt", "AlterSeqStmt"):
        for position in reversed(range(len(node.options))):
            option = unwrap(node.options[position])
            column = texts(unwrap(option.arg).items) if option.defname == "owned_by" else []
            if len(column) > 1 and not covers(qualified(column[:-1])):
                cut.append(qualified(column[:-1]))
                del node.options[position]
    return cut


_ON_CONSTRAINT = {"AT_ValidateConstraint", "AT_AlterConstraint", "AT_DropConstraint"}


def cut_constraint_actions(node: Node, names: Collection[str]) -> list[str]:
    """Takes actions on constraints that the target was never given out of an ALTER TABLE."""
    cut: list[str] = []
    if kind_of(node) == "AlterTableStmt":
        for position in reversed(range(len(node.cmds))):
            command = unwrap(node.cmds[position])
            name = command.name or getattr(unwrap(getattr(command, "def")), "conname", "")
            if action_name(command) in _ON_CONSTRAINT and name in names:
                cut.append(name)
                del node.cmds[position]
    return cut[::-1]


def family_outside(node: Node, covers: CoversTable) -> Iterator[str]:
    """Parents and partitions out of scope, without which a statement does not mean the same."""
    kind = kind_of(node)
    if kind in ("CreateStmt", "CreateForeignTableStmt"):
        made = node if kind == "CreateStmt" else node.base_stmt
        for parent in (unwrap(each) for each in made.inh_relations):
            if not covers(relation(parent)):
                yield f"its parent {quoted(relation(parent))} is out of scope"
    elif kind == "AlterTableStmt":
        for command in (unwrap(each) for each in node.cmds):
            definition = unwrap(getattr(command, "def"))
            other = {"PartitionCmd": lambda d: d.name, "RangeVar": lambda d: d}.get(kind_of(definition))
            if other is not None and other(definition).relname and not covers(relation(other(definition))):
                yield f"{quoted(relation(other(definition)))} is out of scope"


def likeness_outside(node: Node, covers: CoversTable) -> bool:
    """Whether a CREATE TABLE takes its columns from a table that the target may not have."""
    if kind_of(node) != "CreateStmt":
        return False
    elements = [unwrap(each) for each in node.table_elts]
    return any(kind_of(each) == "TableLikeClause" and not covers(relation(each.relation)) for each in elements)
