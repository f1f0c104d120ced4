"""SQL text to statements and to syntax trees, by libpg_query (the grammar of Postgres 18). Pure.

Nothing here edits SQL as text: a statement is taken apart and put together as a tree. The only hand-written
lexer finds what psql eats before the server sees it (backslash lines, rows behind COPY … FROM stdin).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import postgast
from google.protobuf.internal import api_implementation
from google.protobuf.message import DecodeError, Message
from postgast import ParseResult, PgQueryError, pg_query_pb2

from airflow_provider_pgddl.engine.ddl.quoting import identifier
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.model.names import Name

# protobuf messages; their fields are looked up by name all over, which no stub describes usefully
Node = Any

# What can stand at the top level of a script, longest match first; strings of any length in one step.
_LEXEME = re.compile(
    r"""
      (?P<comment>--[^\r\n]*)
    | (?P<block>/\*)
    | (?P<string>(?<![\w$])[eE]'(?:[^'\\]|\\.|'')*+' | '[^']*+' | "[^"]*+")
    | (?P<dollar>(?<![\w$])\$(?:[^\W\d]\w*)?\$)
    | (?P<end>;)
    | (?P<meta>^\\[^\n]*\n?)
    | (?P<broken>['"])
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
# What pg_dump says in front of each object: its name, kind, schema and owner, on one line. The kinds of post-data: a
# view or a function that pg_dump has put off stands behind the constraint that it was put off for.
_KIND, _BEHIND_KIND = "; Type: ", "; Schema: "
_POST_DATA = {
    "CHECK CONSTRAINT",
    "CONSTRAINT",
    "EVENT TRIGGER",
    "FK CONSTRAINT",
    "INDEX",
    "INDEX ATTACH",
    "MATERIALIZED VIEW DATA",
    "POLICY",
    "PUBLICATION",
    "PUBLICATION TABLE",
    "PUBLICATION TABLES IN SCHEMA",
    "ROW SECURITY",
    "RULE",
    "STATISTICS",
    "SUBSCRIPTION",
    "SUBSCRIPTION TABLE",
    "TRIGGER",
}
_SPACE_OR_COMMENT = re.compile(r"\s+|--[^\r\n]*")
_BLOCK_EDGE = re.compile(r"/\*|\*/")


@dataclass(frozen=True, slots=True)
class Script:
    """A script's statements, without their semicolons, and what psql alone would have understood of it."""

    statements: list[str]
    left_out: list[str]
    """Backslash lines, and one line for each block of rows: ``COPY shop.orders … FROM stdin (830 rows)``."""


def split(sql: str) -> list[str]:
    """The statements of a script, without comments in front and semicolons behind. Loud on what is no SQL."""
    return read(sql).statements


def read(sql: str) -> Script:
    """A script as psql takes it: statements apart, backslash lines and COPY's rows left out and reported."""
    text, left_out = _without_psql(sql)
    try:
        pieces = postgast.split(text)
    except PgQueryError as error:
        raise _unreadable(text, error) from None
    statements = [piece[_start(piece) :].rstrip() for piece in pieces]
    return Script([statement for statement in statements if statement], left_out)


def _without_psql(sql: str) -> tuple[str, list[str]]:
    kept: list[str] = []
    left_out: list[str] = []
    position = begun = taken = 0  # reading here; the statement began there; `kept` reaches to
    while lexeme := _LEXEME.search(sql, position):
        position = lexeme.end()
        if lexeme["block"]:
            position = _block_end(sql, lexeme.start())
        elif tag := lexeme["dollar"]:
            closing = sql.find(tag, position)
            if closing < 0:
                raise StageFailed(f"unterminated dollar quote in the statement that begins {start_of(sql[begun:])}")
            position = closing + len(tag)
        elif lexeme["broken"]:
            raise StageFailed(f"unterminated quote in the statement that begins {start_of(sql[begun:])}")
        elif lexeme["meta"]:
            kept.append(sql[taken : lexeme.start()])
            taken = position
            left_out.append(lexeme["meta"].rstrip())
        elif lexeme["end"]:
            statement = sql[max(begun, taken) : lexeme.start()]
            if _copies_from_stdin(statement):
                kept.append(sql[taken:begun])
                position, rows = _after_rows(sql, position)
                taken = position
                left_out.append(f"{start_of(statement)} ({rows} rows)")
            begun = position
    kept.append(sql[taken:])
    return "".join(kept), left_out


def post_data_begins(dump: str) -> int | None:
    """Where pg_dump's section post-data begins in a dump of both; its end, where there is none. None where that cannot
    be told, because a name reads like what pg_dump says itself."""
    position = 0
    while lexeme := _LEXEME.search(dump, position):
        position = lexeme.end()
        if lexeme["block"]:
            position = _block_end(dump, lexeme.start())
        elif tag := lexeme["dollar"]:
            position = dump.index(tag, position) + len(tag)
        elif (lexeme["comment"] or "").startswith("-- Name: "):
            _, *behind = lexeme["comment"].split(_KIND)
            if len(behind) != 1:
                return None
            if behind[0].partition(_BEHIND_KIND)[0] in _POST_DATA:
                return lexeme.start()
    return len(dump)


def _block_end(sql: str, start: int) -> int:
    """The end of a block comment; Postgres nests them."""
    depth = 0
    for edge in _BLOCK_EDGE.finditer(sql, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    raise StageFailed(f"unterminated comment that begins {sql[start : start + 60].splitlines()[0]}")


def _start(statement: str) -> int:
    """Where a statement begins, behind white space and comments."""
    position = 0
    while True:
        if statement.startswith("/*", position):
            position = _block_end(statement, position)
        elif gap := _SPACE_OR_COMMENT.match(statement, position):
            position = gap.end()
        else:
            return position


def _copies_from_stdin(statement: str) -> bool:
    begin = _start(statement)
    if statement[begin : begin + 4].upper() != "COPY":
        return False
    try:
        node = statement_node(_tree(statement))
    except PgQueryError:
        return False
    return kind_of(node) == "CopyStmt" and bool(node.is_from) and not node.filename


def _after_rows(sql: str, position: int) -> tuple[int, int]:
    """The position behind the rows that follow a COPY … FROM stdin, and how many they were."""
    first = sql.find("\n", position) + 1
    if sql.startswith("\\.", first):
        closing = first
    else:
        closing = sql.find("\n\\.", first) + 1
    if first == 0 or closing == 0:
        raise StageFailed("the rows behind a COPY … FROM stdin do not end with \\.")
    behind = sql.find("\n", closing)
    return (len(sql) if behind < 0 else behind + 1), sql.count("\n", first, closing)


def _unreadable(text: str, error: PgQueryError) -> StageFailed:
    """Names the statement in which the parser stopped, by its start."""
    stopped = max(error.cursorpos - 1, 0)  # in characters, whatever postgast's documentation says
    begun = position = 0
    while (lexeme := _LEXEME.search(text, position)) and lexeme.start() < stopped:
        position = lexeme.end()
        if lexeme["block"]:
            position = _block_end(text, lexeme.start())
        elif tag := lexeme["dollar"]:
            position = text.find(tag, position) + len(tag)
        elif lexeme["end"]:
            begun = position
    return StageFailed(
        f"cannot read the statement that begins {start_of(text[begun:])}: {error.message}",
        todo="the parser knows the grammar of Postgres 18; report this statement if Postgres takes it",
    )


def start_of(statement: str, length: int = 80) -> str:
    """A statement's first words, on one line, for messages."""
    words = " ".join(statement[_start(statement) :][: 4 * length].split())
    return words if len(words) <= length else words[: length - 1] + "…"


def parse(statement: str) -> ParseResult:
    """The syntax tree of exactly one statement."""
    try:
        tree = _tree(statement)
    except PgQueryError as error:
        raise _unreadable(statement, error) from None
    if len(tree.stmts) != 1:
        raise StageFailed(f"one statement was expected, not {len(tree.stmts)}: {start_of(statement)}")
    return tree


_loosening = threading.Lock()  # the limit is one for the whole process


def _tree(sql: str) -> ParseResult:
    """libpg_query's tree. protobuf stops at 100 levels, which a view with 50 times || in it passes: let it go on."""
    limits = getattr(api_implementation, "_c_module", None)
    loosen = getattr(limits, "SetAllowOversizeProtos", None) or (lambda _: None)
    with _loosening:
        loosen(True)
        try:
            return postgast.parse(sql)
        except DecodeError as error:
            raise StageFailed(f"the statement that begins {start_of(sql)} is nested too deeply: {error}") from None
        finally:
            loosen(False)


def deparse(tree: ParseResult) -> str:
    """The text of a tree; refused unless it parses back to the very same tree."""
    if _depth(tree) > _PRINTABLE_DEPTH:
        raise StageFailed("a statement is nested too deeply to be printed again")
    try:
        text = _printed(_printable(tree))
        again = _tree(text)
    except PgQueryError as error:
        raise StageFailed(f"cannot print this statement: {error.message}") from None
    if without_locations(again) != without_locations(tree):
        raise StageFailed(f"a statement changes its meaning when it is printed: {start_of(text)}")
    return text


def _printed(tree: ParseResult) -> str:
    """With the WHERE of an exclusion constraint behind all but its attributes: libpg_query prints it before them."""
    predicates: dict[str, str] = {}
    for node in walk(tree):
        if kind_of(node) != "Constraint" or not node.HasField("where_clause"):
            continue
        query = _tree("SELECT 1")
        unwrap(statement_node(query).target_list[0]).val.CopyFrom(node.where_clause)
        predicate = f"WHERE ({postgast.deparse(query).removeprefix('SELECT ')})"
        space = f"USING INDEX TABLESPACE {identifier(node.indexspace)} " if node.indexspace else ""
        node.ClearField("where_clause")
        node.indexspace = f"pgddl_predicate_{len(predicates)}"
        predicates[f"USING INDEX TABLESPACE {node.indexspace}"] = space + predicate
    text: str = postgast.deparse(tree)
    for place, predicate in predicates.items():
        text = text.replace(place, predicate, 1)
    return text


def _printable(tree: ParseResult) -> ParseResult:
    """The tree as libpg_query prints it right: it leaves some names without quotes."""
    copy = type(tree)()
    copy.CopyFrom(tree)
    for node in walk(copy):
        kind = kind_of(node)
        if kind in _UNQUOTED and (name := getattr(node, _UNQUOTED[kind])):
            setattr(node, _UNQUOTED[kind], identifier(name))
        elif kind == "CreateStatsStmt":
            for column in map(unwrap, node.exprs):
                column.name = column.name and identifier(column.name)
        elif kind == "Constraint":
            for column in node.fk_del_set_cols:
                column.string.sval = identifier(column.string.sval)
        elif kind == "AlterObjectDependsStmt":
            node.extname.sval = identifier(node.extname.sval)
    return copy


# What names a window or an argument.
_UNQUOTED = {"FunctionParameter": "name", "NamedArgExpr": "name", "WindowDef": "name"}


def without_locations(tree: ParseResult) -> ParseResult:
    """A copy of a tree without positions in its text, for comparison."""
    copy = type(tree)()
    copy.CopyFrom(tree)
    copy.stmts[0].stmt_location = copy.stmts[0].stmt_len = 0
    for node in walk(copy):
        for field in _LOCATIONS:
            if field in node.DESCRIPTOR.fields_by_name:
                node.ClearField(field)
    return copy


_LOCATIONS = ("location", "list_start", "list_end", "rexpr_list_start", "rexpr_list_end")


def statement_node(tree: ParseResult) -> Node:
    """The statement itself: a CreateStmt, an IndexStmt …"""
    return unwrap(tree.stmts[0].stmt)


def unwrap(node: Node) -> Node:
    """The concrete message inside of a generic Node."""
    if type(node) is not pg_query_pb2.Node:
        return node
    inner = node.WhichOneof("node")
    return node if inner is None else getattr(node, inner)


def kind_of(node: Node) -> str:
    """The name of a message's type, such as ``CreateStmt``."""
    return type(node).__name__


def walk(node: Node) -> Iterator[Node]:
    """Every message below a node, itself included, parents first."""
    stack = [node]  # no recursion: an expression of 5,000 terms is as many levels deep
    while stack:
        node = unwrap(stack.pop())
        yield node
        stack.extend(reversed(list(_children(node))))


def _children(node: Node) -> Iterator[Node]:
    for field, value in node.ListFields():
        if field.message_type is not None:
            yield from (value,) if isinstance(value, Message) else value


def _depth(node: Node) -> int:
    deepest, stack = 0, [(node, 1)]
    while stack:
        node, depth = stack.pop()
        deepest = max(deepest, depth)
        stack.extend((child, depth + 1) for child in _children(unwrap(node)))
    return deepest


# The C printer recurses; measured: 4,000 levels (of messages, Node wrappers not counted) on 8 MB of stack are safe.
_PRINTABLE_DEPTH = 2000


def texts(nodes: Iterable[Node]) -> list[str]:
    """The strings of a list of String nodes (a qualified name); everything else in it is passed over."""
    inner = (unwrap(node) for node in nodes)
    return [node.sval for node in inner if kind_of(node) == "String"]


def qualified(parts: Sequence[str]) -> Name:
    """The last two parts of a dotted name as (schema, name)."""
    return (parts[-2] if len(parts) > 1 else "", parts[-1]) if parts else ("", "")


def relation(node: Node) -> Name:
    """A RangeVar's name."""
    return (node.schemaname, node.relname)


_IDENTIFIER = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)'
_CHAIN = re.compile(rf"{_IDENTIFIER}(?:\s*\.\s*{_IDENTIFIER})+")
_BARE_CHAIN = re.compile(r"[^\W\d][\w$]*(?:\s*\.\s*[^\W\d][\w$]*)+")
_PART = re.compile(_IDENTIFIER)
_FOLD = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


def dotted_names(text: str) -> Iterator[list[str]]:
    """The dotted names in free text, parts folded and cut as Postgres does: ``a."B".C`` is ['a', 'B', 'c'].

    Text that is no SQL can have a stray quote in it, so names are looked for with and without regard to quotes.
    """
    for pattern in (_CHAIN, _BARE_CHAIN):
        for chain in pattern.finditer(text):
            yield [_identifier(part) for part in _PART.findall(chain[0])]


def _identifier(text: str) -> str:
    name = text[1:-1].replace('""', '"') if text.startswith('"') else text.translate(_FOLD)
    return name.encode()[:63].decode(errors="ignore")


def quoted(name: Name) -> str:
    """A name as people write it in SQL."""
    return ".".join(part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"' for part in name if part)


_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
