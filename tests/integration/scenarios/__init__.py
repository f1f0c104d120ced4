"""What a developer runs, and what must come of it: statements → verdict and effect, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Of one group that names them.
CREATE = (
    "ALTER AGGREGATE", "ALTER COLLATION", "ALTER DEFAULT PRIVILEGES", "ALTER DOMAIN", "ALTER FUNCTION", "ALTER INDEX",
    "ALTER MATERIALIZED VIEW", "ALTER POLICY", "ALTER PROCEDURE", "ALTER ROUTINE", "ALTER RULE", "ALTER SCHEMA",
    "ALTER SEQUENCE", "ALTER STATISTICS", "ALTER TABLE", "ALTER TRIGGER", "ALTER TYPE", "ALTER VIEW", "COMMENT",
    "CREATE AGGREGATE", "CREATE CAST", "CREATE COLLATION", "CREATE DOMAIN", "CREATE EXTENSION", "CREATE FUNCTION",
    "CREATE INDEX", "CREATE MATERIALIZED VIEW", "CREATE OPERATOR", "CREATE POLICY", "CREATE PROCEDURE",
    "CREATE PUBLICATION", "CREATE RULE", "CREATE SCHEMA", "CREATE SEQUENCE", "CREATE STATISTICS", "CREATE TABLE",
    "CREATE TRIGGER", "CREATE TYPE", "CREATE VIEW", "GRANT", "REINDEX", "REVOKE",
)  # fmt: skip
DROP = (
    "DROP AGGREGATE", "DROP CAST", "DROP COLLATION", "DROP DOMAIN", "DROP EXTENSION", "DROP FUNCTION", "DROP INDEX",
    "DROP MATERIALIZED VIEW", "DROP OPERATOR", "DROP OWNED", "DROP POLICY", "DROP PROCEDURE", "DROP PUBLICATION",
    "DROP ROUTINE", "DROP RULE", "DROP SCHEMA", "DROP SEQUENCE", "DROP STATISTICS", "DROP TABLE", "DROP TRIGGER",
    "DROP TYPE", "DROP VIEW",
)  # fmt: skip
ROWS = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "ROLLBACK")
ALL_TAGS = {"create_tags": CREATE, "drop_tags": DROP, "blocked_tags": ROWS}
APP = {"schemas": "^app", "blocked_tags": ROWS}  # all tags are the default

# The `ddl` section of one pipeline each; both transports have their own.
GROUPS: Mapping[str, Mapping[str, Any]] = {
    "schemas": APP,
    "everything": {"scope": "everything", **ALL_TAGS},
    "peers": {"schemas": "^app", "tags": "pgl_ddl_deploy"},
    "cautious": {  # everything that makes a rule stricter and can be told from the others
        **APP,
        "multi_statements": "safe_only",
        "out_of_scope_references": "unhandled",
        "missing_role": "fail",
    },
    "rows": APP,
    "replicated tables": {"scope": "replicated_tables"},
    "approval": {**APP, "approval": "required"},
    "single": {
        **APP,
        "multi_statements": "single_only",
        "exclude_alter_table_subcommands": "common",
        "missing_role": {"pgddl_gone": "pgddl_other"},
        "on_failure": "queue",
    },
}  # fmt: skip

# These two move rows. Copying them again for each scenario takes too long: a scenario has tables of its own.
WITH_ROWS = {"rows", "replicated tables"}
TABLES = """
CREATE SCHEMA app; CREATE SCHEMA app_two; CREATE SCHEMA app_three; CREATE SCHEMA other;
CREATE TABLE app.our_orders (id int PRIMARY KEY, note text);
CREATE TABLE app.our_customers (id int PRIMARY KEY, note text);
CREATE TABLE app.our_renamed (id int PRIMARY KEY, note text);
CREATE TABLE app.our_moved (id int PRIMARY KEY, note text);
CREATE TABLE app.our_dropped (id int PRIMARY KEY, note text);
CREATE TABLE app.our_leaving (id int PRIMARY KEY, note text);
CREATE TABLE app.our_events (id int PRIMARY KEY, what text) PARTITION BY RANGE (id);
CREATE TABLE app.our_events_1 PARTITION OF app.our_events FOR VALUES FROM (0) TO (100);
CREATE TABLE app.unlisted (id int PRIMARY KEY);
CREATE TABLE app_three.alone (id int PRIMARY KEY);
CREATE TABLE other.orders (id int PRIMARY KEY);
INSERT INTO app.our_orders SELECT i, 'n' FROM generate_series(1, 100) i;
"""
INCLUDE = ["app.our_*", "app_three.*"]


@dataclass(frozen=True)
class Scenario:
    """One thing that a developer does. Each string is sent as it is, with autocommit, all through one session."""

    run: str | Sequence[str]
    """Begins with `!` where the source must refuse it."""
    expect: str | Sequence[str] = "applied"
    """One for each event, in order: ``applied``, ``rebuilt`` (applied, from metadata), or ``<status>: <words of why>``.
    """
    before: str | Sequence[str] = ()
    """What is there already, on both sides."""
    group: str = "schemas"
    differs: str | Sequence[str] = ()
    """Facts that the two catalogs do not share in the end, in order, each by words of its own: ``- `` the source's
    alone, ``+ `` the target's. One string: there are some, and these words are in each."""
    notes: str | Sequence[str] = ()
    """Words of what is noted with the events."""
    target: str | Sequence[str] = ()
    """Run on the target first, behind the pipeline's back."""
    holding: str = ""
    """A transaction of somebody else on the target, open while the pipeline applies."""
    ddl: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the pipeline that may change while it runs."""
    blocked: str | None = None
    """Words of what the stage reports as stopped; '' for nothing. None: whatever event waits for a person."""
    stops: str = ""
    """Words of the error with which the stage ends."""
    by_hand: str | Sequence[str] = ()
    """Then run on the target by a person, and the stage once more."""
    then: str | Sequence[str] = ()
    """What `expect` is after that."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Words of the source's facts that are others on the target."""
    check: tuple[str, Any] | None = None
    """A query on the target in the end, and its one value."""


def lines(strings: str | Sequence[str]) -> list[str]:
    return [strings] if isinstance(strings, str) else list(strings)
