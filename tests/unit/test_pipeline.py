"""What a pipeline file may say, and what is said when it says something else, or contradicts itself."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgddl.engine import pipeline
from airflow_provider_pgddl.engine.errors import PipelineFileError, UsageError
from airflow_provider_pgddl.engine.pipeline.contradictions import refuse_names
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.tags import (
    ALL_CREATE_TAGS,
    ALL_DROP_TAGS,
    BLOCKED_TAGS,
    COMMON_ALTER_TABLE_SUBCOMMANDS,
    CREATE_TAGS,
)
from tests.unit.pipelines import MIGRATE, in_place, migrate, refusal

# --- defaults ---------------------------------------------------------------------------------------------------


def test_a_short_file_gets_the_defaults_of_the_design() -> None:
    shop = load_pipeline(MIGRATE)
    assert not shop.in_place
    assert (shop.tables.existing, shop.tables.keyless) == ("refuse", "refuse")
    assert (shop.capture.rows, shop.capture.ddl, shop.capture.on_slot_lost) == ("change_log", "queue", "fail")
    assert shop.capture.max_retained_wal == 50 * 1024**3
    assert (shop.ddl.scope, shop.ddl.schemas, shop.ddl.multi_statements) == ("schemas", ".*", "split")
    assert (shop.ddl.lock_timeout, shop.ddl.retry_for, shop.ddl.signal_blockers) == (3.0, 600.0, "off")
    assert (shop.schema_.validation, shop.schema_.validation_interval, shop.schema_.force) == ("strict", 60.0, False)
    assert (shop.schema_.source_added_columns, shop.schema_.target_added_columns) == ("stop", "allow")
    assert (shop.schema_.source_removed_columns, shop.schema_.type_mismatches) == ("stop", "stop")
    assert (shop.backfill.chunk_bytes, shop.backfill.workers) == (64 * 1024**2, 4)
    assert (shop.replay.window_rows, shop.replay.until_lag) == (100_000, 1.0)
    assert shop.verify.before_swap
    assert (shop.swap.lock_timeout, shop.swap.retries, shop.swap.fence, shop.swap.keep_old) == (0.05, 200, "none", True)
    assert (shop.spark.conn_id, shop.spark.master) == ("spark_default", None)


def test_the_ddl_lists_default_to_those_of_the_seed() -> None:
    ddl = load_pipeline(MIGRATE).ddl
    assert set(ddl.create_tags) == set(ALL_CREATE_TAGS) - set(BLOCKED_TAGS)
    assert (set(ddl.drop_tags), ddl.blocked_tags) == (set(ALL_DROP_TAGS) - set(BLOCKED_TAGS), BLOCKED_TAGS)
    assert "CREATE EXTENSION" in load_pipeline(migrate(ddl={"blocked_tags": ["TRUNCATE"]})).ddl.create_tags
    peers = load_pipeline(migrate(ddl={"tags": "pgl_ddl_deploy", "drop_tags": ["DROP VIEW"]})).ddl
    assert (peers.create_tags, peers.drop_tags) == (CREATE_TAGS, ("DROP VIEW",))
    assert ddl.exclude_alter_table_subcommands == ()
    assert len(COMMON_ALTER_TABLE_SUBCOMMANDS) == 29
    common = load_pipeline(migrate(ddl={"exclude_alter_table_subcommands": "common"})).ddl
    assert common.exclude_alter_table_subcommands == COMMON_ALTER_TABLE_SUBCOMMANDS
    narrow = load_pipeline(migrate(ddl={"scope": "replicated_tables"})).ddl
    assert (narrow.create_tags, narrow.drop_tags) == (("ALTER TABLE", "COMMENT"), ())


def test_ddl_follows_the_way_that_rows_take() -> None:
    assert load_pipeline(migrate(capture={"rows": "wal"})).capture.ddl == "wal"
    assert load_pipeline(migrate(capture={"rows": "wal", "ddl": "queue"})).capture.ddl == "queue"


def test_every_key_of_the_design_is_taken() -> None:
    text = """\
    pipeline: shop
    source: {conn_id: shop_pg16}
    target: {dsn: "${SHOP_TARGET}"}
    tables:
      include: ["public.*", billing.invoice]
      exclude: ["public.tmp_*"]
      schema_only: ["public.audit_*"]
      skip_columns: {public.users: [ssn]}
      existing: replace
      keyless: refuse
    capture: {rows: wal, ddl: wal, identities: false, on_slot_lost: restart_tables, max_retained_wal: 50GB}
    ddl:
      scope: schemas
      schemas: "public|billing"
      create_tags: [create table]
      drop_tags: [DROP TABLE]
      blocked_tags: [INSERT]
      exclude_alter_table_subcommands: [SET LOGGED]
      multi_statements: safe_only
      out_of_scope_references: unhandled
      missing_role: {app: app_v2}
      ddl_only: false
      on_failure: queue
      approval: required
      lock_safe: true
      lock_timeout: 3s
      retry_for: 10min
      signal_blockers: cancel_then_terminate
    schema:
      validation: permissive
      validation_interval: 60s
      source_added_columns: skip
      target_added_columns: stop
      source_removed_columns: preserve
      type_mismatches: cast_if_safe
      safe_casts_allowed: false
      target_added_constraints: allow
      allow_type_cast: {public.products.price: integer}
      allow_schema_drift: type_casts
      preserve_columns: {public.users: [legacy_id]}
      null_removed_columns: {public.users: [legacy_name]}
      auto_migrate: {types: [add_column, safe_type_change], approval: required}
      overrides:
        public.audit_logs: {source_added_columns: skip, skip_columns: [user_ip, user_agent]}
        public.products: {allow_type_cast: {price: int}, safe_casts_allowed: true, target_added_constraints: stop}
      force: true
    backfill:
      chunk_bytes: 64MB
      workers: 4
      throttle: {max_replica_lag: 10s, max_active_backends: 80, query: "select true"}
    replay: {window_rows: 100000, until_lag: 1s}
    verify: {before_swap: true}
    swap: {lock_timeout: 50ms, retries: 200, fence: read_only, keep_old: true}
    spark: {conn_id: spark_default, master: "local[2]"}
    """
    shop = load_pipeline(textwrap.dedent(text))
    assert shop.schema_.validation == "warn_only"
    assert shop.ddl.create_tags == ("CREATE TABLE",)
    assert shop.ddl.missing_role == {"app": "app_v2"}
    assert shop.backfill.throttle.max_replica_lag == 10.0
    assert shop.skipped_columns == {("public", "users"): ("ssn",), ("public", "audit_logs"): ("user_ip", "user_agent")}
    assert shop.schema_.allow_schema_drift == ("type_casts",)

    rewrite = load_pipeline(
        in_place(
            rewrite={
                "public.orders": {
                    "alter": ["ALTER COLUMN id TYPE bigint"],
                    "partition_by": {"column": "created_at", "range": "month", "ahead": 3, "default_partition": False},
                    "order_by": ["customer_id"],
                }
            },
            capture={"rows": "direct_trigger"},
        )
    )
    assert rewrite.in_place
    assert rewrite.rewrites[("public", "orders")].alter == ("ALTER COLUMN id TYPE bigint",)


def test_yaml_false_and_none_are_words_where_off_and_null_are_values() -> None:
    text = (
        MIGRATE
        + "capture: {ddl: off}\nddl: {signal_blockers: off}\nschema: {source_removed_columns: null, force: yes}\n"
    )
    shop = load_pipeline(text)
    assert (shop.capture.ddl, shop.ddl.signal_blockers) == ("off", "off")
    assert shop.schema_.source_removed_columns == "null"
    override = load_pipeline(
        migrate(schema={"force": True, "overrides": {"public.a": {"source_removed_columns": None}}})
    )
    assert override.schema_.overrides["public.a"].source_removed_columns == "null"
    plain = load_pipeline(migrate(schema={"overrides": {"public.a": {"target_added_columns": "stop"}}}))
    assert plain.schema_.overrides["public.a"].source_removed_columns == "inherit"


# --- what a wrong file is told ------------------------------------------------------------------------------------


def test_an_error_names_the_file_the_line_and_the_key(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(MIGRATE + "replay:\n  window_rows: 1000\n  until_lagg: 1s\n")
    assert (
        refusal("shop.yaml", base=tmp_path)
        == "shop.yaml, line 7: replay.until_lagg: unknown key; did you mean until_lag?"
    )


@pytest.mark.parametrize(
    ("addition", "line", "message"),
    [
        ("incldue: [public.*]", 5, "incldue: unknown key"),
        ("include: [public.*]", 5, "include: unknown key here; it belongs at tables.include"),
        ("capture: {ddl: q}", 5, "capture.ddl: expected one of: queue, wal, off"),
        ("schema: {validation: stric}", 5, "did you mean strict?"),
        ("schema: {schema_: 1}", 5, "schema.schema_: unknown key"),
        ("backfill:\n  workers: 0", 6, "backfill.workers: input should be greater than or equal to 1"),
        ("backfill:\n  workers: true", 6, "backfill.workers: expected a whole number"),
        ('backfill:\n  workers: "4"', 6, "backfill.workers: expected a whole number"),
        ("backfill:\n  chunk_bytes: 64 pages", 6, "expected a size with its unit"),
        ("backfill:\n  chunk_bytes: 1kB", 6, "greater than or equal to 8192"),
        ("swap:\n  lock_timeout: 50", 6, "expected a duration with its unit"),
        ("swap:\n  keep_old: 1", 6, "swap.keep_old: expected true or false"),
        ("swap: on", 5, "swap: expected a mapping with the keys lock_timeout, retries, fence, keep_old"),
        ("replay: [1]", 5, "replay: expected a mapping"),
        ("ddl: {create_tags: CREATE TABLE}", 5, "ddl.create_tags: expected a list"),
        ("ddl: {create_tags: [1]}", 5, "ddl.create_tags[0]: expected text"),
        ("ddl: {create_tags: ['DROP; TABLE']}", 5, "expected a command tag"),
        ("ddl:\n  schemas: '('", 6, "ddl.schemas: not a regular expression"),
        ("ddl: {missing_role: 3}", 5, "expected ignore, fail, or a mapping of roles"),
        ("ddl: {missing_role: {app: 3}}", 5, "ddl.missing_role"),
        ("ddl:\n  create_tags:\n", 6, "ddl.create_tags: has no value"),
        ("replay:\n", 5, "replay: has no value"),
        ("schema:\n  source_removed_columns:", 6, "has no value"),
        ("pipeline: again", 5, "the key stands twice, first on line 1"),
        ("replay: {until_lag: 1s, until_lag: 2s}", 5, "the key stands twice"),
        ("replay: &x {until_lag: 1s}\nverify: *x", 6, "a YAML alias is not taken"),
        ("replay: [", 5, "not valid YAML"),
        ("replay: {until_lag: *.*}", 5, "quote a pattern"),
        ("? [a]\n: b", 5, "not valid YAML"),
        ("1: b", 5, "1: expected a key that is text"),
        ("schema: {allow_type_cast: {public.price: integer}}", 5, "write it as schema.table.column"),
        ("schema: {allow_type_cast: {public.a.b: 'integer('}}", 5, "not a type; write it as in SQL"),
        ("schema: {allow_type_cast: {public.a.b: 'integer + (1'}}", 5, "not a type; write it as in SQL"),
        ("schema: {overrides: {public.a: {allow_type_cast: {b: ')'}}}}", 5, "allow_type_cast.b: ): not a type"),
        ("schema: {allow_schema_drift: superset}", 5, "expected one of: source_superset, target_superset, type_casts"),
        ("schema: {preserve_columns: {public.a: []}}", 5, "preserve_columns.public.a: names no column"),
        ("schema: {overrides: {public.a: {skip_columns: []}}}", 5, "skip_columns: names no column"),
        ("schema: {preserve_columns: {a.b: [c], A.b: [d]}}", 5, "is the same table as a.b"),
        (
            "schema: {force: true, preserve_columns: {a.b: [c]}, null_removed_columns: {a.B: [d, C]}}",
            5,
            "null_removed_columns.a.B[1]: C is in preserve_columns as well",
        ),
        ("schema: {overrides: {'public.*': {validation: warn_only}}}", 5, "a pattern cannot stand here"),
        ("schema: {overrides: {public.audit: {force: true}}}", 5, "unknown key"),
        ("swap: {way_back: back}", 5, "swap.way_back: needs swap.fence: read_only"),
        ("swap: {way_back: back, fence: read_only}\nverify: {before_swap: false}", 5, "needs verify.before_swap: true"),
        ("swap: {way_back: shop, fence: read_only}", 5, "swap.way_back: is this pipeline's own name"),
        ("swap: {way_back: back, fence: read_only}\nddl: {ddl_only: true}", 5, "needs rows that are moved"),
    ],
)
def test_what_a_wrong_key_or_value_is_told(addition: str, line: int, message: str) -> None:
    text = refusal(MIGRATE + addition)
    assert text.startswith(f"pipeline, line {line}: "), text
    assert message in text


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ('include: ["public"]', "a pattern has two parts"),
        ('include: ["a.b.c"]', "a pattern has two parts"),
        ('include: [".a"]', "a pattern has two parts"),
        ('include: ["public.[ab]"]', "only * and ? mean something"),
        ("""include: ['"public.orders']""", "the double quote is not closed"),
        ("include: public.*", "expected a list"),
        ("include: []", "tables.include: is missing"),
        ("existing: adopt", "tables.include: is missing"),
        ('include: ["public.*"], skip_columns: {public.users: []}', "names no column"),
        ('include: ["public.*"], skip_columns: {users: [ssn]}', "write it as schema.table"),
        ('include: ["public.*"], skip_columns: {public.users: ["a b"]}', 'put it in "double quotes"'),
        ("""include: ["public.*"], skip_columns: {public.users: [a], '"public".users': [b]}""", "is the same table as"),
    ],
)
def test_what_wrong_tables_are_told(tables: str, message: str) -> None:
    text = refusal(MIGRATE.replace('include: ["public.*"]', tables))
    assert text.startswith("pipeline, line 4: "), text
    assert message in text


@pytest.mark.parametrize("name", ["Shop", "1shop", "s" * 41, "shop-1", "", "größe"])
def test_a_pipeline_has_a_plain_name(name: str) -> None:
    assert "expected a name of a-z" in refusal(migrate(pipeline=name))


def test_everything_wrong_is_said_at_once_in_the_order_of_the_file() -> None:
    lines = refusal("pipeline: Shop\nsource: {}\ntables: {inclde: []}\nswap: {fence: lok}\n").splitlines()
    assert [line.split(":")[0] for line in lines] == [f"pipeline, line {number}" for number in (1, 3, 4)]


def test_missing_keys_are_named() -> None:
    assert refusal("pipeline: shop\ntables: {include: [public.a]}\n") == "pipeline: source: is missing"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n", "the file is empty"),
        ("- a\n- b\n", "expected a mapping"),
        ("pipeline: a\n---\npipeline: b\n", "not valid YAML"),
        ("pipeline: 2026-13-45\n", "not valid YAML"),
        ("pipeline: !!python/object/apply:os.system ['true']\nx: y", "not valid YAML"),
    ],
)
def test_what_is_not_a_pipeline_file_at_all(text: str, message: str) -> None:
    assert message in refusal(text)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    assert "No such file" in refusal("nowhere.yaml", base=tmp_path)
    assert "directory" in refusal(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"pipeline: \xff\xfe\n")
    assert "not UTF-8" in refusal(tmp_path / "binary.yaml")


# --- contradictions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (migrate(rewrite={"public.orders": {}}), "rewrite: is for a rewrite in place"),
        (in_place(rewrite={}), "without target it is a rewrite in place"),
        (in_place(swap={"fence": "lock"}), "swap.fence: a fence is for a migrate"),
        (in_place(tables={"include": ["public.other"]}), "public.other is not under rewrite"),
        (in_place(tables={"include": ["public.a*"]}, rewrite={"public.ab": {}, "public.b": {}}), "is not in tables"),
        (in_place(tables={"exclude": ["public.a"]}), "has no place in a rewrite in place"),
        (in_place(tables={"schema_only": ["public.a"]}), "has no place in a rewrite in place"),
        (in_place(tables={"skip_columns": {"public.orders": ["a"]}}), "has no place in a rewrite in place"),
        (in_place(schema={"overrides": {"public.orders": {"skip_columns": ["a"]}}}), "write DROP COLUMN under rewrite"),
        (in_place(tables={"existing": "adopt"}), "has no place in a rewrite in place"),
        (in_place(capture={"rows": "none"}), "would lose what is written"),
        (in_place(ddl={"ddl_only": True}), "ddl.ddl_only: needs a target"),
        (in_place(rewrite={"public.orders": {}, '"public"."orders"': {}}), "is the same table as public.orders"),
        (migrate(capture={"rows": "direct_trigger"}), "works in place only"),
        (migrate(capture={"ddl": "off"}, ddl={"ddl_only": True}), "needs capture.ddl"),
        (migrate(capture={"on_slot_lost": "restart_tables"}), "needs a slot"),
        (migrate(swap={"keep_old": False}), "is for a rewrite in place"),
        (migrate(swap={"signal_blockers": "cancel"}), "swap.signal_blockers: is for the swap of a rewrite in place"),
        (migrate(ddl={"scope": "everything", "schemas": "a"}), "needs scope: schemas"),
        (migrate(ddl={"scope": "replicated_tables", "ddl_only": True}), "needs scope: schemas or everything"),
        (migrate(ddl={"scope": "replicated_tables", "create_tags": ["CREATE TABLE"]}), "CREATE TABLE needs scope"),
        (migrate(ddl={"scope": "replicated_tables", "drop_tags": ["DROP TABLE"]}), "drop_tags: need scope"),
        (migrate(ddl={"create_tags": ["CREATE EXTENSION"]}), "is in blocked_tags as well"),
        (migrate(ddl={"create_tags": ["DROP TABLE"]}), "belongs in drop_tags"),
        (migrate(ddl={"drop_tags": ["CREATE TABLE"]}), "belongs in create_tags"),
        (migrate(schema={"validation": "disabled"}), "schema.validation: disabled can lose data"),
        (migrate(schema={"source_added_columns": "skip"}), "needs schema.force: true"),
        (migrate(schema={"source_removed_columns": None}), "null can lose data"),
        (migrate(schema={"source_removed_columns": "drop"}), "drop can lose data"),
        (migrate(schema={"type_mismatches": "cast_always"}), "cast_always can lose data"),
        (migrate(schema={"allow_type_cast": {"public.products.price": "integer"}}), "allow_type_cast: can lose data"),
        (migrate(schema={"null_removed_columns": {"public.a": ["b"]}}), "null_removed_columns: can lose data"),
        (migrate(schema={"allow_schema_drift": "all"}), "allow_schema_drift: all can lose data"),
        (migrate(schema={"allow_schema_drift": ["target_superset", "type_casts"]}), "type_casts can lose data"),
        (migrate(schema={"overrides": {"public.a": {"allow_type_cast": {"b": "text"}}}}), "a.allow_type_cast: can"),
        (migrate(schema={"overrides": {"public.a": {"source_added_columns": "skip"}}}), "a.source_added_columns"),
        (migrate(schema={"overrides": {"public.a": {"validation": "disabled"}}}), "disabled can lose data"),
    ],
)  # fmt: skip
def test_settings_that_contradict_one_another_are_refused(pipeline: dict[str, Any], message: str) -> None:
    assert message in refusal(pipeline)
    with pytest.raises(PipelineFileError):  # and with lines, from YAML
        load_pipeline(json.dumps(pipeline, indent=1))


def test_force_allows_what_can_lose_data() -> None:
    policy = {"force": True, "source_added_columns": "skip", "source_removed_columns": None, "validation": "disabled"}
    assert load_pipeline(migrate(schema=policy)).schema_.force


def test_what_loses_nothing_needs_no_force() -> None:
    load_pipeline(migrate(schema={
        "allow_schema_drift": "target_superset", "preserve_columns": {"public.a": ["b"]}, "safe_casts_allowed": False,
        "target_added_constraints": "allow", "overrides": {"public.a": {"skip_columns": ["c"]}},
    }))  # fmt: skip


def test_in_place_include_may_repeat_the_tables() -> None:
    assert load_pipeline(in_place(tables={"include": ["public.*"]})).in_place


def test_its_modules_import_no_airflow_and_no_pyspark() -> None:
    for module in Path(pipeline.__path__[0]).glob("*.py"):
        source = module.read_text()
        assert "import pyspark" not in source, module
        assert "import airflow\n" not in source, module


@pytest.mark.parametrize(
    ("pipeline", "key"),
    [
        (migrate(pipeline="rows_of_shop"), "pipeline"),
        (migrate(swap={"way_back": "rows_of_shop", "fence": "read_only"}), "swap.way_back"),
    ],
)
def test_a_new_pipeline_may_not_bear_the_name_of_anothers_slot(pipeline: dict[str, Any], key: str) -> None:
    """One that bears it already is still read, to be taken away."""
    with pytest.raises(UsageError, match=f"^{key}: rows_of_shop begins with rows_of_"):
        refuse_names(load_pipeline(pipeline))
