"""What differs between two tables, how grave it is, and the SQL that ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_pgddl.engine.ddl.parse import split
from airflow_provider_pgddl.engine.schema.compatibility import compare_tables
from airflow_provider_pgddl.engine.schema.difference import Difference
from airflow_provider_pgddl.engine.schema.names import sql_name
from airflow_provider_pgddl.engine.schema.table_model import ColumnModel, ConstraintModel, TableModel, TypeModel
from airflow_provider_pgddl.engine.schema.verdict import OR

NAME = ("public", "users")
NAMES = (NAME, NAME)


def of(text: str, **more: Any) -> TypeModel:
    """A built-in type, named as Postgres prints it."""
    name = text.partition("(")[0] + text.partition(")")[2]
    return TypeModel(name, text, "base", 1 if "(" in text else -1, **more)


def enum(name: str, *labels: str) -> TypeModel:
    return TypeModel(name, name, "enum", builtin=False, labels=labels)


def domain(name: str, base: TypeModel, **more: Any) -> TypeModel:
    return TypeModel(name, name, "domain", builtin=False, base=base, **more)


def array(element: TypeModel) -> TypeModel:
    return TypeModel(f"{element.name}[]", f"{element.text}[]", "array", builtin=element.builtin, element=element)


def column(name: str, type_: TypeModel | str = "text", **more: Any) -> ColumnModel:
    plain = ColumnModel(1, name, of(type_) if isinstance(type_, str) else type_, False, None, "", "", None)
    return replace(plain, **more)


ID = column("id", "integer", not_null=True)
PRIMARY = ConstraintModel("users_pkey", "p", "PRIMARY KEY (id)", ("id",))


def table(*columns: ColumnModel, constraints: Sequence[ConstraintModel] = (PRIMARY,), **more: Any) -> TableModel:
    """A table with the key `id`."""
    whole = TableModel(1, *NAME, "r", (ID, *columns), ("id",), tuple(constraints))
    return replace(whole, **more)


def unique(*columns: str, kind: Any = "u", name: str = "users_key", definition: str | None = None) -> ConstraintModel:
    return ConstraintModel(name, kind, definition or f"UNIQUE ({', '.join(columns)})", columns)


def check(condition: str, *columns: str, suffix: str = "") -> ConstraintModel:
    return ConstraintModel("users_check", "c", f"CHECK (({condition})){suffix}", columns)


def differences(
    source: TableModel | None, target: TableModel | None, types: Sequence[str] = (), **more: Any
) -> list[Difference]:
    found = compare_tables(source, target, frozenset(types), **{"names": NAMES, **more})
    for difference in found:
        for statement in difference.finding.fix:
            assert len(split(statement)) <= 1, statement  # reads as SQL
    return found


def only(source: TableModel | None, target: TableModel | None, types: Sequence[str] = (), **more: Any) -> Difference:
    found = differences(source, target, types, **more)
    assert len(found) == 1, [d.finding.what for d in found]
    return found[0]


def says(difference: Difference, kind: str, severity: str, *words: str) -> None:
    finding = difference.finding
    assert (finding.kind, finding.severity) == (kind, severity)
    text = "\n".join([finding.what, finding.impact or "", *finding.fix])
    for word in words:
        assert word in text, text


# --- the six scenarios ----------------------------------------------------------------------------------------------


def test_a_column_that_the_source_has_added_stops() -> None:
    difference = only(table(column("phone_number", "character varying")), table())
    says(difference, "source_added_column", "mismatch", "Source has new column 'phone_number' not in target")
    finding = difference.finding
    assert finding.impact == "If sync continues, phone_number data will be LOST"
    assert finding.fix == ("ALTER TABLE public.users ADD COLUMN phone_number character varying;",)
    assert (finding.column, finding.source, finding.reason) == ("phone_number", "character varying", "data_loss_risk")
    assert difference.source is not None and difference.target is None


@pytest.mark.parametrize(
    ("more", "how"),
    [
        ({}, "nullable"),
        ({"not_null": True, "default": "'pgddl'::text"}, "DEFAULT 'pgddl'::text"),
        ({"not_null": True, "identity": "a"}, "identity"),
        ({"not_null": True, "generated": "s", "default": "'x'"}, "generated"),
    ],
)
def test_a_column_that_only_the_target_has_passes_where_it_fills_itself(more: dict[str, Any], how: str) -> None:
    difference = only(table(), table(column("created_by_system", **more)))
    says(difference, "target_added_column", "warning", f"Target has extra column 'created_by_system' ({how})")


def test_a_column_that_only_the_target_has_stops_where_it_wants_a_value() -> None:
    difference = only(table(), table(column("created_by_system", not_null=True)))
    says(difference, "target_added_column", "mismatch", "(NOT NULL, no DEFAULT)", "column requires a value")
    assert difference.finding.reason == "target_not_null"
    assert difference.finding.fix == (
        "ALTER TABLE public.users ALTER COLUMN created_by_system DROP NOT NULL;",
        OR,
        "ALTER TABLE public.users ALTER COLUMN created_by_system SET DEFAULT 'pgddl';",
    )


def test_a_domain_that_takes_no_null_wants_a_value_too() -> None:
    strict = domain("public.strict", domain("public.inner", of("integer"), not_null=True))
    difference = only(table(), table(column("n", strict)), ["public.strict"])
    says(difference, "target_added_column", "mismatch", "ALTER COLUMN n SET DEFAULT 0;")


def test_a_lossy_type_stops_with_an_example() -> None:
    source, target = table(column("price", "numeric(10,2)")), table(column("price", "integer"))
    difference = only(source, target)
    says(difference, "type_mismatch", "mismatch", "Type mismatch on public.users.price", "19.99 → 20")
    finding = difference.finding
    assert finding.fix == ("ALTER TABLE public.users ALTER COLUMN price TYPE numeric(10,2);",)
    assert (finding.source, finding.target) == ("numeric(10,2)", "integer")
    assert (finding.metric, finding.reason) == ("unsafe_cast", "type_mismatch")
    assert difference.cast is not None and difference.cast.kind == "lossy"


def test_a_safe_widening_goes_on() -> None:
    difference = only(table(column("n", "integer")), table(column("n", "bigint")))
    says(difference, "safe_cast", "info", "Type difference on public.users.n", "Safe widening cast - continuing")
    assert difference.cast is not None and difference.cast.kind == "safe"


@pytest.mark.parametrize("not_null", [False, True])
@pytest.mark.parametrize("known", [{"removed": ["legacy_id"]}, {"renamed": {"legacy_id": "other"}}])
def test_a_column_that_the_source_once_had_asks_for_a_decision(known: dict[str, Any], not_null: bool) -> None:
    difference = only(table(), table(column("legacy_id", not_null=not_null)), **known)
    says(difference, "source_removed_column", "mismatch", "'legacy_id' that no longer exists in source")
    assert difference.finding.fix == ("ALTER TABLE public.users DROP COLUMN legacy_id;",)
    assert difference.finding.reason == "source_removed"


def test_the_order_of_columns_does_not_matter() -> None:
    name, email = column("name"), column("email")
    assert differences(table(name, email), table(email, name)) == []


# --- names ----------------------------------------------------------------------------------------------------------


def test_a_renamed_column_takes_the_place_of_one_added_and_one_removed() -> None:
    limits = [PRIMARY, check("mail <> ''::text", "mail"), unique("mail")]
    theirs = [PRIMARY, check("email <> ''::text", "email"), unique("email")]
    difference = only(
        table(column("mail"), constraints=limits),
        table(column("email"), constraints=theirs),
        renamed={"email": "mail"},
        removed=["email"],
    )
    says(difference, "renamed_column", "mismatch", "ALTER TABLE public.users RENAME COLUMN email TO mail;")
    assert difference.source is not None and difference.source.name == "mail"
    assert difference.target is not None and difference.target.name == "email"


def test_a_column_in_another_case_is_renamed() -> None:
    difference = only(table(column("user_Id")), table(column("user_id", not_null=True)))
    says(difference, "column_case", "mismatch", 'RENAME COLUMN user_id TO "user_Id";', "differ only in case")


@pytest.mark.parametrize(
    ("name", "sql"),
    [("plain_1", "plain_1"), ("Upper", '"Upper"'), ("order", '"order"'), ("a b", '"a b"'), ('q"', '"q"""'),
     ("user", '"user"'), ("value", "value"), ("über", '"über"'), ("1st", '"1st"')],
)  # fmt: skip
def test_names_are_quoted_where_they_must_be(name: str, sql: str) -> None:
    assert sql_name(name) == sql


def test_sentences_name_the_source_and_sql_the_target() -> None:
    difference = only(
        table(column("N", "bigint")), table(column("N", "integer")), names=(NAME, ("pgddl_copy_public", "Users"))
    )
    says(
        difference,
        "type_mismatch",
        "mismatch",
        "Type mismatch on public.users.N",
        'ALTER TABLE pgddl_copy_public."Users" ALTER COLUMN "N" TYPE bigint;',
    )


# --- types ----------------------------------------------------------------------------------------------------------

MOOD = enum("public.mood", "sad", "it's ok")


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


# --- keys and constraints -------------------------------------------------------------------------------------------


def test_another_key_stops() -> None:
    wide = replace(PRIMARY, definition="PRIMARY KEY (id, region)", columns=("id", "region"))
    source = table(column("region", not_null=True))
    target = table(column("region", not_null=True), key=("id", "region"), constraints=[wide])
    difference = only(source, target)
    says(difference, "key", "mismatch", "(id) on the source, (id, region) on the target")
    assert difference.finding.fix == ("ALTER TABLE public.users DROP CONSTRAINT users_pkey, ADD PRIMARY KEY (id);",)
    none = only(table(), table(key=None, constraints=[]))
    says(none, "key", "mismatch", "none on the target", "ALTER TABLE public.users ADD PRIMARY KEY (id);")


def test_the_order_of_a_key_does_not_matter_and_another_key_beside_it_is_a_constraint() -> None:
    two = column("region", not_null=True)
    assert (
        differences(table(two, key=("id", "region"), constraints=[]), table(two, key=("region", "id"), constraints=[]))
        == []
    )
    other = ConstraintModel("users_pkey", "p", "PRIMARY KEY (region)", ("region",))
    difference = only(table(two), table(two, key=("region",), constraints=[other, unique("id")]))
    says(difference, "target_constraint", "mismatch", "DROP CONSTRAINT users_pkey;")


def test_a_unique_index_over_not_null_that_is_not_valid_is_no_key() -> None:
    by_index = table(key=None, constraints=[unique("id")])
    assert differences(table(), by_index) == []
    target = replace(by_index, columns=(replace(ID, not_valid=True),))
    says(only(table(), target), "key", "mismatch", "none on the target")


def test_not_null_that_is_not_valid_is_not_asked_of_rows_from_before() -> None:
    added = column("n", "integer", not_null=True, not_valid=True)
    difference = only(table(added), table())
    assert difference.finding.fix == ("ALTER TABLE public.users ADD COLUMN n integer;",)
    assert differences(table(added), table(added)) == []
    asked = only(table(added), table(replace(added, not_valid=False)))
    says(asked, "not_null", "warning", "may be NULL on the source in rows from before")
    assert asked.finding.fix == ("ALTER TABLE public.users ALTER COLUMN n DROP NOT NULL;",)
    assert differences(table(replace(added, not_valid=False)), table(added)) == []


def test_a_check_that_is_not_valid_is_not_asked_of_rows_from_before() -> None:
    both = (column("n", "integer"), column("t"))
    late, valid = check("n > 0", "n", suffix=" NOT VALID"), check("n > 0", "n")
    asked = only(table(*both, constraints=[PRIMARY, late]), table(*both, constraints=[PRIMARY, valid]))
    says(asked, "target_constraint", "warning", "source for new ones only")
    assert asked.finding.fix == ("ALTER TABLE public.users DROP CONSTRAINT users_check;",)
    for mine, its in (([late, valid], [valid]), ([late], [late]), ([valid], [late])):
        assert differences(table(*both, constraints=[PRIMARY, *mine]), table(*both, constraints=[PRIMARY, *its])) == []


def test_a_copy_without_indexes_has_no_key_yet() -> None:
    assert differences(table(constraints=[PRIMARY, unique("id")]), table(key=None, constraints=[]), keyed=False) == []


def test_a_table_without_a_key_takes_none_on_the_target() -> None:
    assert differences(table(key=None, constraints=[]), table(key=None, constraints=[])) == []
    says(only(table(key=None, constraints=[]), table()), "target_constraint", "mismatch", "users_pkey")


@pytest.mark.parametrize(
    ("limit", "fix"),
    [
        (check("n > 0", "n"), "ALTER TABLE public.users DROP CONSTRAINT users_check;"),
        (unique("n"), "ALTER TABLE public.users DROP CONSTRAINT users_key;"),
        (
            unique("n", kind="i", name="Users_n", definition='CREATE UNIQUE INDEX "Users_n" ON public.users (n)'),
            'DROP INDEX public."Users_n";',
        ),
        (
            unique("n", kind="x", definition="EXCLUDE USING gist (n WITH =)"),
            "ALTER TABLE public.users DROP CONSTRAINT users_key;",
        ),
    ],
)
def test_what_the_target_asks_beyond_the_source_stops(limit: ConstraintModel, fix: str) -> None:
    both = column("n", "integer")
    difference = only(table(both), table(both, constraints=[PRIMARY, limit]))
    says(difference, "target_constraint", "mismatch", limit.name)
    assert difference.finding.fix == (fix,)
    assert difference.finding.column == "n"
    assert differences(table(both, constraints=[PRIMARY, limit]), table(both)) == []
    named = replace(limit, name="other", definition=limit.definition.replace("Users_n", "other"))
    assert differences(table(both, constraints=[PRIMARY, named]), table(both, constraints=[PRIMARY, limit])) == []


def test_a_foreign_key_is_a_warning() -> None:
    foreign = ConstraintModel("users_n_fkey", "f", "FOREIGN KEY (n) REFERENCES public.n(id)", ("n",))
    both = column("n", "integer")
    difference = only(table(both), table(both, constraints=[PRIMARY, foreign]))
    says(difference, "target_constraint", "warning", "not checked while rows are replayed")
    assert differences(table(both, constraints=[PRIMARY, foreign]), table(both, constraints=[PRIMARY, foreign])) == []


def index(definition: str) -> ConstraintModel:
    return unique("n", kind="i", definition=definition)


@pytest.mark.parametrize(
    ("mine", "its", "same"),
    [
        (unique("n"), unique("n", "t"), True),  # what is unique stays so with more columns
        (unique("n", "t"), unique("n"), False),
        (unique("n"), index("CREATE UNIQUE INDEX i ON ONLY public.users USING btree (n) WITH (fillfactor='70')"), True),
        (unique("n"), unique("n", definition="UNIQUE NULLS NOT DISTINCT (n)"), False),
        (unique("n", definition="UNIQUE NULLS NOT DISTINCT (n)"), unique("n"), True),
        (unique("n"), unique("n", definition="UNIQUE (n) DEFERRABLE"), True),
        (unique("n"), index('CREATE UNIQUE INDEX i ON public.users (n COLLATE "C")'), False),
        (index("CREATE UNIQUE INDEX i ON public.users (n) WHERE (n > 0)"),
         index("CREATE UNIQUE INDEX i ON public.users (n) WHERE (n > 1)"), False),
        (index("CREATE UNIQUE INDEX i ON public.users (lower(t))"),
         index("CREATE UNIQUE INDEX j ON public.users (lower(t))"), True),
        (check("n > 0"), check("(n) > 0"), True),
        (check("n > 0"), check("n > 0", suffix=" NOT VALID"), True),
        (check("n > 0", suffix=" NOT ENFORCED"), check("n > 0"), False),
        (check("n > 1"), check("n > 0", suffix=" NOT ENFORCED"), True),
    ],
)  # fmt: skip
def test_constraints_are_compared_by_what_they_ask(mine: ConstraintModel, its: ConstraintModel, same: bool) -> None:
    both = (column("n", "integer"), column("t"))
    found = differences(table(*both, constraints=[PRIMARY, mine]), table(*both, constraints=[PRIMARY, its]))
    assert [d.finding.kind for d in found] == ([] if same else ["target_constraint"])


def test_a_check_over_a_wider_column_is_printed_with_other_casts() -> None:
    words = "(ARRAY['a'::character varying, 'b'::character varying])::text[]"
    limit = check(f"(n)::text = ANY ({words})", "n")
    wide = table(column("n", "character varying(9)"), constraints=[limit])
    text = table(column("n"), constraints=[check("n = ANY (ARRAY['a'::text, 'b'::text])", "n")])
    assert [d.finding.kind for d in differences(wide, text)] == ["safe_cast"]
    other = table(column("n"), constraints=[check("n = ANY (ARRAY['a'::text, 'c'::text])", "n")])
    assert [d.finding.kind for d in differences(wide, other)] == ["safe_cast", "target_constraint"]


# --- tables ---------------------------------------------------------------------------------------------------------


def test_a_table_that_the_target_lacks_is_made() -> None:
    source = table(
        column("mood", MOOD, not_null=True),
        column("name", collation='pg_catalog."C"', default="'x'"),
        column("g", generated="s", default="lower(name)"),
        column("n", "bigint", not_null=True, identity="a"),
    )
    difference = only(source, None, names=(NAME, ("app", "users")))
    says(difference, "missing_on_target", "mismatch", "Table public.users does not exist on the target")
    schema, type_, create = difference.finding.fix
    assert schema == "CREATE SCHEMA IF NOT EXISTS app;"
    assert type_ == "CREATE TYPE public.mood AS ENUM ('sad', 'it''s ok');"
    assert create.splitlines() == [
        "CREATE TABLE app.users (",
        "  id integer NOT NULL,",
        "  mood public.mood NOT NULL,",
        '  name text COLLATE pg_catalog."C",',
        "  g text GENERATED ALWAYS AS (lower(name)) STORED,",
        "  n bigint GENERATED ALWAYS AS IDENTITY NOT NULL,",
        "  PRIMARY KEY (id)",
        ");",
    ]
    assert difference.finding.reason == "missing_table"


def test_a_table_that_the_source_lacks_is_said() -> None:
    says(only(None, table()), "missing_on_source", "mismatch", "public.users was dropped on the source")
    says(only(None, None), "missing_on_source", "mismatch")


@pytest.mark.parametrize(
    ("relkind", "words"),
    [("v", "a view"), ("m", "a materialized view"), ("f", "a foreign table"), ("S", "a sequence"), ("i", "an index")],
)
def test_what_is_no_table_is_named(relkind: str, words: str) -> None:
    other = table(relkind=relkind)
    says(only(table(), other), "not_a_table", "mismatch", f"{words} on the target", "RENAME TO users_before_pgddl;")
    says(only(other, table()), "not_a_table", "mismatch", f"{words} on the source")


def test_a_partitioned_table_is_a_table() -> None:
    assert differences(table(), table(relkind="p")) == []


def test_rights_that_our_role_lacks_are_granted() -> None:
    difference = only(table(), table(missing=("USAGE", "INSERT", "TRUNCATE")), role="Mover")
    says(difference, "privileges", "mismatch", "lacks INSERT, TRUNCATE, USAGE of schema public on public.users")
    assert difference.finding.fix == (
        'GRANT USAGE ON SCHEMA public TO "Mover";',
        'GRANT INSERT, TRUNCATE ON TABLE public.users TO "Mover";',
    )
    assert differences(table(missing=("INSERT",)), table()) == []
    says(only(table(missing=("SELECT",)), table()), "privileges", "mismatch", "lacks SELECT", "-- on the source: GRANT")


def test_all_that_differs_is_said_at_once() -> None:
    source = table(column("a", "bigint"), column("b"))
    target = table(column("a", "integer"), column("c", not_null=True), missing=("INSERT",))
    kinds = [d.finding.kind for d in differences(source, target)]
    assert kinds == ["privileges", "source_added_column", "type_mismatch", "target_added_column"]
