"""Whether every value of one type can be stored in another unchanged, and the SQL that takes it there. Pure.

Values travel as text: `COPY (SELECT cast_sql(…)) TO STDOUT` on the source, `COPY … FROM STDIN` on the target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

from psycopg import sql

from airflow_provider_pgddl.engine.schema.definitions import same_expression
from airflow_provider_pgddl.engine.schema.table_model import TypeModel
from airflow_provider_pgddl.engine.schema.type_sizes import (
    TIMES,
    TIMESTAMPS,
    digits,
    is_read_back,
    is_written_alike,
    last_field,
    longest_text,
    modifiers,
    most_characters,
    second_digits,
)

CastKind = Literal["same", "safe", "lossy", "impossible"]
Expression = Literal["column", "cast", "text"]


@dataclass(frozen=True, slots=True)
class Cast:
    """`safe`: no value is refused, and each one cast back equals what it was. `lossy`: Postgres casts, and some value
    is refused or comes out as another one. `impossible`: Postgres has no such cast.

    `why` is a sentence without its full stop, `example` one value before and after ("19.99 → 20"). `expression` is what
    the source is asked for: the column as it is, a CAST, or a CAST of the column's text."""

    kind: CastKind
    why: str
    example: str | None = None
    expression: Expression = "cast"


SAFE = "Safe widening cast"
IN_UTC = "Safe widening cast: times without a zone are taken for UTC, in which our sessions run"

# Without a look at modifiers. date → timestamp is the one cast called safe that can refuse a value: a date after the
# year 294276 is out of a timestamp's range. It stops the table, and never changes into another one.
_SAFE: dict[str, frozenset[str]] = {
    "smallint": frozenset({"integer", "bigint", "numeric", "real", "double precision"}),
    "integer": frozenset({"bigint", "numeric", "double precision"}),
    "bigint": frozenset({"numeric"}),
    "money": frozenset({"numeric"}),
    "real": frozenset({"double precision"}),
    "oid": frozenset({"bigint"}),
    "date": frozenset({"timestamp without time zone", "timestamp with time zone"}),
    "timestamp without time zone": frozenset({"timestamp with time zone"}),
    "time without time zone": frozenset({"time with time zone"}),
    "bit": frozenset({"bit varying"}),
    "cidr": frozenset({"inet"}),
    "macaddr": frozenset({"macaddr8"}),
    "jsonb": frozenset({"json"}),
}

_ABOVE = {"smallint": "32768", "integer": "2147483648", "bigint": "9223372036854775808"}

# What a key's type may become beside itself: every value has one counterpart there, equal by the source's own equality
# (C12).
_INTEGERS = {"smallint", "integer", "bigint"}
_IN_KEYS: dict[str, frozenset[str]] = {
    "smallint": frozenset({"integer", "bigint", "numeric"}),
    "integer": frozenset({"bigint", "numeric"}),
    "bigint": frozenset({"numeric"}),
    "real": frozenset({"double precision"}),
    "character varying": frozenset({"text"}),
    "text": frozenset({"character varying"}),
}

_NUMBERS = frozenset({"smallint", "integer", "bigint", "numeric", "real", "double precision"})
_OBJECTS = frozenset({"regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper",
                      "regoperator", "regproc", "regprocedure", "regrole", "regtype"})  # fmt: skip
_EXACT = frozenset({"smallint", "integer", "bigint", "numeric"})
_FLOATS = frozenset({"real", "double precision"})
_STRINGS = frozenset({"text", "character varying", "character", "name"})

# pg_cast of Postgres 14 to 18 between types that are no strings; to and from a string there is always one.
_CASTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(_NUMBERS, _NUMBERS),
    **dict.fromkeys(_OBJECTS, frozenset({"oid", "integer", "bigint"})),
    "smallint": _NUMBERS | _OBJECTS | {"oid"},
    "integer": _NUMBERS | _OBJECTS | {"oid", "money", "boolean", "bit", '"char"'},
    "bigint": _NUMBERS | _OBJECTS | {"oid", "money", "bit"},
    "numeric": _NUMBERS | {"money"},
    "regoper": frozenset({"oid", "integer", "bigint", "regoperator"}),
    "regoperator": frozenset({"oid", "integer", "bigint", "regoper"}),
    "regproc": frozenset({"oid", "integer", "bigint", "regprocedure"}),
    "regprocedure": frozenset({"oid", "integer", "bigint", "regproc"}),
    "oid": _OBJECTS | {"integer", "bigint"},
    "money": frozenset({"numeric"}),
    "boolean": frozenset({"integer"}),
    '"char"': frozenset({"integer"}),
    "bit": frozenset({"integer", "bigint", "bit varying"}),
    "bit varying": frozenset({"bit"}),
    "date": TIMESTAMPS,
    "timestamp without time zone": TIMESTAMPS | {"date", "time without time zone"},
    "timestamp with time zone": TIMESTAMPS | {"date", "time without time zone", "time with time zone"},
    "time without time zone": frozenset({"interval", "time with time zone"}),
    "time with time zone": frozenset({"time without time zone"}),
    "interval": frozenset({"time without time zone"}),
    "json": frozenset({"jsonb"}),
    "jsonb": _NUMBERS | {"json", "boolean"},
    "inet": frozenset({"cidr"}),
    "cidr": frozenset({"inet"}),
    "macaddr": frozenset({"macaddr8"}),
    "macaddr8": frozenset({"macaddr"}),
    "box": frozenset({"polygon", "lseg", "circle", "point"}),
    "circle": frozenset({"point", "box", "polygon"}),
    "lseg": frozenset({"point"}),
    "path": frozenset({"polygon"}),
    "point": frozenset({"box"}),
    "polygon": frozenset({"circle", "box", "point", "path"}),
    "xid8": frozenset({"xid"}),
}


# Types that read nearly every text as something.
_READ_ANY = frozenset({'"char"', "name", "bytea", "tsvector", "tsquery", "xml", "jsonpath"})

# Ranges of which one set of values has one way to be written, and ranges that are stored as they are written.
_DISCRETE = frozenset({"int4range", "int8range", "daterange"})
_CONTINUOUS = frozenset({"numrange", "tsrange", "tstzrange"})


_PRECISION = "Casting would lose precision"
_LOSSY: dict[tuple[str, str], tuple[str, str]] = {
    ("double precision", "real"): (_PRECISION, "0.123456789 → 0.12345679"),
    ("integer", "real"): (_PRECISION, "16777217 → 1.6777216e+07"),
    ("bigint", "real"): (_PRECISION, "16777217 → 1.6777216e+07"),
    ("bigint", "double precision"): (_PRECISION, "9007199254740993 → 9.007199254740992e+15"),
    ("numeric", "real"): (_PRECISION, "0.123456789 → 0.12345679"),
    ("numeric", "double precision"): (_PRECISION, "9007199254740993.5 → 9.007199254740994e+15"),
    ("real", "numeric"): (_PRECISION, "1.6777216e+07 → 16777200"),
    ("double precision", "numeric"): (_PRECISION, "9.007199254740992e+15 → 9007199254740990"),
    ("timestamp without time zone", "date"): (
        "Casting would lose the time of day", "2026-02-04 20:15:00 → 2026-02-04"),
    ("timestamp with time zone", "date"): (
        "Casting would lose the time of day", "2026-02-04 20:15:00+00 → 2026-02-04"),
    ("timestamp without time zone", "time without time zone"): (
        "Casting would lose the date", "2026-02-04 20:15:00 → 20:15:00"),
    ("timestamp with time zone", "time without time zone"): (
        "Casting would lose the date", "2026-02-04 20:15:00+00 → 20:15:00"),
    ("timestamp with time zone", "time with time zone"): (
        "Casting would lose the date", "2026-02-04 20:15:00+00 → 20:15:00+00"),
    ("timestamp with time zone", "timestamp without time zone"): (
        "Casting would lose the zone: what is left is the time in UTC, and nothing says so",
        "2026-02-04 20:15:00+00 → 2026-02-04 20:15:00"),
    ("time with time zone", "time without time zone"): (
        "Casting would lose the offset from UTC", "20:15:00+02 → 20:15:00"),
    ("time without time zone", "interval"): (
        "Casting would make a length of time of a time of day", "20:15:00 → 20:15:00"),
    ("interval", "time without time zone"): ("Casting would lose whole days", "1 day 02:00:00 → 02:00:00"),
    ("json", "jsonb"): (
        "Casting would lose blanks, the order of keys and all but the last of equal ones",
        '{"b": 1, "a": 1, "b": 2} → {"a": 1, "b": 2}'),
    ("boolean", "integer"): ("Casting would make numbers of true and false", "true → 1"),
    ("inet", "cidr"): ("Casting would lose the bits of the host", "10.0.0.1/8 → 10.0.0.0/8"),
    ("macaddr8", "macaddr"): ("Casting would refuse longer addresses", "08:00:2b:01:02:03:04:05 → refused"),
}  # fmt: skip


def judge_cast(source: TypeModel, target: TypeModel, *, key: bool = False) -> Cast:
    """What becomes of the values of a column of type `source` in a column of type `target`.

    In a key a cast is safe only if changed rows are found again: values equal by the source's own equality, and no two
    of them become one."""
    cast = _judge(source, target)
    if key and cast.kind == "safe" and not _found_again(source, target):
        why = f"In a key, {source.text} cannot become {target.text}: changed rows could not be found again"
        return Cast("lossy", why, None, cast.expression)
    return cast


def cast_sql(column: str, cast: Cast, target: TypeModel) -> str:
    """SQL over the source's column that yields what is written to the target's."""
    name = sql.Identifier(column).as_string()
    there = _on_source(target)
    if cast.expression == "column" or there is None:
        return name
    value = name if cast.expression == "cast" else f"CAST({name} AS text)"
    return f"CAST({value} AS {there})"


def narrows_integer(source: TypeModel, target: TypeModel) -> bool:
    """Whether a value either becomes the very same number or is refused: a key that was cast so is found again."""
    return {source.stored.name, target.stored.name} <= _INTEGERS


def _found_again(source: TypeModel, target: TypeModel) -> bool:
    was, now = source.stored, target.stored
    if target.kind == "domain" and target.name != source.name and now.kind != "base":
        return False  # operators of enums, arrays and ranges are not found for a domain over one
    return was.name == now.name or now.name in _IN_KEYS.get(was.name, ())


def _judge(source: TypeModel, target: TypeModel) -> Cast:
    """Domains are what they are over, and the conditions of the target's have to be among the source's."""
    cast = _judge_stored(source.stored, target.stored)
    unmet = _unmet(source, target)
    if unmet and cast.kind in ("same", "safe"):
        return replace(cast, kind="lossy", why=f"{target.text} refuses values that do not meet {' and '.join(unmet)}")
    if cast.kind == "same" and source.text != target.text:
        return replace(cast, kind="safe", why=SAFE)
    return cast


def _unmet(source: TypeModel, target: TypeModel) -> list[str]:
    """What the target's domains ask of a value and the source's do not."""
    (refused, not_null), (met, never_null) = _conditions(target), _conditions(source)
    unmet = [check for check in refused if not any(same_expression(check, other, {}) for other in met)]
    return unmet + (["NOT NULL"] if not_null and not never_null else [])


def _conditions(type_: TypeModel) -> tuple[list[str], bool]:
    """The checks of a domain and of the domains that it is over, and whether one of them takes no NULL."""
    if type_.base is None:
        return [], False
    checks, not_null = _conditions(type_.base)
    return [*type_.checks, *checks], type_.not_null or not_null


def _judge_stored(was: TypeModel, now: TypeModel) -> Cast:
    if was.kind == now.kind == "enum":
        return _judge_enum(was, now)
    if was.kind == now.kind == "composite":
        return _judge_composite(was, now)
    if was.kind == now.kind and was.element and now.element:
        return _judge_elements(was, now, was.element, now.element)
    return _same() if was.text == now.text else _judge_plain(was, now, was.name, now.name)


# --- types made of others -------------------------------------------------------------------------------------------


def _judge_enum(was: TypeModel, now: TypeModel) -> Cast:
    """Labels are compared by their names: an enum's order is no part of a value."""
    gone = [label for label in was.labels if label not in now.labels]
    if gone:
        lacks = ", ".join(f"'{label}'" for label in gone)
        return Cast("lossy", f"{now.text} on the target lacks {lacks}", f"{gone[0]} → refused", "column")
    if len(was.labels) == len(now.labels):
        return _same()
    return Cast("safe", f"{now.text} on the target has more labels", None, "column")


def _judge_composite(was: TypeModel, now: TypeModel) -> Cast:
    """Values are written by position: attributes have to be the same in the same order."""
    if was.attributes == now.attributes:
        return _same()
    if len(was.attributes) != len(now.attributes):
        return Cast("impossible", f"{now.text} on the target has another number of attributes", None, "column")
    theirs = next(b for a, b in zip(was.attributes, now.attributes, strict=True) if a != b)
    return Cast("lossy", f"{now.text} on the target has {' '.join(theirs)} in another one's place", None, "column")


def _judge_elements(was: TypeModel, now: TypeModel, each: TypeModel, becomes: TypeModel) -> Cast:
    """Arrays element by element; so ranges, between which Postgres has no cast but through their text."""
    cast = _judge(each, becomes)
    if cast.kind == "same" and was.text == now.text:
        return cast
    if cast.kind == "same":
        cast = Cast("safe", SAFE, None, "column")
    if was.kind == "array" or cast.kind == "impossible":
        return replace(cast, example=None)
    if cast.kind == "safe" and was.kind == "range" and was.name not in _DISCRETE and now.name not in _CONTINUOUS:
        cast = replace(cast, kind="lossy", why=f"{now.text} may write the bounds of a range in another way")
    return replace(cast, example=None, expression="text" if now.builtin else "column")


# --- base types -----------------------------------------------------------------------------------------------------


def _judge_plain(was: TypeModel, now: TypeModel, a: str, b: str) -> Cast:
    """`a` and `b` are the types' names without modifiers."""
    expression = _expression(now)
    widens = a == b or b in _SAFE.get(a, ())
    if b in ("text", "character varying") or now.extension == "citext":
        return _judge_text(was, now, "column" if a == b else expression)
    if widens and _fits(was, now):
        why = IN_UTC if a != b and b.endswith("with time zone") else SAFE
        return Cast("safe", why, None, "column" if a == b and is_written_alike(was, now) else expression)
    if b == "character" and a != b:
        return Cast("lossy", f"{now.text} does not tell blanks at the end from none", None, expression)
    if a in _NUMBERS | {"money"} and b in _EXACT and (a, now.text) not in _LOSSY:
        return _judge_number(was, now, a, b)
    if widens:
        return _cut(was, now, a, b)
    if a in _STRINGS or was.extension == "citext":
        return _judge_from_text(now, b)
    if b in _CASTS.get(a, ()) or b == "name":
        why, example = _LOSSY.get((a, b), (f"Casting {was.text} to {now.text} may change or refuse values", None))
        fits = a != "numeric" or not modifiers(was)  # the examples have many digits
        return Cast("lossy", why, example if fits else None, expression)
    if was.kind == "range" and now.kind == "multirange" and now.element and now.element.name == was.name:
        return Cast("lossy", "Casting would make a set of each range", None, expression)
    return Cast("impossible", f"Postgres has no cast from {was.text} to {now.text}", None, expression)


def _judge_text(was: TypeModel, now: TypeModel, expression: Expression) -> Cast:
    """Into text, varchar and citext."""
    limit, longest = most_characters(now), longest_text(was)
    if not is_read_back(was):
        return Cast("lossy", f"The text of {was.text} need not mean the same on the target", None, expression)
    if limit is None or (longest is not None and longest <= limit):
        return Cast("safe", SAFE, None, expression)
    return _cut(was, now, was.name, now.name)


def _judge_from_text(now: TypeModel, b: str) -> Cast:
    if b in ("name", '"char"'):
        return Cast("lossy", f"Casting would cut off what {now.text} does not hold")
    example = "abc → refused" if now.builtin and b not in _READ_ANY else None
    return Cast("lossy", f"Casting would refuse or change text that is no {now.text}", example, _expression(now))


def _judge_number(was: TypeModel, now: TypeModel, a: str, b: str) -> Cast:
    """To a number with fewer digits in front of the point, or behind it."""
    (before, behind), (room, places) = digits(was), digits(now)
    if behind > places:
        exact = a not in _FLOATS or places <= 3
        return Cast("lossy", _PRECISION, _rounded(before, behind, room, places) if exact and a != "money" else None)
    above = _ABOVE.get(b) or f"1{'0' * int(room)}"
    if before < len(above):
        return Cast("lossy", f"Casting would refuse NaN, which {now.text} has not", "NaN → refused")
    why = f"Casting would refuse numbers out of the range of {now.text}"
    return Cast("lossy", why, f"{above} → refused" if room > 0 and a != "money" else None)


def _rounded(before: float, behind: float, room: float, places: float) -> str | None:
    digits = min(before, room)
    if digits < 1 or places < 0:
        return None
    value = Decimal(f"{'19' if digits > 1 else '1'}.{'9' * int(min(behind, max(places + 1, 2)))}")
    return f"{value} → {value.quantize(Decimal(1).scaleb(-int(places)), ROUND_HALF_UP)}"


def _cut(was: TypeModel, now: TypeModel, a: str, b: str) -> Cast:
    """To the same type, or a wider one, with a modifier that is narrower."""
    limit = most_characters(now)
    if b in TIMES:
        return Cast("lossy", _PRECISION, _shortened(a, b, second_digits(was), second_digits(now)))
    if b in ("bit", "bit varying"):
        return Cast("lossy", f"Casting would cut values, or fill them up, to {limit} bits")
    if b == "interval" or limit is None:  # without a limit: types of extensions
        return Cast("lossy", f"{now.text} holds less than {was.text}", None, _expression(now))
    letters = "abcdefghi"[: limit + 1] if limit < 9 and a in _STRINGS else None
    example = f"{letters} → {letters[:-1]}" if letters else None
    return Cast("lossy", f"Casting would cut values off after {limit} characters", example)


def _shortened(a: str, b: str, was: int, now: int) -> str:
    date = "2026-02-04 " if a in TIMESTAMPS else ""
    digits = Decimal("0.123456").quantize(Decimal(1).scaleb(-was))
    left = str(digits.quantize(Decimal(1).scaleb(-now), ROUND_HALF_UP))[1:]
    before, after = ("+00" if t.endswith("with time zone") else "" for t in (a, b))
    return f"{date}20:15:00{str(digits)[1:]}{before} → {date}20:15:00{left}{after}"


def _fits(was: TypeModel, now: TypeModel) -> bool:
    """Whether all that `was` holds is within the modifier of `now`, a type that is at least as wide by its name."""
    kind = now.name
    if kind == "numeric":
        return all(theirs >= ours for ours, theirs in zip(digits(was), digits(now), strict=True))
    if kind == "interval":
        return last_field(was) <= last_field(now) and second_digits(was) <= second_digits(now)
    if kind in TIMES:
        return second_digits(was) <= second_digits(now)
    if kind == "bit":
        return False  # another length is never the same value
    if kind in ("character", "bit varying"):
        limit, longest = most_characters(now), most_characters(was)
        return limit is None or (longest is not None and longest <= limit)
    return now.builtin or now.text == now.name


# --- what a type's text says ----------------------------------------------------------------------------------------


def _on_source(type_: TypeModel) -> str | None:
    """How the source knows the type; None where it need not have it."""
    type_ = type_.stored
    if not type_.builtin or type_.kind in ("enum", "composite"):
        element = _on_source(type_.element) if type_.kind == "array" and type_.element else None
        return f"{element}[]" if element else None
    return type_.text


def _expression(now: TypeModel) -> Expression:
    return "cast" if _on_source(now) is not None else "column"


def _same() -> Cast:
    return Cast("same", "The types are the same", None, "column")
