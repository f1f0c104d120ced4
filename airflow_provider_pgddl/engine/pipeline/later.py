"""What may become of each key of the pipeline file once setup has recorded it: the one table of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Later:
    """`free`: any stage takes a new value up. `reconfigure`: that command does, and `why` says what comes of it.
    `reset`: nothing does but a new beginning, and `why` says for what reason."""

    how: Literal["free", "reconfigure", "reset"]
    why: str = ""


_FREE = Later("free")
_MOVED = Later("reconfigure", "a server that has moved: the same one, or a standby of it that was promoted")
_TABLES = Later("reconfigure", "tables that come are captured and copied, tables that go are released")
_ROWS = Later("reconfigure", "rows that the change concerns are read again")
_JUDGED = Later("reconfigure", "for DDL that is read from then on; what is recorded stays as it was judged")
_AT_THE_SWAP = Later("reconfigure", "it is for the swap, which is still to come")
_CAPTURE = "changes that are under way are captured by it"

# Who works, how fast and how patiently is free: nothing of it is in what has been copied already. So is what a person
# decides when two schemas differ, which is never known at setup: columns that are new from then on are read again.
KEYS: Mapping[str, Later] = {
    "pipeline": Later("reset", "it names all that is recorded and captured"),
    "source.conn_id": _MOVED,
    "source.dsn": _MOVED,
    "source.dsn_command": _MOVED,
    "target.conn_id": _MOVED,
    "target.dsn": _MOVED,
    "target.dsn_command": _MOVED,
    "trusted_roles": _FREE,
    "tables.include": _TABLES,
    "tables.exclude": _TABLES,
    "tables.schema_only": _TABLES,
    "tables.skip_columns": _FREE,
    "tables.where": _ROWS,
    "tables.transform": _ROWS,
    "tables.operations": Later("reset", "what the source has deleted is on the target, or is not"),
    "tables.existing": Later("reset", "it says how the tables came that are recorded"),
    "tables.keep_extra": _FREE,
    "tables.keyless": Later("reconfigure", "for tables without a key that are not recorded yet"),
    "capture.rows": Later("reset", _CAPTURE),
    "capture.ddl": Later("reset", _CAPTURE),
    "capture.identities": Later("reset", "events that are recorded have none"),
    "capture.on_slot_lost": _FREE,
    "capture.max_retained_wal": _FREE,
    "capture.failover": Later("reset", "slots are made with it"),
    "ddl.scope": _JUDGED,
    "ddl.schemas": _JUDGED,
    "ddl.tags": _JUDGED,
    "ddl.create_tags": _JUDGED,
    "ddl.drop_tags": _JUDGED,
    "ddl.blocked_tags": _JUDGED,
    "ddl.exclude_alter_table_subcommands": _JUDGED,
    "ddl.multi_statements": _JUDGED,
    "ddl.out_of_scope_references": _JUDGED,
    "ddl.missing_role": _JUDGED,
    "ddl.ddl_only": Later("reset", "no row has been captured, or all have been copied"),
    "ddl.on_failure": _JUDGED,
    "ddl.approval": _JUDGED,
    "ddl.lock_safe": _FREE,
    "ddl.lock_timeout": _FREE,
    "ddl.retry_for": _FREE,
    "ddl.signal_blockers": _FREE,
    "schema.validation": _FREE,
    "schema.validation_interval": _FREE,
    "schema.source_added_columns": _FREE,
    "schema.target_added_columns": _FREE,
    "schema.source_removed_columns": _FREE,
    "schema.target_added_constraints": _FREE,
    "schema.type_mismatches": _FREE,
    "schema.safe_casts_allowed": _FREE,
    "schema.allow_type_cast": _FREE,
    "schema.allow_schema_drift": _FREE,
    "schema.preserve_columns": _FREE,
    "schema.null_removed_columns": _FREE,
    "schema.auto_migrate.types": _FREE,
    "schema.auto_migrate.approval": _FREE,
    "schema.overrides.<table>.validation": _FREE,
    "schema.overrides.<table>.source_added_columns": _FREE,
    "schema.overrides.<table>.target_added_columns": _FREE,
    "schema.overrides.<table>.source_removed_columns": _FREE,
    "schema.overrides.<table>.target_added_constraints": _FREE,
    "schema.overrides.<table>.type_mismatches": _FREE,
    "schema.overrides.<table>.safe_casts_allowed": _FREE,
    "schema.overrides.<table>.allow_type_cast": _FREE,
    "schema.overrides.<table>.skip_columns": _FREE,
    "schema.force": _FREE,
    "rewrite.<table>.alter": _TABLES,
    "rewrite.<table>.partition_by.column": _TABLES,
    "rewrite.<table>.partition_by.range": _TABLES,
    "rewrite.<table>.partition_by.list": _TABLES,
    "rewrite.<table>.partition_by.hash": _TABLES,
    "rewrite.<table>.partition_by.ahead": _TABLES,
    "rewrite.<table>.partition_by.default_partition": _TABLES,
    "rewrite.<table>.order_by": _TABLES,
    "backfill.chunk_bytes": Later("reconfigure", "for tables whose chunks are laid out from then on"),
    "backfill.workers": _FREE,
    "backfill.throttle.max_replica_lag": _FREE,
    "backfill.throttle.max_active_backends": _FREE,
    "backfill.throttle.query": _FREE,
    "replay.window_rows": _FREE,
    "replay.until_lag": _FREE,
    "replay.run_for": _FREE,
    "follow.finish": Later("reconfigure", "it can be turned on; what it has brought stays until a reset"),
    "verify.before_swap": _AT_THE_SWAP,
    "swap.lock_timeout": _FREE,
    "swap.retries": _FREE,
    "swap.fence": _AT_THE_SWAP,
    "swap.keep_old": _AT_THE_SWAP,
    "swap.signal_blockers": _FREE,
    "swap.recreate_materialized_views": _FREE,
    "swap.way_back": _FREE,
    "spark.conn_id": _FREE,
    "spark.master": _FREE,
    "spark.conf": _FREE,
    "spark.begin": _FREE,
    "spark.wait": _FREE,
    "spark.secrets.file": _FREE,
    "spark.allow_plaintext": _FREE,
}

_BEGINNINGS = {key.partition(".<table>")[0]: later for key, later in KEYS.items()}


def later_of(path: str) -> Later:
    """Of a place in a file: `tables.where.shop.orders`, `rewrite.shop.orders.alter`. What nobody knows asks for a
    reset."""
    for key, later in _BEGINNINGS.items():
        if path == key or path.startswith(f"{key}."):
            return later
    return Later("reset", "this version does not know it")
