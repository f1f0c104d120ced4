"""Statements of ours about what belongs to others (C28).

ALTER TABLE evaluates what it adds or checks, ATTACH PARTITION what is constant in constraints, and a foreign key that
is validated joins both its tables. Where a table has code of an owner who is not trusted, such a statement runs as that
role. CREATE INDEX, ANALYZE and REFRESH see to that by themselves.

A literal is read as soon as a statement is parsed: of an array, a composite or a range over a domain that runs the
domain's CHECK, in a view that is only made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psycopg import sql

from airflow_provider_pgddl.engine.connect import Session
from airflow_provider_pgddl.engine.ddl.parse import Node, kind_of, parse, relation, statement_node, texts, unwrap, walk
from airflow_provider_pgddl.engine.ddl.subject import action_name, constraint_kind
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.rights import keeping, wall
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("rights")
Name = tuple[str, str]

_BRING = {"AT_AddColumn", "AT_AlterColumnType", "AT_SetExpression"}
_EVALUATE = _BRING | {"AT_AttachPartition", "AT_ValidateConstraint"}
# Whose index is built as the table's owner.
_BY_INDEX = ("primary key", "unique", "exclusion")


def alter(conn: Session, statement: str, trusted: Sequence[str]) -> None:
    """Runs one statement, in the caller's transaction; StageFailed for what would run code with rights that its author
    has not."""
    node = statement_node(parse(statement))
    _refuse_literals(conn, node, statement, trusted)
    names = _evaluated(node)
    args = [list(each) for each in zip(*names, strict=True)]
    found: dict[int, list[int]] = dict(conn.execute(_Q["with_referenced"], args).fetchall()) if names else {}
    oids = sorted({*found, *(oid for others in found.values() for oid in others)})
    if not oids:
        conn.execute(statement)
        return
    surveyed = keeping.survey(conn, oids, trusted)
    if any(table.role for table in surveyed.values()):
        # Nobody adds to them from here on, and what is read of them has just been added.
        relations = conn.execute(_Q["names_of"], [oids]).fetchall()
        listed = sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(*name)) for name in relations)
        conn.execute(sql.SQL("LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE").format(listed))
        surveyed = keeping.survey(conn, oids, trusted)
    role = next((s.role for s in (surveyed.get(oid) for oid in found) if s and s.role), "")
    code = [c for oid in oids for c in surveyed.get(oid, keeping.NOTHING).code]
    for stranger in keeping.strangers(conn, code, role):
        raise StageFailed(keeping.refusal(stranger, role), table=".".join(names[0]), sql=statement)
    if role and (code or any(_brings(command) for command in _commands(node))):
        keeping.let_in(conn, [(schema, role, False) for schema, _ in names])
        wall.run(conn, role, statement)
    else:
        conn.execute(statement)


def _refuse_literals(conn: Session, node: Node, statement: str, trusted: Sequence[str]) -> None:
    types = sorted({_written(type_) for type_ in _types_of_literals(node)})
    row = None
    if types:
        row = conn.execute(_Q["code_of_types"], {"types": types, "trusted": list(trusted)}).fetchone()
    if row is not None:
        type_, author, code = row
        raise StageFailed(
            f"a literal of type {type_} runs {code} of role {author} wherever it is read, here with our rights",
            todo=f"drop what this statement makes, or set trusted_roles: [{author}]; then run it again",
            sql=statement,
        )


def _types_of_literals(node: Node) -> Iterator[Node]:
    """The types that texts are read as; those of users, for the server's own run nobody's code."""
    for child in walk(node):
        if kind_of(child) == "TypeCast" and child.HasField("arg") and kind_of(unwrap(child.arg)) == "A_Const":
            type_ = child.type_name
        elif kind_of(child) == "DefElem" and child.defname in ("stype", "mstype"):  # whose first value is a text
            type_ = unwrap(child.arg)
        else:
            continue
        if kind_of(type_) == "TypeName" and texts(type_.names)[:1] != ["pg_catalog"]:
            yield type_


def _written(type_: Node) -> str:
    name = ".".join(sql.Identifier(part).as_string() for part in texts(type_.names))
    return name + "[]" * bool(type_.array_bounds)


def _evaluated(node: Node) -> list[Name]:
    """The tables of an ALTER TABLE that evaluates something of them."""
    if kind_of(node) != "AlterTableStmt":
        return []
    commands = _commands(node)
    if not any(_evaluates(command) for command in commands):
        return []
    attached = [unwrap(getattr(c, "def")).name for c in commands if action_name(c) == "AT_AttachPartition"]
    return [relation(node.relation), *map(relation, attached)]


def _commands(node: Node) -> list[Node]:
    return [unwrap(command) for command in node.cmds]


def _evaluates(command: Node) -> bool:
    return action_name(command) in _EVALUATE or _checks(command) not in (None, *_BY_INDEX)


def _brings(command: Node) -> bool:
    """Whether it can evaluate code that the table had not before."""
    return action_name(command) in _BRING or _checks(command) == "check"


def _checks(command: Node) -> str | None:
    """The kind of a constraint that is added and checked."""
    if action_name(command) != "AT_AddConstraint":
        return None
    constraint = unwrap(getattr(command, "def"))
    return None if constraint.skip_validation else constraint_kind(constraint)
