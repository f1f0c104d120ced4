"""Every verdict on a cast against what Postgres does to the values at the edges of a type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, LiteralString, cast

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.rows.transfer import REFUSALS, copy_between, read_statement, write_statement
from airflow_provider_pgddl.engine.schema.casts import Cast, cast_sql, judge_cast
from airflow_provider_pgddl.engine.schema.table_model import TypeModel
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.server.schema_reading import read
from tests.conftest import Database

TYPES = """
CREATE SCHEMA s;
CREATE TYPE s.mood AS ENUM ('sad', 'ok', 'it''s, "fine"', '');
CREATE TYPE s.more AS ENUM ('new', 'it''s, "fine"', 'ok', 'sad', '', 'newer');
CREATE TYPE s.fewer AS ENUM ('ok', 'sad');
CREATE DOMAIN s.plain AS integer;
CREATE DOMAIN s.wide AS bigint;
CREATE DOMAIN s.positive AS integer CHECK (VALUE > 0);
CREATE DOMAIN s.still_positive AS integer CHECK (VALUE > 0);
CREATE DOMAIN s.small AS s.positive CHECK (VALUE < 100);
CREATE DOMAIN s.present AS integer NOT NULL;
CREATE DOMAIN s.code AS varchar(5);
CREATE DOMAIN s.moods AS s.mood[];
CREATE TYPE s.pair AS (x integer, y text);
CREATE TYPE s.twin AS (x integer, y text);
CREATE TYPE s.swapped AS (y text, x integer);
CREATE TYPE s.triple AS (x integer, y text, z integer);
CREATE TYPE s.ints AS RANGE (subtype = integer);
CREATE TYPE s.longs AS RANGE (subtype = bigint);
"""

TEXTS = (
    "",
    "a",
    " a",
    "a ",
    "a   ",
    "žluť",
    "\U0001f600" * 3,
    "\U0001f600" * 20,
    "x" * 80,
    "\\N",
    "\\.",
    "NULL",
    "tab\there",
    "new\nline",
    '"q"',
    "{}",
    "1",
    "-0.00",
    "true",
    "A",
)
MOMENTS = ("infinity", "-infinity", "294276-12-31 23:59:59.999999", "4713-01-01 00:00:00 BC", "2000-02-29 12:00",
           "1999-12-31 23:59:59.999999", "0001-01-01 BC")  # fmt: skip
TIMES = ("00:00", "24:00", "23:59:59.999999", "12:00:00.5")
FLOATS = ("0", "-0", "NaN", "Infinity", "-Infinity", "0.1", "19.99", "16777217", "1.17549435e-38", "3.4028235e38",
          "1.7976931348623157e308", "4.9406564584124654e-324", "0.123456789", "-0.333333333333333333")  # fmt: skip

# What is put into a column of the source, as text; what its type does not take is left out.
VALUES: dict[str, tuple[str, ...]] = {
    "smallint": ("-32768", "32767", "0"),
    "integer": ("-2147483648", "2147483647", "0", "16777217", "32768"),
    "bigint": ("-9223372036854775808", "9223372036854775807", "9007199254740993", "0"),
    "numeric": ("NaN", "Infinity", "-Infinity", "0", "19.99", "-19.999", "1.10", "1.100", "0.5", "99999999.99",
                "1e-200", "9" * 40, "9" * 18, "9" * 9, "9" * 4, "-9.9999", "0.00001", "9007199254740993.5"),
    "real": FLOATS,
    "double precision": FLOATS,
    "money": ("-92233720368547758.08", "92233720368547758.07", "0.01", "0"),
    "boolean": ("true", "false"),
    "oid": ("0", "4294967295", "2147483648"),
    "text": TEXTS,
    "character varying": (*TEXTS, "xxxxx", "xxxxxxxxxx"),
    "character": (*TEXTS, "xxxxx"),
    "name": (*TEXTS, "ž" * 31),
    '"char"': ("", "a", "\\377", "\\"),
    "bytea": ("", "\\x00ff5c", "abc"),
    "uuid": ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    "date": ("infinity", "-infinity", "4713-01-01 BC", "0001-02-28 BC", "2000-02-29", "294276-12-31", "5874897-12-31"),
    "timestamp without time zone": MOMENTS,
    "timestamp with time zone": (*MOMENTS, "1891-03-15 00:00:00+00:09:21"),
    "time without time zone": TIMES,
    "time with time zone": ("00:00-15:59", "24:00:00+14", "12:00:00.000001+05:30", "12:00+00"),
    "interval": ("0", "178000000 years", "-178000000 years -11 months", "1 mon -30 days 23:59:59.999999", "25:00",
                 "1 year 2 mon 3 days 04:05:06.789", "-1 day +24:00:00"),
    "bit": ("101", "000", "10101"),
    "bit varying": ("", "1", "101", "10101", "10101010101"),
    "json": ('{"b": 1,  "a": 1, "b": 2}', '" \\u0041"', "null", " [1 , 2] "),
    "jsonb": ('{"b": 1, "a": [1, null]}', '"a"', "null", "12345678901234567890.10", "true", "40000"),
    "inet": ("10.0.0.1/8", "10.0.0.1", "::ffff:1.2.3.4/96"),
    "cidr": ("10.0.0.0/8", "2001:db8::/32", "10.0.0.1/32"),
    "macaddr": ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"),
    "macaddr8": ("00:00:00:00:00:00:00:00", "08:00:2b:ff:fe:03:04:05", "08:00:2b:01:02:03:04:05"),
    "tsvector": ("a:1A b:2 'it''s':3", ""),
    "tsquery": ("a & !b <-> c", ""),
    "jsonpath": ("$.a[*] ? (@ > 1)", 'strict $."x y"'),
    "point": ("(NaN,Infinity)", "(-0,0.1)"),
    "line": ("{1,-1,0}",),
    "lseg": ("[(0,0),(1e300,1)]",),
    "box": ("(1,1),(0,0)", "(3,0.1),(0,0)"),
    "path": ("[(0,0),(1,1)]", "((0,0),(1,1))"),
    "polygon": ("((0,0),(1,1),(2,0))",),
    "circle": ("<(0,0),1.5>",),
    "pg_lsn": ("0/0", "FFFFFFFF/FFFFFFFF"),
    "xid": ("4294967295", "0"),
    "xid8": ("18446744073709551615", "0"),
    "tid": ("(4294967295,65535)",),
    "pg_snapshot": ("10:20:10,14,15",),
    "regclass": ("s.m0", "pg_catalog.pg_class", "0"),
    "int4range": ("empty", "(,)", "[1,5]", "[-2147483648,2147483647)"),
    "int8range": ("empty", "(,)", "[1,3000000000]"),
    "numrange": ("(1.5,2]", "[NaN,NaN]", "(,)"),
    "daterange": ("[2000-01-01,2000-02-01]", "[-infinity,infinity]", "empty"),
    "int4multirange": ("{}", "{[1,2],[5,9)}"),
    "integer[]": ("{}", "{1,NULL,-2147483648}", "[0:1]={1,2}", "{{1},{2}}"),
    "bigint[]": ("{9223372036854775807,NULL}", "{}"),
    "numeric[]": ("{1.5,NaN}", "{}"),
    "character varying[]": ('{a,NULL,"",NULL,"a b","\\\\"}', "{xxxxx}"),
    "character[]": ('{a,"a  ","",NULL}',),
    "text[]": ("{a,NULL}", '{"",xxxxxxxxxx}'),
    "uuid[]": ("{ffffffff-ffff-ffff-ffff-ffffffffffff,NULL}",),
    "s.mood": ("sad", "ok", 'it\'s, "fine"', ""),
    "s.more": ("new", "ok"),
    "s.mood[]": ('{sad,"it\'s, \\"fine\\"",NULL,""}', "{}"),
    "s.plain": ("-2147483648", "2147483647", "0"),
    "s.wide": ("-9223372036854775808", "9"),
    "s.positive": ("1", "2147483647"),
    "s.small": ("1", "99"),
    "s.code": ("", "xxxxx", "a "),
    "s.moods": ("{sad,ok}", "{}"),
    "s.plain[]": ("{1,NULL}", "{2147483647}"),
    "s.pair": ('(1,"a,b")', "(,)", '(2147483647,"")'),
    "s.pair[]": ('{"(1,a)",NULL}',),
    "s.ints": ("[1,5]", "empty", "(,)"),
    "int4range[]": ('{"[1,5)",empty,NULL}', "{}"),
}  # fmt: skip

SAFE = [
    ("smallint", "integer"), ("smallint", "bigint"), ("smallint", "numeric"), ("smallint", "numeric(5,0)"),
    ("smallint", "real"), ("smallint", "double precision"), ("smallint", "character varying(6)"),
    ("integer", "bigint"), ("integer", "numeric"), ("integer", "numeric(10,0)"), ("integer", "numeric(14,4)"),
    ("integer", "double precision"), ("integer", "text"), ("integer", "character varying(11)"), ("bigint", "numeric"),
    ("bigint", "numeric(19,0)"), ("bigint", "text"), ("bigint", "character varying(20)"),
    ("numeric(10,2)", "numeric"), ("numeric(10,2)", "numeric(12,2)"), ("numeric(10,2)", "numeric(12,4)"),
    ("numeric(10,2)", "text"), ("numeric(4,0)", "numeric(5,0)"), ("numeric(5,-2)", "numeric(7,0)"),
    ("numeric", "text"), ("real", "double precision"), ("real", "text"), ("double precision", "text"),
    ("money", "numeric"), ("money", "numeric(19,2)"), ("money", "text"), ("boolean", "text"),
    ("boolean", "character varying(5)"), ("oid", "bigint"), ("oid", "text"),
    ("character varying(10)", "character varying(20)"), ("character varying(10)", "character varying"),
    ("character varying(10)", "text"), ("character varying", "text"), ("text", "character varying"),
    ("character(5)", "character(10)"), ("character(5)", "bpchar"), ("character(5)", "character varying(5)"),
    ("character(5)", "character varying"), ("character(5)", "text"), ("bpchar", "text"), ("name", "text"),
    ("name", "character varying(63)"), ("bytea", "text"), ("uuid", "text"), ("uuid", "character varying(36)"),
    ("date", "text"), ("date", "character varying(13)"), ("timestamp without time zone", "timestamp with time zone"),
    ("timestamp without time zone", "text"), ("timestamp(3) without time zone", "timestamp without time zone"),
    ("timestamp(0) without time zone", "timestamp(3) without time zone"),
    ("timestamp(3) without time zone", "timestamp(3) with time zone"),
    ("timestamp(3) with time zone", "timestamp with time zone"), ("timestamp with time zone", "text"),
    ("time(0) without time zone", "time without time zone"), ("time without time zone", "time with time zone"),
    ("time(3) with time zone", "time with time zone"), ("time with time zone", "text"), ("interval(3)", "interval"),
    ("interval(0)", "interval(3)"), ("interval day", "interval hour"), ("interval year", "interval year to month"),
    ("interval day to second(3)", "interval"), ("interval", "text"), ("interval month", "interval day to second(0)"),
    ("bit(3)", "bit varying(5)"), ("bit(3)", "bit varying"), ("bit varying(5)", "bit varying"),
    ("bit varying(5)", "bit varying(9)"), ("bit(3)", "character varying(3)"), ("jsonb", "json"), ("jsonb", "text"),
    ("json", "text"), ("jsonpath", "text"), ("inet", "text"), ("cidr", "inet"), ("cidr", "text"),
    ("macaddr", "macaddr8"), ("macaddr", "character varying(17)"), ("macaddr8", "character varying(23)"),
    ("tsvector", "text"), ("tsquery", "text"), ("point", "text"), ("line", "text"), ("lseg", "text"), ("box", "text"),
    ("path", "text"), ("polygon", "text"), ("circle", "text"), ("pg_lsn", "text"), ("xid", "text"), ("xid8", "text"),
    ("tid", "text"), ("pg_snapshot", "text"), ("int4range", "int8range"), ("int4range", "numrange"),
    ("int4range", "text"), ("int4multirange", "int8multirange"), ("daterange", "tsrange"), ("daterange", "tstzrange"),
    ("int4range", "s.longs"), ("integer[]", "bigint[]"), ("integer[]", "numeric[]"),
    ("integer[]", "text[]"), ("integer[]", "text"), ("character varying(10)[]", "character varying(20)[]"),
    ("character varying(10)[]", "text[]"), ("character(5)[]", "text[]"), ("s.mood[]", "s.more[]"),
    ("s.mood[]", "text[]"), ("s.plain[]", "integer[]"), ("integer[]", "s.plain[]"), ("integer[]", "s.wide[]"),
    ("int4range[]", "int8range[]"), ("s.mood", "s.more"), ("s.mood", "text"), ("s.mood", "character varying(12)"),
    ("s.moods", "s.mood[]"), ("s.plain", "integer"), ("s.plain", "bigint"), ("s.positive", "integer"),
    ("s.small", "s.positive"), ("s.positive", "s.still_positive"), ("integer", "s.plain"), ("integer", "s.wide"),
    ("s.code", "text"), ("s.code", "character varying(8)"), ("character varying(5)", "s.code"),
    ("s.mood[]", "s.moods"), ("s.pair", "s.twin"),
]  # fmt: skip

# A date after 294276 is no timestamp: the one value that a safe cast refuses. It stops the table.
SAFE_BUT_FOR = {
    ("date", "timestamp without time zone"): "5874897-12-31",
    ("date", "timestamp(0) with time zone"): "5874897-12-31",
}

LOSSY = [
    ("integer", "smallint"), ("bigint", "integer"), ("integer", "numeric(5,0)"), ("integer", "numeric(11,2)"),
    ("integer", "real"), ("bigint", "real"), ("bigint", "double precision"), ("integer", "character varying(5)"),
    ("numeric(10,2)", "integer"), ("numeric", "integer"), ("numeric", "bigint"), ("numeric(18,0)", "bigint"),
    ("numeric(4,0)", "smallint"), ("numeric(5,0)", "smallint"), ("numeric(10,2)", "numeric(10,1)"),
    ("numeric(10,2)", "numeric(9,2)"), ("numeric", "numeric(10,2)"), ("numeric", "double precision"),
    ("numeric", "real"), ("numeric(3,2)", "numeric(3,1)"), ("numeric(20,0)", "bigint"), ("real", "integer"),
    ("real", "numeric"), ("real", "numeric(8,2)"), ("double precision", "real"), ("double precision", "numeric"),
    ("double precision", "integer"), ("money", "numeric(10,2)"), ("bigint", "money"), ("numeric", "money"),
    ("text", "character varying(10)"), ("character varying(20)", "character varying(5)"),
    ("character varying", "character varying(5)"), ("character(5)", "character(3)"),
    ("character(5)", "character varying(3)"), ("character varying(5)", "character(5)"), ("text", "bpchar"),
    ("text", "name"), ("character varying(80)", "name"), ("text", "integer"), ("text", "numeric"),
    ("text", "boolean"), ("text", "uuid"), ("text", "jsonb"), ("text", "json"), ("text", "date"), ("text", "bytea"),
    ("text", "s.mood"), ("text", "integer[]"), ("text", "s.pair"), ("text", "int4range"),
    ("character varying(5)", "regclass"), ("character(5)", "integer"), ("text", "tsvector"),
    ("timestamp without time zone", "date"), ("timestamp with time zone", "date"),
    ("timestamp without time zone", "time without time zone"), ("timestamp with time zone", "time with time zone"),
    ("timestamp with time zone", "time without time zone"),
    ("timestamp without time zone", "timestamp(3) with time zone"),
    ("timestamp without time zone", "timestamp(0) without time zone"), ("time without time zone", "interval"),
    ("timestamp with time zone", "timestamp(5) with time zone"), ("time with time zone", "time without time zone"),
    ("time without time zone", "time(2) without time zone"), ("time without time zone", "time(2) with time zone"),
    ("interval", "interval(3)"), ("interval", "interval day"), ("interval minute", "interval day to hour"),
    ("interval", "interval year"), ("interval", "time without time zone"), ("date", "character varying(9)"),
    ("bit varying(5)", "bit(3)"), ("bit varying(5)", "bit varying(3)"), ("bit varying", "bit varying(5)"),
    ("json", "jsonb"), ("jsonb", "integer"), ("jsonb", "boolean"), ("inet", "cidr"), ("macaddr8", "macaddr"),
    ("uuid", "character varying(35)"), ("box", "point"), ("box", "circle"), ("polygon", "box"), ("xid8", "xid"),
    ("integer[]", "smallint[]"), ("numeric[]", "integer[]"), ("text[]", "integer[]"),
    ("text[]", "character varying(5)[]"), ("int8range", "int4range"), ("numrange", "int4range"),
    ("s.ints", "int8range"),
    ("s.mood", "s.fewer"), ("s.more", "s.mood"), ("s.mood", "character varying(11)"), ("s.mood[]", "s.fewer[]"),
    ("integer", "s.positive"), ("integer", "s.present"), ("s.positive", "s.small"), ("bigint", "s.plain"),
    ("s.wide", "integer"), ("numeric(10,2)", "s.plain"), ("character varying(10)", "s.code"),
    ("s.pair", "s.swapped"),
]  # fmt: skip

IMPOSSIBLE = [
    ("uuid", "integer"), ("integer", "uuid"), ("boolean", "bigint"), ("date", "integer"), ("integer", "date"),
    ("timestamp with time zone", "bigint"), ("numeric", "boolean"), ("bytea", "uuid"), ("jsonb", "date"),
    ("json", "integer"), ("uuid[]", "integer[]"), ("uuid", "uuid[]"), ("s.mood", "integer"), ("integer", "s.mood"),
    ("s.pair", "s.triple"), ("inet", "macaddr"), ("xid", "xid8"), ("int4range", "integer"), ("s.pair", "integer"),
    ("date", "date[]"), ("daterange", "int4range"), ("oid", "numeric"),
]  # fmt: skip

# Lossy although every value comes back: what they mean is not what Postgres would ever cast without being asked, or it
# holds on some servers only.
STRICT = {
    ("boolean", "integer"): "1 and 0 are no truth values, and Postgres casts only when told to",
    ("numeric(10,2)", "double precision"): "sums over binary fractions differ from sums over decimal ones",
    (
        "timestamp with time zone",
        "timestamp without time zone",
    ): "equal in UTC only: other sessions read another moment",
    ("oid", "integer"): "values from 2147483648 on become negative, and back again",
    ("integer", "oid"): "negative values become positive, and back again",
    ("integer", "money"): "what a number is in money depends on lc_monetary",
    ('"char"', "text"): "a server before 16 prints half of the values as bytes of no encoding",
    ("bit(3)", "bit(5)"): "zeros are added behind, and taken away by the cast back",
    ("int4range", "int4multirange"): "Postgres has no cast back",
    ("uuid", "character(36)"): "blanks at the end mean nothing in a char",
    ("s.pair", "text"): "what the attributes' types print is not looked at",
    ("regclass", "text"): "a name does not follow the table that it names",
    ("regclass", "oid"): "an oid means another table on another server",
    ("s.ints", "s.longs"): "a range type can have a canonical form, which a type's model does not show",
    ("point", "box"): "Postgres has a cast back, to the centre, which is not asked for here",
}

_PAIRS = [
    *((pair, "safe") for pair in [*SAFE, *SAFE_BUT_FOR]),
    *((pair, "lossy") for pair in [*LOSSY, *STRICT]),
    *((pair, "impossible") for pair in IMPOSSIBLE),
]


@dataclass(frozen=True)
class Pair:
    number: int
    names: tuple[str, str]
    expected: str
    source: TypeModel
    target: TypeModel
    cast: Cast

    @property
    def table(self) -> sql.Identifier:
        return sql.Identifier("s", f"m{self.number}")

    @property
    def was(self) -> sql.Identifier:
        """On the target: the source's own values, in its own type."""
        return sql.Identifier("s", f"was{self.number}")

    @property
    def expression(self) -> str:
        return cast_sql("V a", self.cast, self.target)

    def __str__(self) -> str:
        return f"{self.names[0]} → {self.names[1]}"


class Matrix:
    """The pairs on two servers: a table each, on the source with the values at the edges of its type."""

    def __init__(self, source: Session, target: Session) -> None:
        self.source, self.target = source, target
        self.pairs = []
        for conn in (source, target):
            run(conn, TYPES)
        pairs = [pair for pair, _ in _PAIRS]
        create = 'CREATE TABLE s.{}{} (id integer PRIMARY KEY, "V a" {});'
        run(source, "".join(create.format("m", n, was) for n, (was, _) in enumerate(pairs)))
        run(target, "".join(create.format("m", n, now) for n, (_, now) in enumerate(pairs)))
        run(target, "".join(create.format("was", n, was) for n, (was, _) in enumerate(pairs)))
        names = [("s", f"m{n}") for n in range(len(_PAIRS))]
        sides = [read(conn, names).tables for conn in (source, target)]
        for n, ((pair, expected), name) in enumerate(zip(_PAIRS, names, strict=True)):
            columns = [side[name].column("V a") for side in sides]
            assert columns[0] and columns[1]
            a, b = columns[0].type, columns[1].type
            self.pairs.append(Pair(n, pair, expected, a, b, judge_cast(a, b)))

    def fill(self, pair: Pair) -> list[int]:
        """Ids of the rows; the values arrive on the target as they were, too."""
        numbers, insert = count(), sql.SQL("INSERT INTO {} VALUES (%s, %s)").format(pair.table)
        read_back = f'SELECT ("V a"::text::{pair.names[0]})::text FROM s.m{pair.number} WHERE id = %s'
        for value in (*values_of(pair.source), None):
            try:
                with self.source.transaction():
                    self.source.execute(insert, [n := next(numbers), value])
                    # timestamp(3) rounds the last microsecond of 294276 to what no server reads, nor restores
                    run(self.source, read_back, [n])
            except psycopg.Error:
                continue
        with self.source.transaction(), self.target.transaction():
            copy_between(
                self.source,
                self.target,
                read_statement(sql.SQL("TABLE {}").format(pair.table), False),
                write_statement(pair.was, sql.SQL('id, "V a"'), False),
            )
        return [n for (n,) in self.source.execute(sql.SQL("SELECT id FROM {} ORDER BY id").format(pair.table))]

    def send(self, pair: Pair, number: int) -> str | None:
        """Why the row was refused; None where it arrived. As chunks and windows send rows."""
        select = sql.SQL("SELECT id, {} FROM {} WHERE id = {}").format(
            sql.SQL(cast(LiteralString, pair.expression)), pair.table, number
        )
        try:
            with self.source.transaction(), self.target.transaction():
                write = write_statement(pair.table, sql.SQL('id, "V a"'), False)
                copy_between(self.source, self.target, read_statement(select, False), write)
        except REFUSED as error:
            return str(error.diag.message_primary)
        return None

    def changed(self, pair: Pair, number: int) -> str | None:
        """The value that came back as another one."""
        for through in ("", "::text"):
            back = f't."V a"{through}::{pair.names[0]}'
            for same in (f'{back} IS NOT DISTINCT FROM w."V a"', f'{back}::text IS NOT DISTINCT FROM w."V a"::text'):
                if pair.names[0] in GEOMETRIC and "::text IS" not in same:
                    continue  # their equality is of areas and lengths, and fuzzy
                query = (
                    f'SELECT {same}, w."V a"::text, t."V a"::text FROM {{}} t JOIN {{}} w USING (id) WHERE id = {{}}'
                )
                try:
                    row = self.target.execute(
                        sql.SQL(cast(LiteralString, query)).format(pair.table, pair.was, number)
                    ).fetchone()
                except (psycopg.errors.CannotCoerce, psycopg.errors.UndefinedFunction):
                    continue
                except psycopg.DataError as error:
                    return str(error.diag.message_primary)
                assert row
                return None if row[0] else f"{row[1]} → {row[2]}"
        raise AssertionError(f"{pair}: nothing to compare by")


# NaN is a feature that integers do not support, says the server, and "-0." a name in a schema that is not there.
REFUSED = (*REFUSALS, psycopg.NotSupportedError, psycopg.errors.InvalidName, psycopg.errors.InvalidSchemaName)

GEOMETRIC = {"point", "line", "lseg", "box", "path", "polygon", "circle"}


def run(conn: Session, statements: str, args: Any = None) -> list[tuple[Any, ...]]:
    cursor = conn.execute(statements.encode(), args)
    return cursor.fetchall() if cursor.description else []


def values_of(type_: TypeModel) -> Iterator[str]:
    yield from VALUES[type_.name]
    inside = type_.text.partition("(")[2].partition(")")[0]
    if type_.name == "numeric" and "," in inside:
        precision, scale = map(int, inside.split(","))
        yield from (f"{sign}{'9' * precision}e{-scale}" for sign in "+-")
    if type_.name in ("character varying", "character") and inside:
        yield from (letter * int(inside) for letter in "x\U0001f600")


@pytest.fixture(params=["16 to 18", "18 to 16"])
def matrix(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster, database: Database) -> Iterator[Matrix]:
    dsns = [database(pg16), database(pg18)]
    if request.param == "18 to 16":
        dsns.reverse()
    with connect(dsns[0], purpose="test") as source, connect(dsns[1], purpose="test") as target:
        yield Matrix(source, target)


def test_every_verdict_is_what_postgres_does(matrix: Matrix) -> None:
    assert len(matrix.pairs) > 200
    wrong = []
    for pair in matrix.pairs:
        found = _look(matrix, pair)
        if found:
            wrong.append(f"{pair} is {pair.cast.kind} ({pair.cast.why}): {found}")
    assert not wrong, "\n".join(wrong)


def _look(matrix: Matrix, pair: Pair) -> str | None:
    """What is wrong with the verdict."""
    if pair.cast.kind != pair.expected:
        return f"expected {pair.expected}"
    if pair.cast.kind == "impossible":
        return _possible(matrix, pair)
    numbers = matrix.fill(pair)
    assert len(numbers) > 1, f"{pair}: no value was taken by the source"
    refused = {n: why for n in numbers if (why := matrix.send(pair, n))}
    changed = [what for n in numbers if n not in refused and (what := matrix.changed(pair, n))]
    if pair.cast.kind == "lossy":
        return "no value was lost" if not refused and not changed and pair.names not in STRICT else None
    if pair.names in SAFE_BUT_FOR:
        values = {v for n, v in run(matrix.source, f'SELECT id, "V a"::text FROM s.m{pair.number}') if n in refused}
        return None if values == {SAFE_BUT_FOR[pair.names]} and not changed else f"refused {values}, changed {changed}"
    return f"refused {refused}, changed {changed}" if refused or changed else None


def _possible(matrix: Matrix, pair: Pair) -> str | None:
    try:
        run(matrix.target, f"SELECT CAST(NULL::{pair.names[0]} AS {pair.names[1]})")
    except psycopg.errors.CannotCoerce:
        return None
    return "Postgres casts it"


def test_examples_are_what_postgres_does(matrix: Matrix) -> None:
    shown = 0
    for pair in matrix.pairs:
        if not pair.cast.example:
            continue
        before, _, after = pair.cast.example.partition(" → ")
        # as the source's expression and the target's input would have it
        through = "::text" if pair.cast.expression == "column" else ""
        query = f"SELECT CAST(CAST(%s AS {pair.names[0]}){through} AS {pair.names[1]})::text"
        try:
            [(value,)] = run(matrix.target, query, [before])
        except REFUSED:
            value = "refused"
        assert value == after, f"{pair}: {pair.cast.example}, but {value}"
        shown += 1
    assert shown > 40


def test_what_the_source_prints_is_what_the_target_has(matrix: Matrix) -> None:
    """As verify compares: by the text of the expression, and of what was stored."""
    for pair in matrix.pairs:
        if pair.cast.kind != "safe" or pair.cast.expression == "column":
            continue
        for n in matrix.fill(pair):
            if matrix.send(pair, n) is None:
                [(sent,)] = run(matrix.source, f"SELECT ({pair.expression})::text FROM s.m{pair.number} WHERE id = {n}")
                [(stored,)] = run(matrix.target, f'SELECT "V a"::text FROM s.m{pair.number} WHERE id = {n}')
                assert sent == stored, str(pair)


def test_keys_are_found_again_by_the_sources_equality(matrix: Matrix) -> None:
    """Changed keys wait in a table of the source's type, and are joined with the copy by the source's operator."""
    tried = 0
    for pair in matrix.pairs:
        if judge_cast(pair.source, pair.target, key=True).kind not in ("same", "safe"):
            continue
        for n in matrix.fill(pair):
            matrix.send(pair, n)
        # the type of a plan's key_types, which has no modifier; a domain is compared as what it is stored as
        [(key,)] = run(matrix.target, "SELECT format_type(%s::regtype, -1)", [pair.source.stored.name])
        stored = f"::{key}" if pair.source.kind == "domain" else ""
        pending = f'SELECT "V a"::{key} AS k1 FROM s.was{pair.number}'
        query = f"""SELECT (SELECT count(*) FROM s.m{pair.number} t JOIN ({pending}) k
                            ON t."V a"{stored} OPERATOR(pg_catalog.=) k.k1),
                           (SELECT count(*) FROM s.was{pair.number} a JOIN s.was{pair.number} b
                            ON a."V a"{stored} OPERATOR(pg_catalog.=) b."V a"{stored})"""
        [(found, there)] = run(matrix.target, query)
        assert found == there > 0, str(pair)
        tried += 1
    assert tried > 30


def test_what_postgres_casts_is_not_called_impossible(pg16: Cluster, pg18: Cluster) -> None:
    plain = sorted({name for pair in (*SAFE, *LOSSY, *IMPOSSIBLE) for name in pair if "." not in name})
    for cluster in (pg16, pg18):
        with connect(cluster.conninfo(), purpose="test") as conn:
            casts = run(
                conn,
                "SELECT format_type(castsource, NULL), format_type(casttarget, NULL) FROM pg_cast"
                " WHERE castsource <> casttarget AND greatest(castsource, casttarget) < 16384"
                " AND NOT format_type(castsource, NULL) ~ '^pg_|multirange'",
            )
        found = {pair for pair in casts if judge_cast(base(pair[0]), base(pair[1])).kind == "impossible"}
        # Bytes of integers are cast since 18 only; a range to its multirange is judged by what both are of.
        integers = {"smallint", "integer", "bigint"}
        assert {
            (a, b) for a, b in found if not a.endswith("range") and not ("bytea" in (a, b) and {a, b} & integers)
        } == set()
        names = [name for name in plain if "(" not in name and "range" not in name and not name.endswith("[]")]
        called = {(a, b) for a in names for b in names if judge_cast(base(a), base(b)).kind == "impossible"}
        assert called
        assert not called & set(casts) - found


def base(name: str) -> TypeModel:
    return TypeModel(name, name, "base")


def test_types_of_extensions(pg15: Cluster, database: Database) -> None:
    with connect(database(pg15), purpose="test") as conn:
        run(conn, "CREATE SCHEMA x; CREATE EXTENSION citext SCHEMA x; CREATE EXTENSION hstore SCHEMA x")
        run(conn, "CREATE TABLE x.t (c x.citext, h x.hstore, t text, v varchar(5), i integer, j jsonb)")
        [table] = read(conn, [("x", "t")]).tables.values()
        types = {c.name: c.type for c in table.columns}
        verdicts = {
            a + b: judge_cast(types[a], types[b])
            for a, b in ("tc", "vc", "ct", "cv", "ht", "th", "ci", "hi", "ic", "hc")
        }
        assert {pair: c.kind for pair, c in verdicts.items()} == {
            "tc": "safe",
            "vc": "safe",
            "ct": "safe",
            "cv": "lossy",
            "ht": "safe",
            "th": "lossy",
            "ci": "lossy",
            "hi": "impossible",
            "ic": "safe",
            "hc": "safe",
        }
        assert cast_sql("t", verdicts["tc"], types["c"]) == '"t"'
        assert cast_sql("c", verdicts["ct"], types["t"]) == 'CAST("c" AS text)'
        assert judge_cast(types["t"], types["c"], key=True).kind == "lossy"  # 'a' and 'A' would be one key
        row = ['"a"=>"1", "b"=>NULL', "Ab "]
        [(same,)] = run(
            conn,
            "SELECT CAST(%s::x.hstore AS text)::x.hstore OPERATOR(x.=) %s::x.hstore AND %s::x.citext::text = %s",
            [row[0], row[0], row[1], row[1]],
        )
        assert same
