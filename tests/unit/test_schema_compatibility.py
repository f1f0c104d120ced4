"""What differs between two tables, how grave it is, and the SQL that ends it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_pgddl.engine.schema.names import sql_name
from airflow_provider_pgddl.engine.schema.table_model import ConstraintModel
from airflow_provider_pgddl.engine.schema.verdict import OR
from tests.unit.compared import (
    ID,
    MOOD,
    NAME,
    PRIMARY,
    check,
    column,
    differences,
    domain,
    of,
    only,
    says,
    table,
    unique,
)

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
