"""What differs between two columns of one name: their types, how they are generated, their collation and NOT NULL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_pgddl.engine.schema.table_model import TypeModel
from tests.unit.compared import MOOD, PRIMARY, array, column, differences, domain, enum, of, only, says, table, unique

# --- types ----------------------------------------------------------------------------------------------------------


def test_a_type_that_the_target_lacks_is_made_first() -> None:
    difference = only(table(column("moods", array(MOOD))), table())
    says(difference, "source_added_column", "mismatch", "nor does the target have type public.mood")
    assert difference.finding.fix == (
        "CREATE TYPE public.mood AS ENUM ('sad', 'it''s ok');",
        "ALTER TABLE public.users ADD COLUMN moods public.mood[];",
    )
    assert len(only(table(column("moods", array(MOOD))), table(), ["public.mood"]).finding.fix) == 1


@pytest.mark.parametrize(
    ("type_", "statements"),
    [
        (
            domain("app.positive", domain("app.money", of("numeric(10,2)")), checks=("(VALUE > 0)",), not_null=True),
            ("CREATE SCHEMA IF NOT EXISTS app;", "CREATE DOMAIN app.money AS numeric(10,2);",
             "CREATE DOMAIN app.positive AS app.money NOT NULL CHECK ((VALUE > 0));"),
        ),
        (
            TypeModel("public.citext", "public.citext", "base", builtin=False, extension="citext"),
            ("CREATE EXTENSION IF NOT EXISTS citext SCHEMA public;",),
        ),
        (
            TypeModel("public.pair", "public.pair", "composite", builtin=False,
                      attributes=(("a", "integer"), ("B", "text"))),
            ('CREATE TYPE public.pair AS (a integer, "B" text);',),
        ),
        (
            TypeModel("public.floats", "public.floats", "range", builtin=False, element=of("double precision")),
            ("CREATE TYPE public.floats AS RANGE (SUBTYPE = double precision);",),
        ),
    ],
)  # fmt: skip
def test_every_kind_of_type_has_its_statement(type_: TypeModel, statements: tuple[str, ...]) -> None:
    assert only(table(column("c", type_)), table()).finding.fix[:-1] == statements


def test_a_type_that_nothing_is_known_to_make_is_said() -> None:
    mine = TypeModel("public.own", "public.own", "base", builtin=False)
    difference = only(table(column("c", mine)), table())
    says(difference, "missing_type", "mismatch", "nor does the target have type public.own")
    assert difference.finding.fix == ()


@pytest.mark.parametrize(
    ("source", "target", "change"),
    [
        ("integer", "character varying(3)", "TYPE integer USING c::integer;"),
        ("uuid", "integer", "TYPE uuid USING c::text::uuid;"),
        ("boolean", "integer", "TYPE boolean USING c::boolean;"),
        ("text", "integer", "TYPE text;"),
        ("timestamp with time zone", "date", "TYPE timestamp with time zone;"),
        ("character varying(20)", "character varying(10)", "TYPE character varying(20);"),
    ],
)
def test_a_type_is_changed_with_using_where_postgres_wants_it(source: str, target: str, change: str) -> None:
    difference = only(table(column("c", source)), table(column("c", target)))
    says(difference, "type_mismatch", "mismatch")
    assert difference.finding.fix == (f"ALTER TABLE public.users ALTER COLUMN c {change}",)


def test_a_default_that_postgres_could_not_cast_makes_room() -> None:
    source = table(column("c", "integer", default="7"))
    target = table(column("c", "character varying(3)", default="'x'::character varying"))
    (fix,) = only(source, target).finding.fix
    assert fix == (
        "ALTER TABLE public.users ALTER COLUMN c DROP DEFAULT, ALTER COLUMN c TYPE integer USING c::integer, "
        "ALTER COLUMN c SET DEFAULT 7;"
    )


def test_labels_that_the_target_lacks_are_added_where_they_belong() -> None:
    difference = only(table(column("c", enum("public.m", "a", "b", "c"))), table(column("c", enum("public.m", "a"))))
    says(difference, "type_mismatch", "mismatch")
    assert difference.finding.fix == (
        "ALTER TYPE public.m ADD VALUE IF NOT EXISTS 'b' AFTER 'a';",
        "ALTER TYPE public.m ADD VALUE IF NOT EXISTS 'c' AFTER 'b';",
    )


def test_more_labels_on_the_target_are_no_difference() -> None:
    assert differences(table(column("c", enum("public.m", "a"))), table(column("c", enum("public.m", "b", "a")))) == []


def test_a_domain_of_the_same_name_is_looked_into() -> None:
    mine, wider = domain("public.d", of("integer")), domain("public.d", of("bigint"))
    says(only(table(column("c", mine)), table(column("c", wider))), "safe_cast", "info")
    strict = replace(mine, checks=("(VALUE > 0)",))
    difference = only(table(column("c", mine)), table(column("c", strict)))
    says(difference, "type_mismatch", "mismatch", "ALTER COLUMN c TYPE integer;")
    assert differences(table(column("c", strict)), table(column("c", mine))) == []


def test_in_a_key_a_cast_has_to_keep_rows_apart() -> None:
    source = table(column("at", "date", not_null=True), key=("id", "at"))
    target = table(column("at", "timestamp without time zone", not_null=True), key=("id", "at"))
    says(only(source, target), "type_mismatch", "mismatch", "could not be found again")


def test_altered_columns_are_what_somebody_wanted() -> None:
    source = table(column("n", "integer"), column("t", collation='pg_catalog."C"'))
    target = table(column("n", "date", not_null=True), column("t", generated="s", default="'x'"))
    assert differences(source, target, altered=["n", "t"]) == []


# --- generated, identity, collation, NOT NULL -----------------------------------------------------------------------


def test_generated_on_the_source_alone_is_copied() -> None:
    difference = only(table(column("g", generated="s", default="lower(name)")), table(column("g")))
    says(difference, "generated", "info", "Its values are copied")


@pytest.mark.parametrize(
    ("generated", "fix"),
    [
        ("s", "ALTER TABLE public.users ALTER COLUMN g DROP EXPRESSION;"),
        ("v", "ALTER TABLE public.users DROP COLUMN g, ADD COLUMN g text;"),
    ],
)
def test_generated_on_the_target_alone_stops(generated: str, fix: str) -> None:
    difference = only(table(column("g")), table(column("g", generated=generated, default="lower(name)")))
    says(difference, "generated", "mismatch", "g data will be LOST")
    assert difference.finding.fix == (fix,)


def test_generated_on_both_sides_has_to_be_alike() -> None:
    mine = table(column("n", "integer"), column("g", "integer", generated="s", default="(n + 1)"))
    differently = table(column("n", "integer"), column("g", "integer", generated="v", default="(n + 2)"))
    says(only(mine, differently), "generated", "mismatch", "not alike")
    printed = table(column("n", "integer"), column("g", "bigint", generated="v", default="((n) + 1)"))
    assert differences(mine, printed) == []


def test_an_expression_over_a_wider_column_is_printed_with_other_casts() -> None:
    mine = table(column("n", "character varying(9)"), column("g", generated="s", default="lower((n)::text)"))
    wider = table(column("n", "text"), column("g", generated="s", default="lower(n)"))
    says(only(mine, wider), "safe_cast", "info")


@pytest.mark.parametrize(
    ("mine", "its", "words"),
    [
        ("", "a", ["the cut-over sets its sequence only where both sides have the same", "DROP IDENTITY;"]),
        ("d", "", ["makes none for new rows", "ADD GENERATED BY DEFAULT AS IDENTITY;"]),
        ("a", "d", ["SET GENERATED ALWAYS;"]),
    ],
)
def test_identity_is_a_warning(mine: str, its: str, words: list[str]) -> None:
    source, target = (table(column("n", "integer", not_null=True, identity=i)) for i in (mine, its))
    says(only(source, target), "identity", "warning", *words)


def test_another_collation_is_a_warning() -> None:
    difference = only(table(column("t")), table(column("t", collation='pg_catalog."C"')))
    says(difference, "collation", "warning", 'COLLATE pg_catalog."default";', 'pg_catalog."C" on the target')


@pytest.mark.parametrize("side", ["key", "unique"])
def test_a_collation_that_takes_values_for_one_another_stops(side: str) -> None:
    key = ("id", "t") if side == "key" else ("id",)
    limits = [PRIMARY, unique("t")] if side == "unique" else [PRIMARY]
    source = table(column("t", not_null=True), key=key, constraints=limits)
    target = table(
        column("t", not_null=True, collation="public.nocase", deterministic=False), key=key, constraints=limits
    )
    says(only(source, target), "collation", "mismatch", "rows would be refused")
    says(only(target, source), "collation", "mismatch" if side == "key" else "warning")


def test_a_collation_goes_with_a_string() -> None:
    source = table(column("t", "character varying(9)", collation='pg_catalog."C"'))
    kinds = [d.finding.kind for d in differences(source, table(column("t", "integer")))]
    assert kinds == ["type_mismatch"]


def test_not_null_on_the_target_alone_stops() -> None:
    difference = only(table(column("t")), table(column("t", not_null=True)))
    says(difference, "not_null", "mismatch", "ALTER TABLE public.users ALTER COLUMN t DROP NOT NULL;")
    assert difference.finding.reason == "target_not_null"
    assert differences(table(column("t", not_null=True)), table(column("t"))) == []
    identity = differences(table(column("t")), table(column("t", not_null=True, identity="a")))
    assert "DROP IDENTITY, ALTER COLUMN t DROP NOT NULL;" in identity[0].finding.fix[0]
