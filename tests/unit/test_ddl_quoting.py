"""Quotes around names: where the grammar asks for them, where the printer leaves them out, what other servers print."""

from __future__ import annotations

import postgast
import pytest
from postgast import pg_query_pb2

from airflow_provider_pgddl.engine.ddl.parse import deparse, parse, without_locations
from airflow_provider_pgddl.engine.ddl.quoting import bare, for_parser, identifier, unquoted

PRINTED = {  # under quote_all_identifiers, and without
    'CREATE TABLE "public"."t" ("id" integer DEFAULT "nextval"(\'"public"."t_id_seq"\'::"regclass"), "User" "text")': (
        "CREATE TABLE public.t (id integer DEFAULT nextval('public.t_id_seq'::regclass), \"User\" text)"
    ),
    'CREATE TABLE "s"."t" ("user" "char", "json" "json", "kö" "text" DEFAULT \'"x"\'::"text", "a""b" "s"."json")': (
        'CREATE TABLE s.t ("user" "char", "json" json, "kö" text DEFAULT \'"x"\'::text, "a""b" s."json")'
    ),
    'CREATE FUNCTION "s"."f"("json" "json") RETURNS "json" LANGUAGE "sql" AS $$select "x"$$': (
        'CREATE FUNCTION s.f("json" json) RETURNS json LANGUAGE sql AS $$select "x"$$'
    ),
    'ALTER TABLE "t" ADD CONSTRAINT "c" CHECK (("system_user" <> SYSTEM_USER))': (
        'ALTER TABLE t ADD CONSTRAINT c CHECK (("system_user" <> SYSTEM_USER))'
    ),
}


@pytest.mark.parametrize(("quoted", "plain"), PRINTED.items())
def test_what_needs_no_quotes_loses_them_and_means_the_same(quoted: str, plain: str) -> None:
    assert unquoted(quoted) == plain
    if "regclass" not in plain and "json" not in plain:  # a name in a string is another string, json is a type's word
        assert without_locations(parse(plain)) == without_locations(parse(quoted))


def test_what_was_recorded_before_is_comparable() -> None:
    assert bare("CREATE TABLE s.t (json json)") == bare(unquoted('CREATE TABLE "s"."t" ("json" "json")'))


def test_words_that_an_older_server_takes_for_names() -> None:
    text = 'create function s.F(JSON json, system_user text, "JSON" int) as $$ select json $$ -- json_value'
    on_16 = for_parser(text, 16)
    assert on_16 == text.replace("JSON json", '"json" json', 1)
    assert for_parser(text, 15) == on_16.replace("system_user", '"system_user"')
    assert for_parser(text, 18) == text
    assert for_parser("it's json", 16) == "it's json"  # no SQL


# Where the library leaves the quotes of a name out.
NAMES = (
    "CREATE FUNCTION f({0} int, OUT x int) LANGUAGE sql AS $$x$$",
    "CREATE FUNCTION f() RETURNS TABLE ({0} int) LANGUAGE sql AS $$x$$",
    "CREATE PROCEDURE f(INOUT {0} int) LANGUAGE sql AS $$x$$",
    "CREATE AGGREGATE a({0} int) (sfunc = f, stype = int)",
    "ALTER FUNCTION f({0} int) DEPENDS ON EXTENSION {0}",
    "DROP FUNCTION f({0} int)",
    "CREATE VIEW v AS SELECT f({0} => 1), sum({0}) OVER {0} FROM t WINDOW {0} AS (PARTITION BY {0})",
    "CREATE VIEW v AS SELECT sum(a) OVER ({0} ORDER BY a) FROM t WINDOW {0} AS (PARTITION BY {0})",
    "ALTER TABLE t ADD FOREIGN KEY ({0}) REFERENCES u ON DELETE SET NULL ({0}) DEFERRABLE",
    "ALTER TABLE t ADD FOREIGN KEY ({0}) REFERENCES u ON DELETE SET DEFAULT ({0})",
    "CREATE STATISTICS s ON {0}, a FROM t",
)


@pytest.mark.parametrize("template", NAMES)
def test_the_printer_keeps_the_quotes_of_names(template: str) -> None:
    for name in ("json_value", "system_user", "all", "left", "Name", 'a"b c', "plain"):
        quoted = '"' + name.replace('"', '""') + '"'
        text = deparse(parse(template.format(quoted)))
        assert identifier(name) in text
        if name == "plain":
            assert '"plain"' not in text


def test_every_keyword_is_quoted_as_the_parser_knows_it() -> None:
    for word, quoted in {"select": True, "json_value": True, "left": True, "name": False, "x": False}.items():
        assert (identifier(word) != word) is quoted
    assert postgast.scan("merge_action").tokens[0].keyword_kind == pg_query_pb2.COL_NAME_KEYWORD
