"""Verdicts on casts, and what is read for them; tests/integration/test_cast_matrix.py holds them to Postgres."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.schema.casts import cast_sql, judge_cast
from airflow_provider_pgddl.engine.schema.table_model import TypeModel


def base(text: str) -> TypeModel:
    """``numeric(10,2)``, ``timestamp(3) without time zone``."""
    name, _, rest = text.partition("(")
    return TypeModel(name + rest.partition(")")[2], text, "base")


def enum(name: str, *labels: str) -> TypeModel:
    return TypeModel(name, name, "enum", builtin=False, labels=labels)


def domain(name: str, over: TypeModel, *checks: str, not_null: bool = False) -> TypeModel:
    return TypeModel(name, name, "domain", builtin=False, base=over, checks=checks, not_null=not_null)


def array(of: TypeModel) -> TypeModel:
    return TypeModel(f"{of.name}[]", f"{of.text}[]", "array", builtin=of.builtin, element=of)


INTEGER, BIGINT, TEXT = base("integer"), base("bigint"), base("text")


# Casts that lose nothing.
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("smallint", "integer"), ("integer", "bigint"), ("integer", "numeric"),
        ("character varying(10)", "character varying(20)"), ("character varying(10)", "text"),
        ("date", "timestamp without time zone"), ("timestamp without time zone", "timestamp with time zone"),
    ],
)  # fmt: skip
def test_widening_is_safe_and_narrowing_is_not(source: str, target: str) -> None:
    assert judge_cast(base(source), base(target)).kind == "safe"
    assert judge_cast(base(target), base(source)).kind == "lossy"


def test_utc_is_said_where_a_time_gets_its_zone() -> None:
    assert "UTC" in judge_cast(base("timestamp without time zone"), base("timestamp with time zone")).why


def test_a_lost_cent_is_shown() -> None:
    cast = judge_cast(base("numeric(10,2)"), INTEGER)
    assert (cast.kind, cast.why, cast.example) == ("lossy", "Casting would lose precision", "19.99 → 20")
    assert cast_sql("price", cast, INTEGER) == 'CAST("price" AS integer)'


def test_the_column_itself_is_read_where_its_text_is_the_value() -> None:
    for source, target in [
        (base("numeric(10,2)"), base("numeric(12,2)")),
        (base("numeric(10,2)"), base("numeric")),
        (enum("public.mood", "ok"), enum("public.mood", "ok", "sad")),
        (TEXT, enum("public.mood", "ok")),
    ]:
        assert cast_sql('a "b"', judge_cast(source, target), target) == '"a ""b"""'


def test_it_is_cast_where_the_target_writes_the_same_value_otherwise() -> None:
    for source, target in [("numeric(8,2)", "numeric(12,4)"), ("character(5)", "character(10)")]:
        assert cast_sql("a", judge_cast(base(source), base(target)), base(target)) == f'CAST("a" AS {target})'


def test_a_domain_of_the_target_is_cast_to_what_it_is_over() -> None:
    price = domain("public.price", BIGINT)
    assert cast_sql("x", judge_cast(base("numeric(10,2)"), price), price) == 'CAST("x" AS bigint)'
    prices = array(price)
    assert cast_sql("x", judge_cast(array(INTEGER), prices), prices) == 'CAST("x" AS bigint[])'


def test_ranges_go_through_their_text() -> None:
    was = TypeModel("int4range", "int4range", "range", element=INTEGER)
    now = TypeModel("int8range", "int8range", "range", element=BIGINT)
    assert cast_sql("x", judge_cast(was, now), now) == 'CAST(CAST("x" AS text) AS int8range)'


def test_a_domains_conditions_are_compared_as_they_are_meant() -> None:
    positive = domain("public.positive", INTEGER, "(VALUE > 0)")
    assert judge_cast(positive, domain("public.above", INTEGER, "VALUE > 0")).kind == "safe"
    assert judge_cast(positive, INTEGER).kind == judge_cast(positive, BIGINT).kind == "safe"
    below = judge_cast(positive, domain("public.small", positive, "(VALUE < 100)"))
    assert (below.kind, below.why) == ("lossy", "public.small refuses values that do not meet (VALUE < 100)")
    assert judge_cast(INTEGER, domain("public.present", INTEGER, not_null=True)).kind == "lossy"


def test_the_same_type_is_the_same() -> None:
    mood = enum("public.mood", "a", "b")
    positive = domain("public.positive", INTEGER, "(VALUE > 0)")
    for one in (INTEGER, base("numeric(10,2)"), mood, positive, array(mood), array(base("character varying(5)"))):
        assert judge_cast(one, one).kind == "same"
    assert judge_cast(mood, enum("public.mood", "b", "a")).kind == "same"


def test_missing_labels_are_named() -> None:
    cast = judge_cast(enum("public.mood", "ok", "sad"), enum("public.mood", "ok"))
    assert (cast.kind, cast.why) == ("lossy", "public.mood on the target lacks 'sad'")
    assert cast.example == "sad → refused"


def test_a_composite_is_written_by_position() -> None:
    def pair(name: str, *attributes: tuple[str, str]) -> TypeModel:
        return TypeModel(name, name, "composite", builtin=False, attributes=attributes)

    x, y = ("x", "integer"), ("y", "text")
    assert judge_cast(pair("public.p", x, y), pair("public.p", x, y)).kind == "same"
    assert judge_cast(pair("public.p", x, y), pair("public.p", y, x)).kind == "lossy"
    assert judge_cast(pair("public.p", x, y), pair("public.p", x)).kind == "impossible"


@pytest.mark.parametrize(
    ("source", "target", "kind"),
    [
        ("integer", "bigint", "safe"), ("bigint", "numeric", "safe"), ("real", "double precision", "safe"),
        ("character varying(5)", "text", "safe"), ("numeric(10,2)", "numeric(12,2)", "safe"),
        ("integer", "text", "lossy"), ("date", "timestamp without time zone", "lossy"),
        ("character(5)", "text", "lossy"), ("integer", "double precision", "lossy"), ("bigint", "integer", "lossy"),
    ],
)  # fmt: skip
def test_in_a_key_changed_rows_have_to_be_found_again(source: str, target: str, kind: str) -> None:
    assert judge_cast(base(source), base(target), key=True).kind == kind


def test_a_type_of_an_extension_loses_its_modifier_safely() -> None:
    def geometry(text: str) -> TypeModel:
        return TypeModel("public.geometry", text, "base", builtin=False, extension="postgis")

    point, any_ = geometry("public.geometry(Point,4326)"), geometry("public.geometry")
    assert judge_cast(point, any_).kind == "safe"
    assert judge_cast(any_, point).kind == "lossy"
    assert judge_cast(any_, INTEGER).kind == "impossible"
