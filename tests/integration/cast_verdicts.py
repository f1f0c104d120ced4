"""Types, the values at their edges, and the verdict on each cast between two of them."""

from __future__ import annotations

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
