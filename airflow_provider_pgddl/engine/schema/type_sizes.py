"""How much a type takes: characters, digits before and behind the point, fields of an interval, as its
modifiers say. Pure."""

from __future__ import annotations

import math
import re

from airflow_provider_pgddl.engine.schema.table_model import TypeModel

TIMESTAMPS = frozenset({"timestamp without time zone", "timestamp with time zone"})
TIMES = TIMESTAMPS | {"time without time zone", "time with time zone"}
# Digits before and behind the point that hold every value, and the first number above the range.
_DIGITS = {"smallint": (5, 0), "integer": (10, 0), "bigint": (19, 0), "money": (17, 2)}

# Types whose text is read back as the same value, with the most characters it takes where that is known. Not among
# them: reg… (names that follow a renamed object), and "char" (servers before 16 print half of its values as bytes that
# no encoding knows).
_PRINTED: dict[str, int | None] = {
    "smallint": 6, "integer": 11, "bigint": 20, "oid": 10, "boolean": 5, "uuid": 36, "name": 63, "date": 13,
    "macaddr": 17, "macaddr8": 23,
    **dict.fromkeys((
        "numeric", "real", "double precision", "money", "text", "character varying", "character", "bit", "bytea",
        *TIMES, "interval", "bit varying", "inet", "cidr", "json", "jsonb", "jsonpath",
        "xml", "tsvector", "tsquery", "point", "line", "lseg", "box", "path", "polygon", "circle", "pg_lsn",
        "pg_snapshot", "txid_snapshot", "xid", "cid", "tid", "xid8",
    )),
}  # fmt: skip


_PRINTED_EXTENSIONS = frozenset({"citext", "hstore", "ltree"})


# What an interval's last field leaves of it.
_FIELDS = ("year", "month", "day", "hour", "minute", "second")


def modifiers(type_: TypeModel) -> list[int]:
    found = re.search(r"\(([-\d,]+)\)", type_.text) if type_.builtin else None
    return [int(n) for n in found[1].split(",")] if found else []


def most_characters(type_: TypeModel) -> int | None:
    """Characters or bits; None is without a limit."""
    return next(iter(modifiers(type_)), None)


def digits(type_: TypeModel) -> tuple[float, float]:
    """Digits in front of the point and behind it."""
    if (kind := type_.name) in _DIGITS:
        return _DIGITS[kind]
    precision, scale, *_ = [*modifiers(type_), 0, 0]
    return (precision - scale, scale) if modifiers(type_) else (math.inf, math.inf)


def second_digits(type_: TypeModel) -> int:
    """Digits of a second."""
    whole = type_.name == "date" or (type_.name == "interval" and last_field(type_) < _FIELDS.index("second"))
    return 0 if whole else next(iter(modifiers(type_)), 6)


def last_field(type_: TypeModel) -> int:
    """The smallest field that an interval keeps; greater ones are kept in any case."""
    kept = [n for n, field in enumerate(_FIELDS) if re.search(rf"\b{field}\b", type_.text)]
    return max(kept, default=len(_FIELDS))


def longest_text(type_: TypeModel) -> int | None:
    """The most characters that a value's text takes, where that is known."""
    if type_.kind == "enum":
        return max(map(len, type_.labels), default=0)
    by_length = type_.name in ("character varying", "character", "bit", "bit varying")
    return most_characters(type_) if by_length else _PRINTED.get(type_.name)


def is_read_back(type_: TypeModel) -> bool:
    """Whether every value's text is read back as the same value."""
    if type_.element is not None:
        return is_read_back(type_.element.stored)
    return type_.kind == "enum" or type_.name in _PRINTED or type_.extension in _PRINTED_EXTENSIONS


def is_written_alike(was: TypeModel, now: TypeModel) -> bool:
    """Whether a value has one text in both, which are of one name: a numeric is written with as many digits behind the
    point as its type says, a character with as many blanks. Without a modifier it stays as it came."""
    if now.name == "numeric":
        return not modifiers(now) or digits(was)[1] == digits(now)[1]
    return now.name != "character" or most_characters(now) in (None, most_characters(was))
