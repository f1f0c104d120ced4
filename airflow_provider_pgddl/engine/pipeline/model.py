"""The keys of the pipeline file, with their defaults."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr

from airflow_provider_pgddl.engine.ddl.subcommands import KNOWN
from airflow_provider_pgddl.engine.pipeline.endpoint import ConnId, Endpoint
from airflow_provider_pgddl.engine.pipeline.fields import NULL, OFF, Bytes, Count, Flag, Seconds, Section, Text
from airflow_provider_pgddl.engine.pipeline.key_positions import ORIGIN, KeyPath, Origin
from airflow_provider_pgddl.engine.pipeline.names import (
    ColumnName,
    Pattern,
    SqlType,
    Table,
    TableColumnName,
    TableName,
    column_name,
    exact_columns,
    table_name,
)

# `ddl.tags: all`: what can be carried. Not in it is what is set up by people on each side, or holds their passwords
# (publications, subscriptions, user mappings), and what leaves no definition behind (REFRESH, REINDEX).
_MADE = (
    "ACCESS METHOD", "AGGREGATE", "CAST", "COLLATION", "CONVERSION", "DOMAIN", "EXTENSION", "FOREIGN DATA WRAPPER",
    "FOREIGN TABLE", "FUNCTION", "INDEX", "LANGUAGE", "MATERIALIZED VIEW", "OPERATOR", "OPERATOR CLASS",
    "OPERATOR FAMILY", "POLICY", "PROCEDURE", "RULE", "SCHEMA", "SEQUENCE", "SERVER", "STATISTICS", "TABLE",
    "TEXT SEARCH CONFIGURATION", "TEXT SEARCH DICTIONARY", "TEXT SEARCH PARSER", "TEXT SEARCH TEMPLATE",
    "TRANSFORM", "TRIGGER", "TYPE", "VIEW",
)  # fmt: skip
_NEVER_ALTERED = {"ACCESS METHOD", "CAST", "TRANSFORM"}
ALL_CREATE_TAGS = (
    *(f"CREATE {kind}" for kind in _MADE), *(f"ALTER {kind}" for kind in _MADE if kind not in _NEVER_ALTERED),
    "ALTER DEFAULT PRIVILEGES", "ALTER ROUTINE", "COMMENT", "GRANT", "REVOKE", "SECURITY LABEL",
)  # fmt: skip
ALL_DROP_TAGS = (*(f"DROP {kind}" for kind in _MADE), "DROP OWNED", "DROP ROUTINE")

# `ddl.tags: pgl_ddl_deploy`: the installed lists of pgl_ddl_deploy 2.1/2.2
CREATE_TAGS = (
    "ALTER TABLE", "CREATE SEQUENCE", "ALTER SEQUENCE", "CREATE SCHEMA", "CREATE TABLE", "CREATE FUNCTION",
    "ALTER FUNCTION", "CREATE TYPE", "ALTER TYPE", "CREATE VIEW", "ALTER VIEW", "COMMENT", "CREATE RULE",
    "CREATE TRIGGER", "ALTER TRIGGER",
)  # fmt: skip
DROP_TAGS = ("DROP SCHEMA", "DROP TABLE", "DROP FUNCTION", "DROP TYPE", "DROP VIEW", "DROP SEQUENCE")
# With `scope: replicated_tables` nothing else can be attributed to a replicated table.
REPLICATED_TABLES_TAGS = ("ALTER TABLE", "COMMENT")
BLOCKED_TAGS = (
    "INSERT", "UPDATE", "DELETE", "TRUNCATE", "ROLLBACK", "CREATE EXTENSION", "ALTER EXTENSION", "DROP EXTENSION",
)  # fmt: skip
# pgl_ddl_deploy.common_exclude_alter_table_subcommands(); asked for by the word `common`, nothing is cut by default.
COMMON_ALTER_TABLE_SUBCOMMANDS = (
    "ADD CONSTRAINT", "ADD CONSTRAINT (and recurse)", "(re) ADD CONSTRAINT", "ALTER CONSTRAINT",
    "VALIDATE CONSTRAINT", "VALIDATE CONSTRAINT (and recurse)", "ADD (processed) CONSTRAINT",
    "ADD CONSTRAINT (using index)", "DROP CONSTRAINT", "DROP CONSTRAINT (and recurse)", "SET LOGGED",
    "SET UNLOGGED", "SET TABLESPACE", "SET RELOPTIONS", "RESET RELOPTIONS", "REPLACE RELOPTIONS", "ENABLE TRIGGER",
    "ENABLE TRIGGER (always)", "ENABLE TRIGGER (replica)", "DISABLE TRIGGER", "ENABLE TRIGGER (all)",
    "DISABLE TRIGGER (all)", "ENABLE TRIGGER (user)", "DISABLE TRIGGER (user)", "ENABLE RULE", "ENABLE RULE (always)",
    "ENABLE RULE (replica)", "DISABLE RULE", "SET OPTIONS",
)  # fmt: skip


def _tag(text: str) -> str:
    tag = " ".join(text.upper().split())
    if not re.fullmatch(r"[A-Z]+( [A-Z]+)*", tag):
        raise ValueError("expected a command tag, such as CREATE TABLE")
    return tag


def _subcommands(value: object) -> object:
    return list(COMMON_ALTER_TABLE_SUBCOMMANDS) if value == "common" else value


def _subcommand(text: str) -> str:
    known = {name.upper(): name for name in KNOWN}
    name = " ".join(text.upper().split())
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {known[close[0]]}?" if close else ""
        raise ValueError(f"{text} is no subcommand of ALTER TABLE{hint}")
    return known[name]


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


Tag = Annotated[str, AfterValidator(_tag)]


class Tables(Section):
    include: tuple[Pattern, ...] = ()
    exclude: tuple[Pattern, ...] = ()
    schema_only: tuple[Pattern, ...] = ()
    skip_columns: dict[TableName, tuple[ColumnName, ...]] = Field(default_factory=dict)
    existing: Literal["refuse", "adopt", "replace"] = "refuse"
    keyless: Literal["refuse", "copy_at_swap"] = "refuse"


class Capture(Section):
    rows: Literal["change_log", "wal", "direct_trigger", "none"] = "change_log"
    # None until the file is read: then `wal` where rows is wal, else `queue`.
    ddl: Annotated[Literal["queue", "wal", "off"] | None, OFF] = None
    identities: Flag = False
    on_slot_lost: Literal["fail", "restart_tables"] = "fail"
    max_retained_wal: Bytes = 50 << 30
    failover: Flag = False

    def model_post_init(self, _context: Any, /) -> None:
        if self.ddl is None:
            object.__setattr__(self, "ddl", "wal" if self.rows == "wal" else "queue")


class Ddl(Section):
    scope: Literal["replicated_tables", "schemas", "everything"] = "schemas"
    schemas: Annotated[str, Field(strict=True), AfterValidator(_regex)] = ".*"
    tags: Literal["all", "pgl_ddl_deploy"] = "all"
    # None until the file is read: then the lists of `tags` for this scope.
    create_tags: tuple[Tag, ...] | None = None
    drop_tags: tuple[Tag, ...] | None = None
    blocked_tags: tuple[Tag, ...] = BLOCKED_TAGS
    exclude_alter_table_subcommands: Annotated[
        tuple[Annotated[Text, AfterValidator(_subcommand)], ...], BeforeValidator(_subcommands)
    ] = ()
    multi_statements: Literal["split", "safe_only", "single_only"] = "split"
    out_of_scope_references: Literal["strip", "unhandled"] = "strip"
    missing_role: Literal["ignore", "fail"] | dict[Text, Text] = "ignore"
    ddl_only: Flag = False
    on_failure: Literal["stop", "queue"] = "stop"
    approval: Literal["auto", "required"] = "auto"
    lock_safe: Flag = True
    lock_timeout: Seconds = 3.0
    retry_for: Seconds = 600.0
    signal_blockers: Annotated[Literal["off", "cancel", "terminate", "cancel_then_terminate"], OFF] = "off"

    def model_post_init(self, _context: Any, /) -> None:
        narrow, everything = self.scope == "replicated_tables", self.tags == "all"
        if self.create_tags is None:
            tags = self._unblocked(ALL_CREATE_TAGS) if everything else CREATE_TAGS
            object.__setattr__(self, "create_tags", REPLICATED_TABLES_TAGS if narrow else tags)
        if self.drop_tags is None:
            tags = self._unblocked(ALL_DROP_TAGS) if everything else DROP_TAGS
            object.__setattr__(self, "drop_tags", () if narrow else tags)

    def _unblocked(self, tags: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(tag for tag in tags if tag not in self.blocked_tags)


SourceAdded = Literal["stop", "skip", "add"]
TargetAdded = Literal["allow", "stop"]
SourceRemoved = Annotated[Literal["stop", "preserve", "null", "drop"], NULL]
TypeMismatches = Literal["stop", "cast_if_safe", "cast_always"]
TargetConstraints = Literal["stop", "allow"]
Drift = Literal["source_superset", "target_superset", "type_casts", "all"]
Validation = Annotated[
    Literal["strict", "warn_only", "disabled"],
    BeforeValidator(lambda value: "warn_only" if value == "permissive" else value),
]


class Overrides(Section):
    """One table's own policy; None takes the pipeline's."""

    validation: Validation | None = None
    source_added_columns: SourceAdded | None = None
    target_added_columns: TargetAdded | None = None
    # `null` is a value here, so "not overridden" cannot be None: it is the word of the default.
    source_removed_columns: Annotated[Literal["inherit", "stop", "preserve", "null", "drop"], NULL] = "inherit"
    target_added_constraints: TargetConstraints | None = None
    type_mismatches: TypeMismatches | None = None
    safe_casts_allowed: Flag | None = None
    allow_type_cast: dict[ColumnName, SqlType] | None = None
    skip_columns: tuple[ColumnName, ...] | None = None


class AutoMigrate(Section):
    types: tuple[Literal["add_column", "safe_type_change"], ...] = ()
    approval: Literal["required", "auto"] = "required"


class SchemaPolicy(Section):
    validation: Validation = "strict"
    validation_interval: Seconds = 60.0
    source_added_columns: SourceAdded = "stop"
    target_added_columns: TargetAdded = "allow"
    source_removed_columns: SourceRemoved = "stop"
    target_added_constraints: TargetConstraints = "stop"
    type_mismatches: TypeMismatches = "stop"
    safe_casts_allowed: Flag = True
    allow_type_cast: dict[TableColumnName, SqlType] = Field(default_factory=dict)
    allow_schema_drift: Annotated[
        tuple[Drift, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
    ] = ()
    preserve_columns: dict[TableName, tuple[ColumnName, ...]] = Field(default_factory=dict)
    null_removed_columns: dict[TableName, tuple[ColumnName, ...]] = Field(default_factory=dict)
    auto_migrate: AutoMigrate = Field(default_factory=AutoMigrate)
    overrides: dict[TableName, Overrides] = Field(default_factory=dict)
    force: Flag = False


PERIODS = ("day", "week", "month", "quarter", "year")


def _width(value: object) -> object:
    """What one partition of a range holds: a word for dates, a width for numbers."""
    if value is None or value in PERIODS or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError(f"expected {', '.join(PERIODS)}, or for numbers a width such as 1000000")


def _listed(value: object) -> object:
    """``true``, or each partition's values: one, or a list of some."""
    wanted = "expected true (a partition a value), or each partition's value or values, such as [eu, [us, ca]]"
    if value is None or value is True:
        return value
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(wanted)
    entries = [tuple(entry) if isinstance(entry, list | tuple) else (entry,) for entry in value]
    if not all(entry and all(isinstance(x, str | int) for x in entry) for entry in entries):
        raise ValueError(wanted)
    texts = [str(x).lower() if isinstance(x, bool) else str(x) for entry in entries for x in entry]
    if len(set(texts)) < len(texts):
        raise ValueError("a value stands in it twice")
    return entries


class PartitionBy(Section):
    """How a table is partitioned from the swap on: by one of `range`, `list` and `hash`."""

    column: ColumnName
    range: Annotated[str | int | None, BeforeValidator(_width)] = None
    list: Annotated[bool | tuple[tuple[str | int, ...], ...] | None, BeforeValidator(_listed)] = None
    hash: Annotated[int | None, Field(strict=True, ge=2, le=1000)] = None
    ahead: Annotated[int, Field(strict=True, ge=0, le=1000)] = 3
    default_partition: Flag = False

    @property
    def method(self) -> str:
        return "range" if self.range is not None else "list" if self.list is not None else "hash"


class Rewrite(Section):
    """What becomes of one table in place; all left out: the same table without its bloat."""

    alter: tuple[Text, ...] = ()
    partition_by: PartitionBy | None = None
    order_by: tuple[ColumnName, ...] = ()


class Throttle(Section):
    max_replica_lag: Seconds | None = None
    max_active_backends: Count | None = None
    query: Text | None = None


class Backfill(Section):
    # A chunk is at least one page; far below a megabyte the ledger costs more than the copying.
    chunk_bytes: Annotated[Bytes, Field(ge=8192)] = 64 << 20
    workers: Annotated[int, Field(strict=True, ge=1, le=256)] = 4
    throttle: Throttle = Field(default_factory=Throttle)


class Replay(Section):
    window_rows: Count = 100_000
    until_lag: Seconds = 1.0


class Follow(Section):
    finish: Flag = False


class Verify(Section):
    before_swap: Flag = True


class Swap(Section):
    # Writers queue behind us for this long at each try (C15).
    lock_timeout: Annotated[Seconds, Field(ge=0.001, le=60)] = 0.05
    retries: Count = 200
    fence: Literal["none", "read_only", "lock"] = "none"
    keep_old: Flag = True
    # In place: what becomes of a transaction that has been in the way of the locks for a second.
    signal_blockers: Annotated[Literal["off", "cancel", "terminate", "cancel_then_terminate"], OFF] = "off"
    # In place: dropped, made again and filled under the lock.
    recreate_materialized_views: Flag = False


class Spark(Section):
    """`conn_id` is what operators submit through; `master` is what the shell submits to."""

    conn_id: ConnId = "spark_default"
    master: Text | None = None


class Pipeline(Section):
    """One pipeline file, validated, with every default filled in."""

    pipeline: Annotated[str, Field(strict=True, pattern=r"^[a-z][a-z0-9_]{0,39}$")]
    source: Endpoint
    target: Endpoint | None = None
    trusted_roles: tuple[Text, ...] = ()
    tables: Tables = Field(default_factory=Tables)
    capture: Capture = Field(default_factory=Capture)
    ddl: Ddl = Field(default_factory=Ddl)
    schema_: SchemaPolicy = Field(default_factory=SchemaPolicy, alias="schema")
    rewrite: dict[TableName, Rewrite] = Field(default_factory=dict)
    backfill: Backfill = Field(default_factory=Backfill)
    replay: Replay = Field(default_factory=Replay)
    follow: Follow = Field(default_factory=Follow)
    verify: Verify = Field(default_factory=Verify)
    swap: Swap = Field(default_factory=Swap)
    spark: Spark = Field(default_factory=Spark)

    _origin: Origin = PrivateAttr(default=Origin("pipeline", {}))

    @property
    def origin(self) -> Origin:
        """The file that it was read from; none where it was given as a dict."""
        return self._origin

    @property
    def in_place(self) -> bool:
        return self.target is None

    @property
    def moves_rows(self) -> bool:
        """Whether rows travel, or only DDL does."""
        return not self.ddl.ddl_only

    @property
    def by_slot(self) -> bool:
        """Whether a logical slot fills the change logs, which are on the target then."""
        return self.capture.rows == "wal"

    @cached_property
    def rewrites(self) -> dict[Table, Rewrite]:
        """`rewrite` by exact (schema, table)."""
        return {table_name(name): rewrite for name, rewrite in self.rewrite.items()}

    @cached_property
    def skipped_columns(self) -> dict[Table, tuple[str, ...]]:
        """`tables.skip_columns` and what `schema.overrides` adds to it, by exact (schema, table)."""
        skipped = exact_columns(self.tables.skip_columns)
        for name, overrides in self.schema_.overrides.items():
            if overrides.skip_columns:
                table = table_name(name)
                columns = map(column_name, overrides.skip_columns)
                skipped[table] = tuple(dict.fromkeys((*skipped.get(table, ()), *columns)))
        return skipped

    def where(self, *path: str | int) -> str:
        """Where a key stands, for messages: `pipeline.yaml, line 7: tables.include`."""
        return self.origin.where(path)

    def to_json(self) -> dict[str, Any]:
        """Everything, defaults included, as JSON that `load_pipeline` takes back; no secret is in it."""
        tree = self.model_dump(mode="json", by_alias=True)
        for overrides in tree["schema"]["overrides"].values():
            # An override that is not given must not come back as the value `null`.
            for key in [key for key, value in overrides.items() if value in (None, "inherit")]:
                del overrides[key]
        tree[ORIGIN] = self._origin.to_json()
        return tree


def column_lists(pipeline: Pipeline) -> Iterator[tuple[KeyPath, Mapping[str, tuple[str, ...]]]]:
    """The keys that hold columns by their table."""
    yield ("tables", "skip_columns"), pipeline.tables.skip_columns
    yield ("schema", "preserve_columns"), pipeline.schema_.preserve_columns
    yield ("schema", "null_removed_columns"), pipeline.schema_.null_removed_columns
