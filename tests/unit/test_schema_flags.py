"""The gate's flags on the command line, and the pipeline that they make of a file."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

import pytest

from airflow_provider_pgddl.engine.errors import EXIT_USAGE, UsageError
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.schema.flags import DRIFT, OPTIONS, merged
from airflow_provider_pgddl.engine.schema.table_policy import TablePolicy

USERS = ("public", "users")


def parsed(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for flags, settings in OPTIONS:
        parser.add_argument(*flags, **settings)
    return parser.parse_args(shlex.split(line))


def shop(**schema: Any) -> dict[str, Any]:
    content = {
        "pipeline": "shop",
        "source": {"conn_id": "a"},
        "target": {"conn_id": "b"},
        "tables": {"include": ["public.*"]},
        "schema": schema,
    }
    return load_pipeline(content).to_json()


def run(line: str, **schema: Any) -> Pipeline:
    return load_pipeline(merged(shop(**schema), parsed(line)))


def users(line: str, **schema: Any) -> TablePolicy:
    return TablePolicy.of(run(line, **schema), USERS)


def refusal(line: str, **schema: Any) -> str:
    with pytest.raises(UsageError) as caught:
        merged(shop(**schema), parsed(line))
    assert caught.value.exit_code == EXIT_USAGE
    return caught.value.what


def test_without_a_flag_the_file_stays_as_it_is() -> None:
    content = shop(overrides={"public.users": {"source_removed_columns": None}}, force=True)
    assert merged(content, parsed("")) == content


def test_the_flags_of_the_seed_are_taken_as_it_writes_them() -> None:
    assert users("--skip-columns=users.ssn,users.phone --skip-columns public.users.a").skip == {"ssn", "phone", "a"}
    assert users("--preserve-columns=users.legacy_id").preserve == {"legacy_id"}
    assert users("--null-removed-columns=users.legacy_id --force").null == {"legacy_id"}
    cast = TablePolicy.of(run("--allow-type-cast=products.price:integer --force"), ("public", "products"))
    assert cast.allow_type_cast == {"price": "integer"}
    assert users("--allow-schema-drift=source_superset --force").source_added == "skip"
    assert users("--allow-schema-drift=target_superset", target_added_columns="stop").target_added == "allow"
    assert users("--allow-schema-drift=type_casts --force").type_mismatches == "cast_always"
    assert users("--allow-all-type-casts --force").type_mismatches == "cast_always"
    everything = users("--allow-schema-drift=all --force")
    assert (everything.source_added, everything.target_added, everything.source_removed) == (
        "skip",
        "allow",
        "preserve",
    )
    assert (everything.type_mismatches, everything.target_constraints) == ("cast_always", "allow")
    assert users("--schema-validation=warn-only").validation == "warn_only"
    assert users("--schema-validation=disabled --force").validation == "disabled"
    migrate = users("--auto-migrate-schema")
    assert (migrate.migrate, migrate.approved) == ({"add_column", "safe_type_change"}, True)


def test_a_flag_is_added_to_the_lists_of_the_file() -> None:
    content = shop(preserve_columns={'"public"."users"': ["a"]}, allow_schema_drift="target_superset")
    content["tables"]["skip_columns"] = {"PUBLIC.users": ["ssn"]}
    line = (
        "--skip-columns=users.phone,users.SSN --preserve-columns=users.b --allow-schema-drift=source_superset --force"
    )
    tree = merged(content, parsed(line))
    assert tree["tables"]["skip_columns"] == {"PUBLIC.users": ["ssn", "phone"]}
    assert tree["schema"]["preserve_columns"] == {'"public"."users"': ["a", "b"]}
    assert tree["schema"]["allow_schema_drift"] == ["target_superset", "source_superset"]
    assert content["tables"]["skip_columns"] == {"PUBLIC.users": ["ssn"]}  # what was given is not changed
    load_pipeline(tree)


def test_a_flag_is_stronger_than_what_the_file_says_of_a_table() -> None:
    own = {"public.users": {"validation": "strict", "source_added_columns": "stop", "type_mismatches": "cast_if_safe",
                            "allow_type_cast": {"price": "text", "size": "text"}}}  # fmt: skip
    policy = users(
        "--schema-validation=warn-only --allow-schema-drift=all --allow-type-cast=users.price:integer --force",
        overrides=own,
        allow_type_cast={'public.users."price"': "bigint"},
        force=True,
    )
    assert (policy.validation, policy.source_added, policy.type_mismatches) == ("warn_only", "skip", "cast_always")
    assert policy.allow_type_cast == {"price": "integer", "size": "text"}


def test_a_table_that_adds_columns_does_so_under_allowed_drift_too() -> None:
    own = {"public.users": {"source_added_columns": "add"}}
    assert users("--allow-schema-drift=source_superset --force", overrides=own).source_added == "add"
    assert users("--allow-schema-drift=source_superset --force", source_added_columns="add").source_added == "add"


def test_names_may_be_quoted_and_types_have_commas() -> None:
    pipeline = run(
        """--skip-columns='"Sales"."a,b"."c.d",users."X:Y"' --force """
        """--allow-type-cast='users.a:numeric(10,2),users."b:c":character varying(3)'"""
    )
    assert pipeline.skipped_columns == {("Sales", "a,b"): ("c.d",), USERS: ("X:Y",)}
    assert TablePolicy.of(pipeline, USERS).allow_type_cast == {"a": "numeric(10,2)", "b:c": "character varying(3)"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--skip-columns=ssn", "--skip-columns: ssn: write it as schema.table.column"),
        ("--skip-columns=a.b.c.d", "write it as schema.table.column"),
        ("--skip-columns=users.ssn,", "write it as schema.table.column"),
        ("--preserve-columns='users.a b'", 'put it in "double quotes"'),
        ("--null-removed-columns=users.*", "a pattern cannot stand here"),
        ("--null-removed-columns=users.a", "--null-removed-columns can lose data"),
        ("--allow-type-cast=users.a", "write it as schema.table.column:type"),
        ("--allow-type-cast=users.a:integer:text --force", "write it as schema.table.column:type"),
        ("--allow-type-cast=users.a:numeric(3 --force", "not a type"),
        ("--allow-type-cast=a:integer --force", "write it as schema.table.column"),
        ("--allow-type-cast=users.a:integer", "--allow-type-cast can lose data"),
        ("--allow-schema-drift=superset", f"expected one of: {', '.join(DRIFT)}"),
        ("--allow-schema-drift=target_superset,all", "--allow-schema-drift=all can lose data"),
        ("--allow-schema-drift=source_superset", "--allow-schema-drift=source_superset can lose data"),
        ("--allow-all-type-casts", "--allow-all-type-casts can lose data"),
        ("--schema-validation=disabled", "--schema-validation=disabled can lose data"),
    ],
)
def test_a_wrong_flag_is_one_clear_sentence(line: str, message: str) -> None:
    if "can lose data" not in message:
        line = line if "--force" in line else f"{line} --force"
    assert message in refusal(line)


def test_force_in_the_file_counts() -> None:
    assert users("--allow-all-type-casts", force=True).type_mismatches == "cast_always"


def test_words_are_those_of_the_pipeline_file() -> None:
    for word in DRIFT:
        assert run(f"--allow-schema-drift={word} --force").schema_.allow_schema_drift == (word,)
