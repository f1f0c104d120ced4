"""What takes an applied event of a dump away again. Pure."""

from __future__ import annotations

from postgast import ParseResult, pg_query_pb2
from psycopg import sql

from airflow_provider_pgddl.engine.ddl.events import DdlEvent
from airflow_provider_pgddl.engine.ddl.node_names import added_constraints, constraint_kind, def_elements
from airflow_provider_pgddl.engine.ddl.parse import Node, deparse, kind_of, parse, statement_node, unwrap

# Objects that their (schema and) name tells from all others.
_NAMED = {
    "CREATE ACCESS METHOD",
    "CREATE COLLATION",
    "CREATE CONVERSION",
    "CREATE DOMAIN",
    "CREATE EVENT TRIGGER",
    "CREATE EXTENSION",
    "CREATE FOREIGN DATA WRAPPER",
    "CREATE FOREIGN TABLE",
    "CREATE INDEX",
    "CREATE LANGUAGE",
    "CREATE MATERIALIZED VIEW",
    "CREATE SCHEMA",
    "CREATE SEQUENCE",
    "CREATE SERVER",
    "CREATE STATISTICS",
    "CREATE TABLE",
    "CREATE TEXT SEARCH CONFIGURATION",
    "CREATE TEXT SEARCH DICTIONARY",
    "CREATE TEXT SEARCH PARSER",
    "CREATE TEXT SEARCH TEMPLATE",
    "CREATE TYPE",
    "CREATE VIEW",
}
_WITHOUT_SCHEMA = {
    "CREATE ACCESS METHOD",
    "CREATE EVENT TRIGGER",
    "CREATE EXTENSION",
    "CREATE FOREIGN DATA WRAPPER",
    "CREATE LANGUAGE",
    "CREATE SCHEMA",
    "CREATE SERVER",
}
_WITHIN_TABLE = {"CREATE TRIGGER", "CREATE POLICY", "CREATE RULE"}
# Constraints that can call functions or refer to other tables; all others go with their table.
_TIED = {"foreign key", "check", "exclude"}


def undo(event: DdlEvent, before: DdlEvent | None = None) -> str | None:
    """The statement that undoes one event once all later ones are undone; None where nothing is left to do then.

    Never CASCADE, and no error where the object is gone already. `before` is the event that had made the object before
    this one replaced it, as pg_dump does with views that are part of a cycle.
    """
    tag = event.tag
    if event.source == "captured":
        if before is not None:
            return None  # what was replaced goes as it was made
        if tag.startswith("ALTER ") and (back := _moved_back(event.statement)):
            return back
    if before is not None:
        return _again(before)
    if tag in _NAMED:
        parts = [event.name] if tag in _WITHOUT_SCHEMA else [event.schema, event.name]
        return _drop(tag, [part or event.schema for part in parts if part or tag == "CREATE SCHEMA"])
    if tag in _WITHIN_TABLE and event.table is not None and event.name != "_RETURN":
        kind, name = sql.SQL(tag.removeprefix("CREATE ")), sql.Identifier(event.name or "")
        return sql.SQL("DROP {} IF EXISTS {} ON {}").format(kind, name, sql.Identifier(*event.table)).as_string()
    build = _BY_TAG.get(tag)
    return build(statement_node(parse(event.statement))) if build else None


def _moved_back(statement: str) -> str | None:
    """A renaming, or a move to another schema, the other way; what was made under the old name is then found by it."""
    tree = parse(statement)
    node = statement_node(tree)
    if kind_of(node) == "RenameStmt":
        if node.subname:
            node.subname, node.newname = node.newname, node.subname
        elif node.HasField("relation"):
            node.relation.relname, node.newname = node.newname, node.relation.relname
        else:
            last = _last_name(node.object)
            last.sval, node.newname = node.newname, last.sval
        return deparse(tree)
    if kind_of(node) == "AlterObjectSchemaStmt":
        if not node.HasField("relation"):
            name = _name_parts(node.object)
            if len(name) < 2:
                return None
            schema = unwrap(name[-2])
            schema.sval, node.newschema = node.newschema, schema.sval
        elif node.relation.schemaname:
            node.relation.schemaname, node.newschema = node.newschema, node.relation.schemaname
        else:
            return None
        return deparse(tree)
    return None


def _last_name(thing: Node) -> Node:
    parts = _name_parts(thing)
    return unwrap(parts[-1]) if parts else unwrap(thing)


def _name_parts(thing: Node) -> Node:
    """The parts of a qualified name, in whichever of its shapes."""
    inner = unwrap(thing)
    field = {"List": "items", "ObjectWithArgs": "objname", "TypeName": "names"}.get(kind_of(inner))
    return getattr(inner, field) if field else []


def _drop(tag: str, name: list[str | None]) -> str:
    kind = sql.SQL(tag.removeprefix("CREATE "))
    identifier = sql.Identifier(*(part for part in name if part))
    return sql.SQL("DROP {} IF EXISTS {}").format(kind, identifier).as_string()


def _again(before: DdlEvent) -> str:
    tree = parse(before.statement)
    statement_node(tree).replace = True
    return deparse(tree)


def _function(node: Node) -> str:
    kind = "PROCEDURE" if node.is_procedure else "FUNCTION"
    return _drop_with_arguments(kind, node.funcname, node.parameters)


def _drop_with_arguments(kind: str, name: Node, parameters: Node) -> str:
    tree = parse(f"DROP {kind} IF EXISTS f(a)")
    target = unwrap(statement_node(tree).objects[0])
    del target.objname[:], target.objargs[:], target.objfuncargs[:]
    target.objname.extend(name)
    for each in parameters:
        mode = pg_query_pb2.FunctionParameterMode.Name(unwrap(each).mode)
        if mode == "FUNC_PARAM_TABLE":
            continue  # a column of the result
        target.objfuncargs.add().CopyFrom(each)
        unwrap(target.objfuncargs[-1]).ClearField("defexpr")
        if mode != "FUNC_PARAM_OUT":
            target.objargs.add().type_name.CopyFrom(unwrap(each).arg_type)
    return deparse(tree)


def _aggregate(node: Node) -> str:
    arguments = unwrap(node.args[0]) if node.args[0].WhichOneof("node") else None
    tree = parse("DROP AGGREGATE IF EXISTS f(*)")
    if arguments is None:
        target = unwrap(statement_node(tree).objects[0])
        del target.objname[:]
        target.objname.extend(node.defnames)
        return deparse(tree)
    return _drop_with_arguments("AGGREGATE", node.defnames, arguments.items)


def _operator(node: Node) -> str:
    tree = parse("DROP OPERATOR IF EXISTS + (NONE, a)")
    target = unwrap(statement_node(tree).objects[0])
    del target.objname[:], target.objargs[:]
    target.objname.extend(node.defnames)
    given = def_elements(node.definition)
    for side in ("leftarg", "rightarg"):
        argument = target.objargs.add()
        if side in given:
            argument.type_name.CopyFrom(given[side])
    return deparse(tree)


def _operator_class(node: Node) -> str:
    return _drop_by_method("CLASS", node.amname, node.opclassname)


def _operator_family(node: Node) -> str:
    return _drop_by_method("FAMILY", node.amname, node.opfamilyname)


def _drop_by_method(kind: str, method: str, name: Node) -> str:
    parts = sql.Identifier(*(unwrap(part).sval for part in name))
    statement = sql.SQL("DROP OPERATOR {} IF EXISTS {} USING {}")
    return statement.format(sql.SQL(kind), parts, sql.Identifier(method)).as_string()


def _cast(node: Node) -> str:
    tree = parse("DROP CAST IF EXISTS (a AS b)")
    source, target = unwrap(statement_node(tree).objects[0]).items
    source.type_name.CopyFrom(node.sourcetype)
    target.type_name.CopyFrom(node.targettype)
    return deparse(tree)


def _transform(node: Node) -> str:
    tree = parse("DROP TRANSFORM IF EXISTS FOR a LANGUAGE b")
    type_name, language = unwrap(statement_node(tree).objects[0]).items
    type_name.type_name.CopyFrom(node.type_name)
    language.string.sval = node.lang
    return deparse(tree)


def _altered_table(node: Node) -> str | None:
    """Defaults and constraints, which may tie a table to what was made after it."""
    if kind_of(node) != "AlterTableStmt":
        return None
    commands = [unwrap(command) for command in node.cmds]
    constraints = added_constraints(node)
    if len(constraints) == 1 and constraint_kind(constraints[0]) in _TIED:
        return _edited(node, f"DROP CONSTRAINT IF EXISTS {sql.Identifier(constraints[0].conname).as_string()}")
    if len(commands) == 1 and commands[0].subtype == pg_query_pb2.AT_ColumnDefault:
        return _edited(node, f"ALTER COLUMN {sql.Identifier(commands[0].name).as_string()} DROP DEFAULT")
    return None


def _edited(node: Node, action: str) -> str:
    tree = parse(f"ALTER TABLE IF EXISTS t {action}")
    statement = statement_node(tree)
    statement.relation.CopyFrom(node.relation)
    statement.objtype = node.objtype
    return deparse(tree)


def _altered_domain(node: Node) -> str | None:
    if kind_of(node) != "AlterDomainStmt" or node.subtype != "C":  # C: ADD CONSTRAINT
        return None
    constraint = unwrap(getattr(node, "def"))
    tree: ParseResult = parse("ALTER DOMAIN d DROP CONSTRAINT IF EXISTS c")
    statement = statement_node(tree)
    del statement.type_name[:]
    statement.type_name.extend(node.type_name)
    statement.name = constraint.conname
    return deparse(tree)


def _default_privileges(node: Node) -> str:
    """GRANT becomes REVOKE, and the other way."""
    tree = parse("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO x")
    statement = statement_node(tree)
    statement.CopyFrom(node)
    statement.action.is_grant = not node.action.is_grant
    if node.action.is_grant:
        statement.action.grant_option = False
    return deparse(tree)


_BY_TAG = {
    "CREATE FUNCTION": _function,
    "CREATE PROCEDURE": _function,
    "CREATE AGGREGATE": _aggregate,
    "CREATE OPERATOR": _operator,
    "CREATE OPERATOR CLASS": _operator_class,
    "CREATE OPERATOR FAMILY": _operator_family,
    "CREATE CAST": _cast,
    "CREATE TRANSFORM": _transform,
    "ALTER TABLE": _altered_table,
    "ALTER VIEW": _altered_table,
    "ALTER FOREIGN TABLE": _altered_table,
    "ALTER DOMAIN": _altered_domain,
    "ALTER DEFAULT PRIVILEGES": _default_privileges,
}
