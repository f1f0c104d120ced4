"""The keys of the pipeline file, with their defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr

from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.endpoint import Endpoint
from airflow_provider_pgddl.engine.pipeline.expressions import RowsRead, expression
from airflow_provider_pgddl.engine.pipeline.fields import NULL, OFF, Bytes, Count, Flag, Seconds, Section, Text
from airflow_provider_pgddl.engine.pipeline.key_positions import ORIGIN, KeyPath, Origin
from airflow_provider_pgddl.engine.pipeline.names import (
    ColumnName,
    SqlType,
    TableColumnName,
    TableName,
    column_name,
    exact_columns,
    table_name,
)
from airflow_provider_pgddl.engine.pipeline.rewrite import Rewrite
from airflow_provider_pgddl.engine.pipeline.spark import Spark
from airflow_provider_pgddl.engine.pipeline.tables import Tables
from airflow_provider_pgddl.engine.pipeline.tags import (
    ALL_CREATE_TAGS,
    ALL_DROP_TAGS,
    BLOCKED_TAGS,
    CREATE_TAGS,
    DROP_TAGS,
    DROPS_OF_TABLES,
    REPLICATED_TABLES_TAGS,
    Subcommands,
    Tag,
)


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


class Capture(Section):
    rows: Literal["change_log", "wal", "direct_trigger", "none"] = "change_log"
    """How changes of rows are found: triggers that log keys, a logical slot, triggers that write to the copy once it is
    built (in place), not at all.
    """
    # None until the file is read: then `wal` where rows is wal, else `queue`.
    ddl: Annotated[Literal["queue", "wal", "off"] | None, OFF] = None
    """How captured DDL travels: rows of a table, or logical messages in the WAL, which need wal_level logical and a
    slot (default `wal` where `rows` is `wal`). Both need a superuser on the source. `off`: DDL under way stops its
    table.
    """
    identities: Flag = False
    """Installs the set `injector` on the source: identities of tables and columns that survive dump and restore, which
    captured events then carry.
    """
    on_slot_lost: Literal["fail", "restart_tables"] = "fail"
    """Where the slot of `rows: wal` was lost, dropped or read by somebody else: fail, or make a new one and read every
    table again. A slot for DDL that is lost fails in any case.
    """
    max_retained_wal: Bytes = 50 << 30
    """How much of the source's WAL the slot of `rows: wal` may keep back, once all is read, before the stage stops with
    exit code 5.
    """
    failover: Flag = False
    """With `rows: wal`: standbys keep its slots in step (Postgres 17 and newer). With `swap.way_back` it holds for the
    server, or the servers, that can.
    """

    def model_post_init(self, _context: Any, /) -> None:
        if self.ddl is None:
            object.__setattr__(self, "ddl", "wal" if self.rows == "wal" else "queue")


class Ddl(Section):
    scope: Literal["replicated_tables", "schemas", "everything"] = "schemas"
    """Which DDL follows: on the pipeline's own tables, in whole schemas, or all ([in scope](ddl.md#in-scope))."""
    schemas: Annotated[str, Field(strict=True), AfterValidator(_regex)] = ".*"
    """The schemas of `scope: schemas`. It may match anywhere in the name, whatever the case. Type: regular expression.
    """
    tags: Literal["all", "pgl_ddl_deploy"] = "all"
    """What the two lists below are where they are not given: all that can be carried, or what pgl_ddl_deploy has
    ([both](ddl.md#the-lists)).
    """
    # None until the file is read: then the lists of `tags` for this scope.
    create_tags: tuple[Tag, ...] | None = None
    """Commands that follow."""
    drop_tags: tuple[Tag, ...] | None = None
    """Drops that follow."""
    blocked_tags: tuple[Tag, ...] = BLOCKED_TAGS
    """Commands that never do."""
    exclude_alter_table_subcommands: Subcommands = ()
    """Subcommands that are cut out of an ALTER TABLE, the rest of which is applied. `common` stands for a list of
    pgl_ddl_deploy ([the lists](ddl.md#the-lists)). Type: list, or `common`.
    """
    multi_statements: Literal["split", "safe_only", "single_only"] = "split"
    """A string of many statements: taken apart; only where it neither writes rows nor calls anything; or never."""
    out_of_scope_references: Literal["strip", "unhandled"] = "strip"
    """A statement that reaches out of scope: that part is cut out, or a person decides."""
    missing_role: Literal["ignore", "fail"] | dict[Text, Text] = "ignore"
    """A role that the target lacks: leave out what needs it (captured DDL of such a role fails, or runs as ourselves
    where the source trusts it), or refuse, or put another in its place.
    """
    ddl_only: Flag = False
    """DDL follows, rows do not: a pipeline for as long as wanted, without a swap."""
    on_failure: Literal["stop", "queue"] = "stop"
    """DDL that fails on the target: all behind it waits; or what follows a failed view or function goes on."""
    approval: Literal["auto", "required"] = "auto"
    """Whether a person lets DDL through, by `pgddl ddl approve`."""
    lock_safe: Flag = True
    """DDL takes its locks in short tries, so that nobody queues behind them for long."""
    lock_timeout: Seconds = 3.0
    """One such try."""
    retry_for: Seconds = 600.0
    """How long DDL that waits for a lock, and a chunk or a window that gives way to others, is tried again with nothing
    done in between (of chunks and windows only the pauses and the waiting for locks count); then exit code 5.
    """
    signal_blockers: Annotated[Literal["off", "cancel", "terminate", "cancel_then_terminate"], OFF] = "off"
    """What becomes of sessions that have stood in the way of DDL for `lock_timeout`."""

    def model_post_init(self, _context: Any, /) -> None:
        narrow, everything = self.scope == "replicated_tables", self.tags == "all"
        if self.create_tags is None:
            tags = self._unblocked(ALL_CREATE_TAGS) if everything else CREATE_TAGS
            object.__setattr__(self, "create_tags", REPLICATED_TABLES_TAGS if narrow else tags)
        if self.drop_tags is None:
            tags = self._unblocked(ALL_DROP_TAGS) if everything else DROP_TAGS
            object.__setattr__(self, "drop_tags", () if narrow else tags)

    @property
    def other_roles(self) -> dict[str, str]:
        """Roles of the source by their names on the target, where `missing_role` gives another."""
        return self.missing_role if isinstance(self.missing_role, dict) else {}

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
    """One table's own policy. It wins over the key of the same name under `schema`."""

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
    """What is changed on the target: columns that only the source has are added, types widened to the source's where
    that keeps every value.
    """
    approval: Literal["required", "auto"] = "required"
    """Whether it waits for `pgddl schema sync --apply`."""


class SchemaPolicy(Section):
    validation: Validation = "strict"
    """A mismatch stops its table; or is a warning, and rows go on with what both sides have; or is not looked for. What
    a row cannot be written with (no table, no privilege, a NOT NULL column that gets no value, a key that differs)
    stops the table in any case. `disabled` needs `force`. `permissive` is another word for `warn_only`.
    """
    validation_interval: Seconds = 60.0
    """How often schemas are compared: while backfill copies, during replay beside what its windows see, and by a gate
    that waits in the triggerer.
    """
    source_added_columns: SourceAdded = "stop"
    """A column that only the source has: stop the table, leave the column out (needs `force`), or add it to the target
    and read its values for rows copied before.
    """
    target_added_columns: TargetAdded = "allow"
    """A column that only the target has, and never the source. What is NOT NULL without a default stops the table in
    any case.
    """
    source_removed_columns: SourceRemoved = "stop"
    """A column that the source has lost: stop the table, keep its values on the target, make them NULL as rows are
    written (needs `force`), or drop it (needs `force`).
    """
    target_added_constraints: TargetConstraints = "stop"
    """CHECK, UNIQUE, exclusion and NOT NULL that only the target has. With `allow` a row that one of them refuses stops
    the table.
    """
    type_mismatches: TypeMismatches = "stop"
    """Types that differ: casts that can change or refuse a value stop the table, or are made (`cast_always`, needs
    `force`).
    """
    safe_casts_allowed: Flag = True
    """Whether `stop` lets casts pass that keep every value, such as integer to bigint. `cast_if_safe` always does."""
    allow_type_cast: dict[TableColumnName, SqlType] = Field(default_factory=dict)
    """A cast that is made although it can change values, as long as the target's column has this type. Needs `force`.
    """
    allow_schema_drift: Annotated[
        tuple[Drift, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
    ] = ()
    """In one word: `source_added_columns: skip`; `target_added_columns: allow` and `source_removed_columns: preserve`;
    `type_mismatches: cast_always`; all of them and `target_added_constraints: allow`. All but target_superset need
    `force`. Type: list of source_superset, target_superset, type_casts, all; or one of them.
    """
    preserve_columns: dict[TableName, tuple[ColumnName, ...]] = Field(default_factory=dict)
    """Columns of the target that the source has lost and whose values stay."""
    null_removed_columns: dict[TableName, tuple[ColumnName, ...]] = Field(default_factory=dict)
    """Columns of the target that the source has lost and that become NULL as rows are written. Needs `force`."""
    auto_migrate: AutoMigrate = Field(default_factory=AutoMigrate)
    overrides: dict[TableName, Overrides] = Field(default_factory=dict)
    force: Flag = False
    """Lets settings pass that can lose data."""


class Throttle(Section):
    max_replica_lag: Seconds | None = None
    """Before each chunk of backfill and each window of replay: wait while a replica of the source is further behind.
    All that stream from it count, subscribers of logical replication too; one that is not connected cannot be seen.
    Needs pg_read_all_stats.
    """
    max_active_backends: Count | None = None
    """The same, while more client sessions than this are active on the source's server, ours not counted. Needs
    pg_read_all_stats.
    """
    query: Text | None = None
    """The same, while this query on the source answers true: one statement, read only, within 5 s, the first column of
    its first row a boolean; names with their schemas. NULL or no row lets it go on.
    """


class Backfill(Section):
    # A chunk is at least one page; far below a megabyte the ledger costs more than the copying.
    chunk_bytes: Annotated[Bytes, Field(ge=8192)] = 64 << 20
    """One chunk on disk, TOAST counted in. One that takes longer than 20 s is cancelled and cut, and what follows of
    its table is cut to match. Spark is started for more than four chunks' worth of work. Type: size, 8kB or more.
    """
    workers: Annotated[int, Field(strict=True, ge=1, le=256)] = 4
    """Workers of backfill and schema_sync, and of replay and verify where those are spread. In place, and where there
    is little to copy, those of backfill are sessions of the driver.
    """
    throttle: Throttle = Field(default_factory=Throttle)


class Replay(Section):
    window_rows: Count = 100_000
    """Keys that one window reads again at most, and rows of each change log that it takes at most (10,000 if that is
    more; a million as long as nobody was in the way of this run). In place also what a swap drains under its lock: with
    more, another window comes first.
    """
    until_lag: Seconds = 1.0
    """Replay ends once a window left nothing pending and took no longer, or found no change."""
    run_for: Annotated[Seconds, Field(ge=0, le=86400)] = 0.0
    """How long replay stays from its beginning on, with a window as soon as there are changes, before it ends as ever.
    Without changes it asks the source once a second. For a follow, or a way back, whose target has to be close.
    """


class Follow(Section):
    finish: Flag = False
    """Foreign keys (NOT VALID), triggers, row security, grants and comments arrive where no swap comes, and as they
    change; materialized views are filled, and REFRESH follows ([following](../how-to/follow.md)). Needs captured DDL
    and a target role that may set session_replication_role. Not in place.
    """


PipelineName = Annotated[str, Field(strict=True, pattern=r"^[a-z][a-z0-9_]{0,39}$")]


class Verify(Section):
    before_swap: Flag = True
    """The swap refuses tables that have not been compared, to the end and without a difference."""


class Swap(Section):
    # Writers queue behind us for this long at each try (C15).
    lock_timeout: Annotated[Seconds, Field(ge=0.001, le=60)] = 0.05
    """One try at a strong lock: capture's triggers, the fence, the swap. For so long writers can queue behind it; and
    behind a window that has given way five times in a row; behind the fence of a cut-over for half a second at least.
    An autovacuum in the way is cancelled by the server, where
    our role may set deadlock_timeout (GRANT SET ON PARAMETER, from 15 on).
    """
    retries: Count = 200
    """Such tries, with pauses in between; then exit code 5."""
    fence: Literal["none", "read_only", "lock"] = "none"
    """At a cut-over to a target: `read_only` makes writes to the source fail (SQLSTATE 25006) from then on, `lock`
    makes them wait until the target is ready, `none` lets them through. Not in place.
    """
    keep_old: Flag = True
    """In place, what was replaced waits in `pgddl_old_<schema>`, for a revert, until cleanup. `false`: it is dropped
    right after the swap, each table in a short transaction of its own, and nothing can be reverted.
    """
    # In place: what becomes of a transaction that has been in the way of the locks for a second.
    signal_blockers: Annotated[Literal["off", "cancel", "terminate", "cancel_then_terminate"], OFF] = "off"
    """In place, at a swap and a revert: what becomes of a session whose transaction has been in the way of our tries at
    the locks for a second. Others are never signalled, and it is not done in a dry run. Each signal is a row that
    `pgddl ddl killed` shows. Our role has to see the session (`pg_read_all_stats`) and be allowed to signal it
    (`pg_signal_backend`).
    """
    # In place: dropped, made again and filled under the lock.
    recreate_materialized_views: Flag = False
    """In place: materialized views over the table are dropped, made again and filled while it is locked, which takes as
    long as REFRESH. Otherwise they are refused.
    """
    way_back: PipelineName | None = None
    """The name of the pipeline that leads back from the target, born complete by the cut-over
    ([the way back](../how-to/way-back.md)). Needs `fence: read_only` and `verify.before_swap`. Not in place.
    """


class Pipeline(Section):
    """One pipeline file, validated, with every default filled in."""

    pipeline: PipelineName
    """Keys all state, so it is given once among pipelines that share a database. `a-z`, `0-9`, `_`, at most 40
    characters, a letter first. Type: name."""
    source: Endpoint
    target: Endpoint | None = None
    trusted_roles: tuple[Text, ...] = ()
    """Roles whose code (CHECKs, generated columns, index expressions, functions of DDL …) may run with the pipeline's
    rights. Superusers are trusted, and members of the pipeline's own role; everybody else's code runs as its table's
    owner ([security](../explanation/security.md)). Type: list of names.
    """
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
    def replaces(self) -> bool:
        """Whether tables that the target has already give way to copies at the swap."""
        return not self.in_place and self.tables.existing == "replace"

    @property
    def beside(self) -> bool:
        """Whether copies stand in schemas of their own until the swap, beside the tables whose names they get then."""
        return self.in_place or self.replaces

    @property
    def moves_rows(self) -> bool:
        """Whether rows travel, or only DDL does."""
        return not self.ddl.ddl_only

    @property
    def by_slot(self) -> bool:
        """Whether a logical slot fills the change logs, which are on the target then."""
        return self.capture.rows == "wal"

    @property
    def archives(self) -> tuple[str, ...]:
        """Where the target keeps what the source deletes, the operations that change it; else none."""
        operations = self.tables.operations
        return () if "delete" in operations else tuple(o for o in ("insert", "update") if o in operations)

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        if self.archives and "drop_tags" not in self.ddl.model_fields_set:
            # What drops a table there drops all that it keeps; a file that wants that says so.
            tags = tuple(tag for tag in self.ddl.drop_tags or () if tag not in DROPS_OF_TABLES)
            object.__setattr__(self.ddl, "drop_tags", tags)

    @cached_property
    def rewrites(self) -> dict[Name, Rewrite]:
        """`rewrite` by exact (schema, table)."""
        return {table_name(name): rewrite for name, rewrite in self.rewrite.items()}

    @cached_property
    def rows_read(self) -> dict[Name, RowsRead]:
        """`tables.where` and `tables.transform`, of tables that have one, by exact (schema, table)."""
        where = {table_name(name): expression(text) for name, text in self.tables.where.items()}
        made = {
            table_name(name): {column_name(column): expression(text) for column, text in values.items()}
            for name, values in self.tables.transform.items()
        }
        return {name: RowsRead(where.get(name), made.get(name, {})) for name in sorted({*where, *made})}

    @cached_property
    def skipped_columns(self) -> dict[Name, tuple[str, ...]]:
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
