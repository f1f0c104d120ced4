"""What is not kept of client strings before they are written to the journal, or shown: statements that may hold a
password, and, where values are to stay on the source (`tables.where`, `tables.transform`), all that may hold one of
these. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.engine.ddl.client_string import Statement, read_string
from airflow_provider_pgddl.engine.ddl.node_names import object_type_words
from airflow_provider_pgddl.engine.ddl.parse import Node, deparse, kind_of, parse, split, statement_node
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.secrets_in_text import SECRET_KEYWORDS

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
# Settings of roles, databases and the server: nothing of them follows, as little as what writes rows.
_SETTINGS = {"AlterRoleSetStmt", "AlterDatabaseSetStmt", "AlterSystemStmt"}
# As people call what is secret: an option, a setting, a column, an argument.
_CALLED = r"""(?:passw(?:or)?d|passphrase|pwd|secret|token|credentials?|conn_?str(?:ing)?|conn_?info
    |connection(?:_?(?:string|str|info))?|(?:api|access|private|account|encryption|master|secret|shared|storage)_?key
    )"""
_NAME = re.compile(rf"(?:.*\.)?(?:\w*{_CALLED}(?:_hash|_value)?|pass)", re.IGNORECASE | re.VERBOSE | re.DOTALL)
# Nothing before that may be repeated: of a word of a megabyte, a search would look at each beginning to its end.
_SUSPECT = re.compile(rf"{_CALLED}|\bpass\b|mapping|subscription|://", re.IGNORECASE | re.VERBOSE)
# Tokens, also of what is cut off in the middle: what is open ends with the text.
_TOKEN = re.compile(
    r"""
      (?P<comment>--[^\r\n]* | /\*.*?(?:\*/|\Z))
    | (?P<escaped>(?<![\w$])e'(?:[^'\\]|\\.|'')*+'?)
    | (?P<string>(?:(?<![\w$])(?:u&|[bxn]))?'(?:[^']|'')*+'?)
    | (?P<dollar>(?<![\w$])\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z))
    | (?P<word>"(?:[^"]|"")*+"? | [^\W\d][\w$.]*+)
    | (?P<sign>:= | => | \S)
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_GIVEN = {"=", ":=", "=>", "to"}
# A password in a URI, unless format() puts it in.
_IN_URI = re.compile(
    r"""(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^\s/:@'"]*:(?!%[sIL\d])[^\s/@'"]+@
      | [?&;](?:password|pwd|token|secret)=(?!%[sIL\d])[^\s&;'"]""",
    re.IGNORECASE | re.VERBOSE,
)
# As ODBC and ADO take it: in a string alone, as code assigns like that.
_IN_PARTS = re.compile(r"""[?&;]\s*(?:password|pwd|token|secret)\s*=\s*(?!%[sIL\d])[^\s&;'"]""", re.IGNORECASE)
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
    if statement.tree is None or not _says_schema(statement.node):
        return VALUE_LEFT_OUT
    if "--" not in statement.text and "/*" not in statement.text:
        return statement.text
    try:
        return deparse(statement.tree)
    except StageFailed:
        return VALUE_LEFT_OUT


def _says_schema(node: Node) -> bool:
    kind = kind_of(node)
    chooses_rows = kind == "CreateTableAsStmt" and object_type_words(node.objtype) == "TABLE"
    return _OF_A_SCHEMA.match(kind) is not None and not chooses_rows


def without_secrets(text: str) -> str:
    """The same string, each statement that may hold a secret replaced by a remark.

    What says what a schema is has to be kept to follow, so that takes more than a suspect word."""
    if not _SUSPECT.search(text):
        return text
    try:
        statements = split(text)
        nodes = [statement_node(parse(statement)) for statement in statements]
    except StageFailed:
        return LEFT_OUT if _tells_secret(text, of_schema=False) else text
    secret = [_is_secret(node, statement) for node, statement in zip(nodes, statements, strict=True)]
    if not any(secret):
        return text
    return ";\n".join(LEFT_OUT if s else statement for s, statement in zip(secret, statements, strict=True))


def lost_without_secrets(lost: Mapping[str, Any], *, in_part: bool) -> dict[str, Any]:
    """What the source could not record, as people may see it. Where values are to stay on the source (`in_part`) its
    message is cut to our words: the server's, behind them, may quote one."""
    statement, what = without_secrets(lost.get("statement") or ""), without_secrets(lost.get("what") or "")
    if in_part:
        ours, colon, theirs = what.partition(": ")
        statement, what = without_values(statement), f"{ours}{colon}{VALUE_LEFT_OUT}" if theirs else what
    return {**lost, "statement": statement or None, "what": what}


def _is_secret(node: Node, statement: str) -> bool:
    kind = kind_of(node)
    return kind in _KINDS or _tells_secret(statement, of_schema=kind not in _SETTINGS and _says_schema(node))


def _tells_secret(text: str, *, of_schema: bool) -> bool:
    """Whether a secret, or a connection string with one, stands in it, or in a string of it that is code again."""
    if not _SUSPECT.search(text):
        return False
    if _IN_URI.search(text):
        return True
    tokens = [found for found in _TOKEN.finditer(text) if not found["comment"]]
    strings = {at: _content(found) for at, found in enumerate(tokens) if not (found["word"] or found["sign"])}
    named = {at for at, found in enumerate(tokens) if found["word"] and _NAME.fullmatch(found[0].strip('"'))}
    return (
        any(map(_has_password, strings.values()))
        or any(_IN_PARTS.search(content) for at, content in strings.items() if not tokens[at]["dollar"])
        or any(_is_called_secret(tokens, strings, named, at, of_schema) for at in strings)
        or (not of_schema and bool(strings) and _fills(tokens, named))
        or any(_tells_secret(content, of_schema=of_schema) for content in strings.values() if " " in content.strip())
    )


def _content(token: re.Match[str]) -> str:
    """What a string says, as far as it matters here."""
    if token["dollar"]:
        mark = f"${token['tag']}$"
        return token[0].removeprefix(mark).removesuffix(mark)
    inside = token[0].partition("'")[2].removesuffix("'").replace("''", "'")
    return re.sub(r"\\(.)", r"\1", inside) if token["escaped"] else inside


def _has_password(text: str) -> bool:
    """Whether it is a connection string of libpq, or part of one, with a password that nobody has to fill in."""
    try:
        parts = conninfo_to_dict(text)
    except psycopg.Error:
        return False
    return any(str(parts.get(keyword) or "%")[0] not in "%$" for keyword in SECRET_KEYWORDS)


def _is_called_secret(
    tokens: Sequence[re.Match[str]], strings: Mapping[int, str], named: Collection[int], at: int, of_schema: bool
) -> bool:
    """Whether what stands before a string calls it one. What says what a schema is compares, and lists, without one."""
    before = at - 1
    if not strings[at]:
        return False  # PASSWORD '' || p: what goes there is not in it
    if before in named:
        return True  # PASSWORD 'x'; OPTIONS (password 'x')
    if before > 2 and tokens[before][0] == "," and _NAME.fullmatch(strings.get(before - 1, "")):
        return not of_schema or tokens[before - 3][0].lower().endswith("set_config")
    if of_schema:
        return False
    while before > 0 and tokens[before][0] == "(" and tokens[before - 1]["word"]:
        before -= 2  # password = crypt('x', …)
    return before - 1 in named and tokens[before][0].lower() in _GIVEN


def _fills(tokens: Sequence[re.Match[str]], named: Collection[int]) -> bool:
    """Whether a secret column is in the list of an INSERT."""
    if not any(token[0].lower() == "insert" for token in tokens):
        return False
    signs = ["", *(token["sign"] or "" for token in tokens), ""]
    return any(signs[at] in ("(", ",") and signs[at + 2] in (")", ",") for at in named)
