"""The table of all keys of the pipeline file against the code, and the example that shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

from airflow_provider_pgddl.engine.pipeline.key_positions import ORIGIN
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.reading import changed_keys, load_pipeline
from airflow_provider_pgddl.engine.preflight.unsupported_keys import BUILT, unsupported
from tests.unit.documents import LEAVES, PIPELINE_FILE, TABLE, blocks


def test_the_example_shows_every_key_that_works() -> None:
    shown = {key for text in blocks(PIPELINE_FILE, "yaml") for key in keys_of(yaml.safe_load(text))}
    assert TABLE.keys() - shown == {f"{side}.{key}" for side in ("source", "target") for key in ("dsn", "dsn_command")}
    assert shown <= TABLE.keys()


def keys_of(tree: dict[str, Any], path: str = "") -> Iterator[str]:
    """The dotted keys that a file says something under, `<table>` for a table's name."""
    for name, value in tree.items():
        key = f"{path}{name}"
        if key in LEAVES:
            yield key
        elif f"{path}<table>" in {"rewrite.<table>", "schema.overrides.<table>"}:
            yield from keys_of(value, f"{path}<table>.")
        else:
            yield from keys_of(value, f"{key}.")


# A value other than the default for each key, to see what becomes of it.
OTHER: dict[str, Any] = {
    "tables.include": ["shop.*"],
    "tables.exclude": ["shop.b"],
    "tables.schema_only": ["shop.c"],
    "tables.skip_columns": {"shop.a": ["x"]},
    "tables.where": {"shop.a": "x = 1"},
    "tables.transform": {"shop.a": {"x": "md5(x)"}},
    "tables.operations": ["insert", "update"],
    "tables.existing": "replace",
    "tables.keep_extra": True,
    "tables.keyless": "copy_at_swap",
    "capture.rows": "none",
    "capture.ddl": "wal",
    "capture.identities": True,
    "capture.on_slot_lost": "restart_tables",
    "capture.max_retained_wal": "1GB",
    "capture.failover": True,
    "ddl.scope": "everything",
    "ddl.schemas": "shop",
    "ddl.tags": "pgl_ddl_deploy",
    "ddl.create_tags": ["CREATE TABLE"],
    "ddl.drop_tags": ["DROP TABLE"],
    "ddl.blocked_tags": ["INSERT"],
    "ddl.exclude_alter_table_subcommands": "common",
    "ddl.multi_statements": "single_only",
    "ddl.out_of_scope_references": "unhandled",
    "trusted_roles": ["app"],
    "ddl.missing_role": {"app": "app_v2"},
    "ddl.ddl_only": True,
    "ddl.on_failure": "queue",
    "ddl.approval": "required",
    "ddl.lock_safe": False,
    "ddl.lock_timeout": "1s",
    "ddl.retry_for": "1min",
    "ddl.signal_blockers": "cancel",
    "schema.validation": "warn_only",
    "schema.validation_interval": "5s",
    "schema.source_added_columns": "add",
    "schema.target_added_columns": "stop",
    "schema.source_removed_columns": "preserve",
    "schema.target_added_constraints": "allow",
    "schema.type_mismatches": "cast_if_safe",
    "schema.safe_casts_allowed": False,
    "schema.allow_type_cast": {"shop.a.x": "text"},
    "schema.allow_schema_drift": ["target_superset"],
    "schema.preserve_columns": {"shop.a": ["x"]},
    "schema.null_removed_columns": {"shop.a": ["x"]},
    "schema.auto_migrate.types": ["add_column"],
    "schema.auto_migrate.approval": "auto",
    "schema.overrides.<table>.validation": "warn_only",
    "schema.overrides.<table>.source_added_columns": "add",
    "schema.overrides.<table>.target_added_columns": "stop",
    "schema.overrides.<table>.source_removed_columns": "preserve",
    "schema.overrides.<table>.target_added_constraints": "allow",
    "schema.overrides.<table>.type_mismatches": "cast_if_safe",
    "schema.overrides.<table>.safe_casts_allowed": False,
    "schema.overrides.<table>.allow_type_cast": {"x": "text"},
    "schema.overrides.<table>.skip_columns": ["x"],
    "schema.force": True,
    "rewrite.<table>.alter": ["ALTER COLUMN id TYPE bigint"],
    "rewrite.<table>.partition_by.ahead": 4,
    "rewrite.<table>.partition_by.column": "x",
    "rewrite.<table>.partition_by.default_partition": True,
    "rewrite.<table>.partition_by.hash": 4,
    "rewrite.<table>.partition_by.list": True,
    "rewrite.<table>.partition_by.range": "day",
    "rewrite.<table>.order_by": ["x"],
    "backfill.chunk_bytes": "8MB",
    "backfill.workers": 2,
    "backfill.throttle.max_replica_lag": "1s",
    "backfill.throttle.max_active_backends": 10,
    "backfill.throttle.query": "SELECT false",
    "replay.window_rows": 10,
    "replay.until_lag": "5s",
    "replay.run_for": "10min",
    "follow.finish": True,
    "verify.before_swap": False,
    "swap.lock_timeout": "10ms",
    "swap.retries": 3,
    "swap.fence": "read_only",
    "swap.keep_old": False,
    "swap.signal_blockers": "cancel",
    "swap.recreate_materialized_views": True,
    "swap.way_back": "shop_back",
    "spark.conn_id": "other",
    "spark.master": "local[1]",
    "spark.conf": {"spark.executor.memory": "2g"},
    "spark.begin": "at_once",
    "spark.wait": "1min",
    "spark.allow_plaintext": True,
    "spark.secrets.file": "/run/secrets/pgpass",
}


IN_PLACE = ("swap.keep_old", "swap.signal_blockers", "swap.recreate_materialized_views", "tables.include")
NEED_FORCE = (
    "schema.allow_type_cast", "schema.null_removed_columns", "schema.overrides.<table>.allow_type_cast",
)  # fmt: skip


def plain(key: str) -> dict[str, Any]:
    """A short file in which the key may stand, and does not say anything yet."""
    here: dict[str, Any] = {"pipeline": "shop", "source": {"conn_id": "a"}}
    if key.startswith("rewrite.") or key in IN_PLACE:
        partition_by = {"partition_by": {"column": "y", "range": "month"}} if ".partition_by." in key else {}
        here["rewrite"] = {"shop.a": partition_by}
    else:
        here |= {"target": {"conn_id": "b"}, "tables": {"include": ["shop.a"]}}
    if key in ("capture.on_slot_lost", "capture.failover"):
        here["capture"] = {"rows": "wal"}
    if key == "tables.keyless":
        here["swap"] = {"fence": "lock"}
    if key == "tables.keep_extra":
        here["tables"]["existing"] = "adopt"
    if key == "swap.way_back":
        here["swap"] = {"fence": "read_only"}
    if key in NEED_FORCE:
        here["schema"] = {"force": True}
    return here


def with_key(key: str, value: Any) -> Pipeline:
    """That file with the key in it."""
    tree = place = plain(key)
    *path, last = ("shop.a" if step == "<table>" else step for step in key.split("."))
    for step in path:
        place = place.setdefault(step, {})
    if last in ("list", "hash"):
        del place["range"]  # one of the three
    place[last] = value
    return load_pipeline(tree)


def without_key(key: str) -> Pipeline:
    return load_pipeline(plain(key))


def test_every_key_has_its_line_and_no_line_is_of_a_key_that_is_gone() -> None:
    assert TABLE.keys() == LEAVES.keys()
    endpoints = {f"{side}.{key}" for side in ("source", "target") for key in ("conn_id", "dsn", "dsn_command")}
    endpoints.add("pipeline")
    assert OTHER.keys() == LEAVES.keys() - endpoints


def test_every_line_has_its_default() -> None:
    for key, row in TABLE.items():
        field = LEAVES[key]
        if row.default == "required":
            assert field.is_required(), key
        elif row.default == "–":
            assert field.get_default() in (None, "inherit"), key
        elif not row.default.startswith("[the lists]"):
            said = with_key(key, yaml.safe_load(row.default.strip("`")))
            assert changed_keys(without_key(key).to_json(), said.to_json()) == [], key
            assert said.to_json() == without_key(key).to_json() | {ORIGIN: said.to_json()[ORIGIN]}, key


def test_every_line_says_what_the_key_takes_and_means() -> None:
    for key, row in TABLE.items():
        assert row.type and row.meaning, key
        said = f"{row.type} {row.meaning}"
        missing = [word for word in words_of(LEAVES[key].annotation) if not re.search(rf"\b{word}\b", said)]
        assert set(missing) <= {"inherit", "common"}, key


def words_of(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for argument in get_args(annotation):
            yield from words_of(argument)


@pytest.mark.parametrize("key", OTHER)
def test_what_is_built_is_said(key: str) -> None:
    found = {finding.what for finding in unsupported(with_key(key, OTHER[key]))}
    found -= {finding.what for finding in unsupported(without_key(key))}
    assert bool(found) == (key in BUILT)
    for word in BUILT.get(key, ()):
        assert f"`{word}`" in TABLE[key].meaning.partition("Works today")[2]


@pytest.mark.parametrize("key", OTHER)
def test_what_may_change_after_setup_is_said(key: str) -> None:
    changed = changed_keys(without_key(key).to_json(), with_key(key, OTHER[key]).to_json())
    assert (TABLE[key].later.how != "free") == bool(changed)


def test_the_example_names_all_that_is_not_built() -> None:
    text = PIPELINE_FILE.read_text().partition('"not built yet"')[2].partition("\n\n")[0]
    for key in BUILT:
        assert f"`{key}: " in text
