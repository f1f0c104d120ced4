"""Statements of ours about what belongs to others (C28).

ALTER TABLE evaluates what it adds or checks, and plans what it only looks at: what is constant in constraints, indexes
and partition keys is computed by that. Where a table has code of an owner who is not trusted, such a statement runs as
that role, unless all that it does is known to look at none of these. CREATE INDEX, ANALYZE and REFRESH see to that by
themselves, but the first looks up anew what it calls. CREATE TABLE plans its generated columns and its partition key,
CREATE TABLE … PARTITION OF and LIKE the indexes of another.

A literal is read as soon as a statement is parsed: of an array, a composite or a range over a domain that runs the
domain's CHECK, in a view that is only made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.node_names import action_name, constraint_kind
from airflow_provider_pgddl.engine.ddl.parse import (
    Node,
    kind_of,
    parse,
    relation,
    statement_node,
    texts,
    unwrap,
    walk,
)
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.rights import foreign_code, wall
from airflow_provider_pgddl.engine.rights.index_code import code_of_probes, computed, refuse_built, refuse_index
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("rights")

_BRING = {"AT_AddColumn", "AT_AlterColumnType", "AT_SetExpression"}
# What neither evaluates nor plans an expression, whatever the table has. Anything else counts as if it did.
_HARMLESS = {
    "AT_ChangeOwner", "AT_ColumnDefault", "AT_DropNotNull", "AT_SetStatistics", "AT_SetOptions", "AT_ResetOptions",
    "AT_SetStorage", "AT_SetCompression", "AT_SetRelOptions", "AT_ResetRelOptions", "AT_ClusterOn", "AT_DropCluster",
    "AT_SetTableSpace", "AT_DropConstraint", "AT_AddIdentity", "AT_SetIdentity", "AT_DropIdentity",
    "AT_EnableTrig", "AT_EnableAlwaysTrig", "AT_EnableReplicaTrig", "AT_DisableTrig", "AT_EnableTrigAll",
    "AT_DisableTrigAll", "AT_EnableTrigUser", "AT_DisableTrigUser", "AT_EnableRule", "AT_EnableAlwaysRule",
    "AT_EnableReplicaRule", "AT_DisableRule", "AT_EnableRowSecurity", "AT_DisableRowSecurity",
    "AT_ForceRowSecurity", "AT_NoForceRowSecurity",
}  # fmt: skip
_TABLE = "CREATE TEMPORARY TABLE pg_temp.pgddl_probed ()"
_VIEW = "CREATE TEMPORARY VIEW pg_temp.pgddl_probe AS SELECT NULL AS c FROM pg_temp.pgddl_probed AS t"


@dataclass(frozen=True, slots=True)
class Keeper:
    """Of the tables that a statement is about: the role that owns one and is not trusted, or ''; and whether there is
    code on them."""

    role: str
    coded: bool


def alter(conn: Session, statement: str, trusted: Sequence[str]) -> None:
    """Runs one statement, in the caller's transaction; StageFailed for what would run code with rights that its author
    has not."""
    node = statement_node(parse(statement))
    _refuse_literals(conn, node, statement, trusted)
    if kind_of(node) == "CreateStmt" and (author := _author(conn, node, statement, trusted)):
        _make_as(conn, author, node, statement)
        return
    if kind_of(node) == "IndexStmt":
        refuse_index(conn, statement, trusted)
        conn.execute(statement)
        refuse_built(conn, statement, trusted)
        return
    keeper = keeper_of(conn, statement, trusted)
    commands = _commands(node) if kind_of(node) == "AlterTableStmt" else []
    brings = any(map(_brings, commands))
    bringing = [c for c in commands if _brings(c) or _checks(c) == "exclude"]  # whose index is built as the owner
    if bringing and foreign_code.anybody(conn, trusted):
        for stranger in foreign_code.strangers(conn, _brought(conn, node, bringing, trusted), keeper.role):
            raise StageFailed(
                foreign_code.refusal(stranger, keeper.role), table=".".join(_about(node)[0]), sql=statement
            )
    if not (keeper.role and (keeper.coded or brings)):
        conn.execute(statement)
        return
    keys = _new_primary_key(node)
    if keys is None:
        wall.run(conn, keeper.role, statement)
    else:  # whose index is built as the owner, but made by whoever may make something in the schema
        wall.run(conn, keeper.role, *keys)
        conn.execute(statement)


def keeper_of(conn: Session, statement: str, trusted: Sequence[str], path: Sequence[str] = ()) -> Keeper:
    """Who keeps the tables of which the statement evaluates something; nobody adds code to them from here on.
    StageFailed where no role will do. `path`: where names without a schema are looked for."""
    node = statement_node(parse(statement))
    names = _looked_for(_about(node), path)
    found = _with_referenced(conn, names)
    referenced = _with_referenced(conn, _looked_for(_referenced(node), path))
    oids = sorted({*found, *referenced, *(oid for others in found.values() for oid in others)})
    if not oids:
        return Keeper("", False)
    surveyed = foreign_code.survey(conn, oids, trusted, few=True)
    if any(table.role for table in surveyed.values()):
        # Nobody adds to them from here on, and what is read of them has just been added.
        relations = conn.execute(_Q["names_of"], [oids]).fetchall()
        listed = sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(*name)) for name in relations)
        conn.execute(sql.SQL("LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE").format(listed))
        surveyed = foreign_code.survey(conn, oids, trusted)
    role = next((s.role for s in (surveyed.get(oid) for oid in found) if s and s.role), "")
    if kind_of(node) == "CreateStmt":
        role = ""  # what it makes is not theirs
    code = [c for oid in oids for c in surveyed.get(oid, foreign_code.NOTHING).code]
    for stranger in foreign_code.strangers(conn, code, role):
        raise StageFailed(foreign_code.refusal(stranger, role), table=".".join(names[0]), sql=statement)
    if role:
        foreign_code.let_in(conn, [(schema, role, False) for schema, _ in names])
    return Keeper(role, bool(code))


def _looked_for(names: Sequence[Name], path: Sequence[str]) -> list[Name]:
    return [(schema, name) for found, name in names for schema in ([found] if found else path)]


def _with_referenced(conn: Session, names: Sequence[Name]) -> dict[int, list[int]]:
    if not names:
        return {}
    args = [list(each) for each in zip(*names, strict=True)]
    found: dict[int, list[int]] = dict(conn.execute(_Q["with_referenced"], args, prepare=True).fetchall())
    return found


# --- literals ---------------------------------------------------------------------------------------------------------


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


# --- ALTER TABLE ------------------------------------------------------------------------------------------------------


def _about(node: Node) -> list[Name]:
    """The tables and indexes of which a statement may evaluate or plan something."""
    if kind_of(node) == "CreateStmt":
        parents = list(map(unwrap, node.inh_relations)) if node.HasField("partbound") else []
        liked = [e.relation for e in map(unwrap, node.table_elts) if kind_of(e) == "TableLikeClause"]
        return [relation(other) for other in (*parents, *liked)]
    if kind_of(node) != "AlterTableStmt":
        return []
    commands = [command for command in _commands(node) if _evaluates(command)]
    if not commands:
        return []
    others = [_other(command) for command in commands]
    return [relation(node.relation), *(relation(other) for other in others if other is not None)]


def _other(command: Node) -> Node | None:
    """The relation at the other end of what an action attaches."""
    if action_name(command) in ("AT_AttachPartition", "AT_DetachPartition"):
        return unwrap(getattr(command, "def")).name
    if action_name(command) in ("AT_AddInherit", "AT_DropInherit"):
        return unwrap(getattr(command, "def"))
    return None


def _referenced(node: Node) -> list[Name]:
    """The tables that new foreign keys which are checked refer to."""
    if kind_of(node) != "AlterTableStmt":
        return []
    keys = [unwrap(getattr(c, "def")) for c in _commands(node) if _checks(c) == "foreign key"]
    return [relation(key.pktable) for key in keys]


def _commands(node: Node) -> list[Node]:
    return [unwrap(command) for command in node.cmds]


def _evaluates(command: Node) -> bool:
    if action_name(command) != "AT_AddConstraint":
        return action_name(command) not in _HARMLESS
    return _checks(command) not in (None, "unique") or bool(unwrap(getattr(command, "def")).indexname)


def _new_primary_key(node: Node) -> list[str] | None:
    """Where a statement's only doubtful action adds a primary key: what makes its columns NOT NULL."""
    doubtful = [command for command in _commands(node) if _evaluates(command)]
    if len(doubtful) != 1 or _checks(doubtful[0]) != "primary key":
        return None
    constraint = unwrap(getattr(doubtful[0], "def"))
    if constraint.indexname:
        return None
    alter = sql.SQL("ALTER TABLE {} {} ALTER COLUMN {} SET NOT NULL")
    only, table = sql.SQL("" if node.relation.inh else "ONLY"), sql.Identifier(*relation(node.relation))
    return [alter.format(only, table, sql.Identifier(column)).as_string() for column in texts(constraint.keys)]


def _brings(command: Node) -> bool:
    """Whether it can evaluate code that the table had not before."""
    return action_name(command) in _BRING or _checks(command) == "check"


def _checks(command: Node) -> str | None:
    """The kind of a constraint that is added and checked."""
    if action_name(command) != "AT_AddConstraint":
        return None
    constraint = unwrap(getattr(command, "def"))
    return None if constraint.skip_validation else constraint_kind(constraint)


# --- CREATE TABLE -----------------------------------------------------------------------------------------------------


def _author(conn: Session, node: Node, statement: str, trusted: Sequence[str]) -> str:
    """The role whose code the columns are generated by, or ''."""
    keys = [elem.expr for elem in map(unwrap, node.partspec.part_params) if elem.HasField("expr")]
    generated = [
        constraint.raw_expr
        for column in map(unwrap, node.table_elts)
        if kind_of(column) == "ColumnDef"
        for constraint in map(unwrap, column.constraints)
        if constraint_kind(constraint) == "generated"
    ]
    if not (keys or generated) or not foreign_code.anybody(conn, trusted):
        return ""
    columns = [e for e in node.table_elts if kind_of(unwrap(e)) == "ColumnDef"]
    name = node.relation.relname
    code = _code_of(conn, name, columns, node.inh_relations, [*keys, *generated], trusted)
    if not code:
        return ""
    in_keys = _code_of(conn, name, columns, node.inh_relations, keys, trusted) if keys else []
    others = [c for c in code if c.author != code[0].author or c.nested]
    for stranger in (*in_keys, *others):  # a partition key is computed again wherever the table is looked at
        raise StageFailed(
            f"{stranger.code} of role {stranger.author} would run where this table is made, with rights that it has"
            " not",
            table=".".join(relation(node.relation)),
            todo=f"set trusted_roles: [{stranger.author}], or leave the table out",
            sql=statement,
        )
    return code[0].author


def _brought(conn: Session, node: Node, commands: Sequence[Node], trusted: Sequence[str]) -> list[foreign_code.Code]:
    """What of roles that are not trusted an ALTER TABLE brings to a table."""
    columns, expressions = [_like(node.relation)], []
    for command in commands:
        definition = getattr(command, "def")
        kind = kind_of(unwrap(definition))
        if kind == "ColumnDef":
            if action_name(command) == "AT_AddColumn" and not command.missing_ok:
                columns.append(definition)
            else:
                columns.append(_column(f"pgddl_{len(columns)}", unwrap(definition).type_name))
            expressions += [e for e in (unwrap(definition).raw_default,) if e.WhichOneof("node")]
            expressions += [c.raw_expr for c in map(unwrap, unwrap(definition).constraints) if c.HasField("raw_expr")]
        elif kind == "Constraint" and unwrap(definition).exclusions:
            elements = [unwrap(unwrap(pair).items[0]) for pair in unwrap(definition).exclusions]
            expressions += computed(elements, unwrap(definition))
        elif kind == "Constraint":
            expressions.append(unwrap(definition).raw_expr)
        else:
            expressions.append(definition)
    return _code_of(conn, node.relation.relname, columns, (), expressions, trusted)


def _like(table: Node) -> Node:
    (like,) = statement_node(parse("CREATE TABLE t (LIKE t)")).table_elts
    unwrap(like).relation.CopyFrom(table)
    unwrap(like).relation.inh = True
    return like


def _column(name: str, type_: Node) -> Node:
    (column,) = statement_node(parse("CREATE TABLE t (c integer)")).table_elts
    unwrap(column).colname = name
    unwrap(column).type_name.CopyFrom(type_)
    return column


def _code_of(
    conn: Session,
    name: str,
    columns: Sequence[Node],
    parents: Sequence[Node],
    expressions: Sequence[Node],
    trusted: Sequence[str],
) -> list[foreign_code.Code]:
    """What of roles that are not trusted columns and expressions over them call; the server says it of a view of them,
    for which it analyzes them and neither plans nor evaluates one."""
    table, view = parse(_TABLE), parse(_VIEW)
    made, select = statement_node(table), unwrap(statement_node(view).query)
    made.inh_relations.extend(parents)
    for column in columns:
        made.table_elts.append(column)
        if kind_of(unwrap(column)) == "ColumnDef":
            del unwrap(made.table_elts[-1]).constraints[:]
            unwrap(made.table_elts[-1]).ClearField("raw_default")
    unwrap(select.from_clause[0]).alias.aliasname = name
    target = select.target_list.pop() if expressions else None
    for number, expression in enumerate(expressions, 1):
        unwrap(target).name = f"c{number}"
        unwrap(target).val.CopyFrom(expression)
        select.target_list.append(target)
    return code_of_probes(conn, [table, view], trusted, nullcontext)


def _make_as(conn: Session, author: str, node: Node, statement: str) -> None:
    """As the role whose code is in it; the table is ours, as any other that we make."""
    schema, name = relation(node.relation)
    table = sql.Identifier(schema, name)
    with foreign_code.may_make(conn, author, schema, name):
        wall.run(conn, author, statement)
    row = conn.execute("SELECT current_user::text").fetchone()
    assert row is not None
    conn.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(table, sql.Identifier(row[0])))
    for (revoke,) in conn.execute(_Q["given_by_default"], [schema, name]).fetchall():
        conn.execute(revoke)
