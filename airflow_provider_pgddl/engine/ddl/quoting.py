"""Quotes around names, by the words of the parser's grammar and by those of another server. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

import postgast
from postgast import PgQueryError, pg_query_pb2

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_QUOTED = re.compile(r'"([a-z_][a-z0-9_]*)"')
_ANY_QUOTED = re.compile(r'"(?:[^"]|"")*"')
# Without these a double quote begins a name or ends one, and tokens need not be told apart.
_MORE_THAN_NAMES = re.compile(r"""['$]|--|/\*|[uU]&"|"json\"""")
# Types whose literals are names.
_OF_NAMES = ("regclass", "regtype", "regproc", "regprocedure", "regoper", "regoperator", "regconfig", "regdictionary",
             "regcollation", "regnamespace", "regrole")  # fmt: skip

# Of json, which is a keyword from 17 on, the type goes without quotes all the same, as a newer server prints it.
_TYPE_FOLLOWS = re.compile(r'^"|::|^returns$', re.IGNORECASE)

_IN_FRONT = ("(", ",", "in", "out", "inout", "variadic")  # of an argument's name, rather than its type

# Words that became more than names, by the major version that brought them: an older server prints them without quotes.
_BROUGHT = {
    16: frozenset({"json_array", "json_arrayagg", "json_object", "json_objectagg", "system_user"}),
    17: frozenset({"json", "json_exists", "json_query", "json_scalar", "json_serialize", "json_table", "json_value",
                   "merge_action"}),
}  # fmt: skip
NEWEST = 18  # whose grammar the parser has


def identifier(name: str) -> str:
    """A name as the server prints it: quoted only where the grammar asks for it."""
    return name if _PLAIN.fullmatch(name) and _may_be_bare(name) else '"' + name.replace('"', '""') + '"'


@cache
def _may_be_bare(word: str) -> bool:
    kind = postgast.scan(word).tokens[0].keyword_kind
    return kind in (pg_query_pb2.NO_KEYWORD, pg_query_pb2.UNRESERVED_KEYWORD)


def unquoted(statement: str) -> str:
    """What a server printed under quote_all_identifiers, without the quotes that this grammar does not ask for."""
    return _without_quotes(statement, identifier)


def bare(statement: str) -> str:
    """The same without quotes around any plain word, for comparing what two versions of this project have recorded.
    Not to be run."""
    return _without_quotes(statement, lambda name: name)


def _without_quotes(statement: str, spelled: Callable[[str], str]) -> str:
    if '"' not in statement:
        return statement
    if statement.count('"') % 2 == 0 and not _MORE_THAN_NAMES.search(statement):  # which is nearly all that a dump has
        return _ANY_QUOTED.sub(lambda found: _spelled(found[0], spelled), statement)
    tokens = list(_tokens(statement))
    changed: list[tuple[int, int, str]] = []
    for number, (start, end, text) in enumerate(tokens):
        if plain := _QUOTED.fullmatch(text):
            is_type = plain[1] == "json" and number > 0 and _TYPE_FOLLOWS.search(tokens[number - 1][2])
            changed.append((start, end, "json" if is_type else spelled(plain[1])))
        elif text.startswith("'") and _is_name(tokens[number + 1 : number + 3]):
            changed.append((start, end, _QUOTED.sub(lambda found: spelled(found[1]), text)))
    return _replaced(statement, changed)


def _spelled(name: str, spelled: Callable[[str], str]) -> str:
    plain = _QUOTED.fullmatch(name)
    return spelled(plain[1]) if plain else name


def _is_name(behind: list[tuple[int, int, str]]) -> bool:
    return len(behind) == 2 and behind[0][2] == "::" and behind[1][2].strip('"') in _OF_NAMES


def for_parser(sql: str, major: int) -> str:
    """What a server of this major version printed or took, with quotes around what has become a keyword since."""
    brought = [words for version, words in _BROUGHT.items() if version > major]
    if not any(word in sql.lower() for words in brought for word in words):
        return sql
    tokens = list(_tokens(sql))
    texts = ["", *(text.lower() for _, _, text in tokens), ""]
    changed = [
        (start, end, f'"{word}"')
        for (start, end, _), before, word, behind in zip(tokens, texts, texts[1:], texts[2:])  # noqa: B905
        if any(word in words for words in brought) and (word != "json" or before in _IN_FRONT or behind == "(")
    ]
    return _replaced(sql, changed)


def _tokens(sql: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, text), in bytes of UTF-8; none where this is no SQL."""
    raw = sql.encode()
    try:
        found = postgast.scan(sql).tokens
    except PgQueryError:
        return
    for token in found:
        yield token.start, token.end, raw[token.start : token.end].decode()


def _replaced(sql: str, changed: list[tuple[int, int, str]]) -> str:
    raw, parts, position = sql.encode(), [], 0
    for start, end, text in changed:
        parts += [raw[position:start], text.encode()]
        position = end
    return b"".join([*parts, raw[position:]]).decode()
