"""Scripts as psql reads them: statements apart, its own lines and COPY's rows out."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.ddl.parse import (
    deparse,
    dotted_names,
    parse,
    post_data_begins,
    read,
    split,
    start_of,
)
from airflow_provider_pgddl.engine.errors import StageFailed

SCRIPTS = {
    "two statements": ("select 1; select 2;", ["select 1", "select 2"]),
    "nothing": (" ;; -- nothing\n /* at /* all */ ; */ ;", []),
    "comments in front go": ("-- Name: x; Type: TABLE\n\n/* y; */ create table x ();", ["create table x ()"]),
    "comments inside stay": ("select 1 -- one; two\n;", ["select 1 -- one; two"]),
    "strings": ("select 'a;b', 'it''s', E'\\';' ; select \"a;b\"", ["select 'a;b', 'it''s', E'\\';'", 'select "a;b"']),
    "dollar quotes": (
        "select $$;$$, $a$ $b$;$b$ $$ $a$; select a$b$c",
        ["select $$;$$, $a$ $b$;$b$ $$ $a$", "select a$b$c"],
    ),
    "an identifier with dollars opens no quote": ("select x$y$ ; select 1", ["select x$y$", "select 1"]),
    "no end needed": ("select 1", ["select 1"]),
    "BEGIN ATOMIC": (
        "create function f() returns int begin atomic select 1; select 2; end; select 3",
        ["create function f() returns int begin atomic select 1; select 2; end", "select 3"],
    ),
    "rules of many commands": (
        "create rule r as on insert to t do also (notify a; delete from b;); select 1",
        ["create rule r as on insert to t do also (notify a; delete from b;)", "select 1"],
    ),
    "Windows line ends": ("select 1;\r\n\\restrict x\r\nselect 2;\r\n", ["select 1", "select 2"]),
    "line ends of any kind inside stay": (
        "select 'a\r\nb', E'\r\n';\r\n\\restrict x\r\nselect $$\r\n;\r$$, \"c\r\nd\" -- e;\r\n, f;\r\n",
        ["select 'a\r\nb', E'\r\n'", 'select $$\r\n;\r$$, "c\r\nd" -- e;\r\n, f'],
    ),
    "CR alone ends a comment": ("-- it's;\rselect 1; -- x'\rselect 2", ["select 1", "select 2"]),
    "letters of many bytes": ("select 'ě;š'; create table \"größe;\" ()", ["select 'ě;š'", 'create table "größe;" ()']),
    "half a comment in a string": (
        "select '/*'; select '*/', '--'; select 1",
        ["select '/*'", "select '*/', '--'", "select 1"],
    ),
}


@pytest.mark.parametrize(("script", "statements"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_script_is_split(script: str, statements: list[str]) -> None:
    assert split(script) == statements


def test_psqls_own_lines_and_rows_are_left_out_and_told() -> None:
    script = read(
        "\\restrict abc'\nselect 1;\nCOPY shop.orders (id, note) FROM stdin;\n1\tit's; $a$ \"\n2\t\\N\n\\.\n\n"
        "select 2;\n\\connect other\n copy empty from stdin with (format csv);\n\\.\n"
        "copy a to stdout; copy b from '/file'; select 'a\n\\unrestrict b';\n\\unrestrict abc'\n"
    )
    assert script.statements == [
        "select 1",
        "select 2",
        "copy a to stdout",
        "copy b from '/file'",
        "select 'a\n\\unrestrict b'",
    ]
    assert script.left_out == [
        "\\restrict abc'",
        "COPY shop.orders (id, note) FROM stdin (2 rows)",
        "\\connect other",
        "copy empty from stdin with (format csv) (0 rows)",
        "\\unrestrict abc'",
    ]


def test_rows_end_at_a_windows_line() -> None:
    script = read("copy t from stdin;\r\n1\t';\r\n\\.\r\nselect E'\r\n';\r\n\\unrestrict x\r\n")
    assert script.statements == ["select E'\r\n'"]
    assert script.left_out == ["copy t from stdin (1 rows)", "\\unrestrict x"]


def test_a_line_of_a_megabyte_is_a_line() -> None:
    body = "x; -- " * 200_000
    statement = f"create function f() returns text language sql as $f$select '{body}'$f$"
    assert split(f"{statement};\nselect '{body}';") == [statement, f"select '{body}'"]


def test_half_a_million_rows_are_passed_over() -> None:
    assert split("copy t from stdin;\n" + "1\t';$$\"\n" * 500_000 + "\\.\nselect 1;") == ["select 1"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("select 1; create foo bar; select 2", "begins create foo bar; select 2: syntax error at or near"),
        ("select 1;\nselect 'it;\n", "unterminated quote in the statement that begins select 'it;"),
        ("do $x$ begin", r"unterminated dollar quote in the statement that begins do \$x\$ begin"),
        ("select 1 /* a /* b */", "unterminated comment that begins /\\* a"),
        ("copy t from stdin;\n1\n2\n", "rows behind a COPY … FROM stdin do not end"),
        ("-- ě\nselect 'ě'; selekt 1", "begins selekt 1: syntax error"),
    ],
)
def test_what_cannot_be_read_is_named(script: str, words: str) -> None:
    with pytest.raises(StageFailed, match=words):
        split(script)


def test_a_tree_is_of_one_statement() -> None:
    with pytest.raises(StageFailed, match="one statement was expected, not 2: select 1; drop table x"):
        parse("select 1; drop table x")


@pytest.mark.parametrize("terms", [60, 1_000])
def test_an_expression_may_be_nested_deeply(terms: int) -> None:
    statement = "CREATE VIEW v AS SELECT " + " || ".join(["a"] * terms)
    assert deparse(parse(statement)).count("||") == terms - 1


def test_too_deep_to_be_printed_is_refused_before_it_crashes() -> None:
    tree = parse("SELECT " + " || ".join(["a"] * 4_000))
    with pytest.raises(StageFailed, match="nested too deeply"):
        deparse(tree)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("shop.orders", ["shop", "orders"]),
        ('shop."orders"', ["shop", "orders"]),
        ('"shop" . orders', ["shop", "orders"]),
        ("SHOP.Orders", ["shop", "orders"]),
        ('"Shop"."a "" b.c".d', ["Shop", 'a " b.c', "d"]),
        ("select * from shop.orders where", ["shop", "orders"]),
        ('a 1" pipe in shop.orders of 2"', ["shop", "orders"]),
        (f"shop.{'x' * 70}", ["shop", "x" * 63]),
        ("größe.ñandú", ["größe", "ñandú"]),
    ],
)
def test_dotted_names_are_found_in_free_text(text: str, found: list[str]) -> None:
    assert found in list(dotted_names(text))


def test_a_statements_start_is_one_short_line() -> None:
    assert start_of("-- c\n create   table\n x ()") == "create table x ()"
    assert len(start_of("select " + "x" * 500)) == 80


def test_columns_of_statistics_keep_their_quotes() -> None:
    statement = 'CREATE STATISTICS shop.s (mcv) ON "Id", "a.b", "order", "q""q", plain, ("order" + 1) FROM shop."T"'
    assert parse(deparse(parse(statement))).stmts[0].stmt.create_stats_stmt.exprs[3].stats_elem.name == 'q"q'


ENTRY = "--\n-- Name: {}; Type: {}; Schema: s; Owner: o\n--\n\n"
TABLE = ENTRY.format("t", "TABLE") + 'CREATE TABLE "s"."t" ("id" int);\n\n'
INDEX = ENTRY.format("i", "INDEX")


@pytest.mark.parametrize(
    "pre",
    [
        TABLE,
        f"\\restrict abc\n\n{TABLE}",
        f"""{TABLE}{ENTRY.format("TABLE t", "COMMENT")}COMMENT ON TABLE "s"."t" IS 'it''s\n{INDEX}';\n\n""",
        f"""{TABLE}{ENTRY.format("f()", "FUNCTION")}CREATE FUNCTION f() RETURNS int AS $_$\n{INDEX}$_$;\n\n""",
        f"""{TABLE}{ENTRY.format("INDEX", "TABLE")}CREATE TABLE "\n{INDEX}" ();\n\n""",
    ],
)
def test_a_dumps_second_section_begins_in_front_of_its_first_index_and_in_no_quotes(pre: str) -> None:
    dump = f"{pre}{INDEX}CREATE INDEX i ON t (id);\n\n{TABLE}"
    begins = post_data_begins(dump)
    assert begins is not None
    assert f"--\n{dump[begins:]}" == dump[len(pre) :]
    assert post_data_begins(pre) == len(pre)


def test_a_name_that_reads_like_what_pg_dump_says_is_not_believed() -> None:
    assert post_data_begins(ENTRY.format("x; Type: INDEX; Schema: s", "TABLE") + INDEX) is None
