"""The pipeline file: its pydantic model, and the checks that need no database.

`load_pipeline` is the one door. Whatever is wrong with a file is a `PipelineFileError` that names the file, the
line and the key; it never repeats the value of a dsn, since that may hold a secret.
"""

from __future__ import annotations

import difflib
import os
import re
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationError,
)

from airflow_provider_pgddl.engine.ddl.parse import kind_of, parse, statement_node, texts, unwrap, without_locations
from airflow_provider_pgddl.engine.ddl.subcommands import KNOWN
from airflow_provider_pgddl.engine.errors import PgddlError, PipelineFileError, UsageError

if TYPE_CHECKING:
    import yaml

Table: TypeAlias = tuple[str, str]
Path_: TypeAlias = tuple[str | int, ...]

# ---------------------------------------------------------------------------------------------------------------
# Names and patterns

# Postgres cuts longer names silently (NAMEDATALEN - 1).
MAX_NAME_BYTES = 63
_QUOTING = 'quote a name with dots or capitals, as in "Sales"."Order.Items"'
# In bytes, as the server's own scanner reads names; a class with all of Unicode takes 20 ms to compile.
_PLAIN = re.compile(rb"[A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]*")
_NOT_IN_PATTERN = re.compile(rb"[^A-Za-z0-9_$*?\x80-\xff]")
# Never part of a pipeline, whatever the patterns say.
_SYSTEM_SCHEMA = re.compile(r"pg_.*|information_schema|pgddl|pgddl_.*", re.DOTALL)


def _fold(text: str) -> str:
    """Lower case as the server does it to unquoted names: ASCII only."""
    return "".join(char.lower() if char.isascii() else char for char in text)


def _parts(text: str) -> list[list[tuple[bool, str]]]:
    """A dotted name as parts; each part is a list of (quoted, text) runs."""
    parts: list[list[tuple[bool, str]]] = [[]]
    position = 0
    while position < len(text):
        if text[position] == '"':
            run, position = "", position + 1
            while True:
                end = text.find('"', position)
                if end < 0:
                    raise ValueError(f"{text}: the double quote is not closed")
                run += text[position:end]
                position = end + 1
                if text[position : position + 1] != '"':
                    break
                run, position = run + '"', position + 1
            parts[-1].append((True, run))
        elif text[position] == ".":
            parts.append([])
            position += 1
        else:
            start = position
            while position < len(text) and text[position] not in '".':
                position += 1
            parts[-1].append((False, text[start:position]))
    return parts


def _exact(text: str, count: int, shape: str) -> tuple[str, ...]:
    parts = _parts(text)
    if len(parts) != count or not all("".join(run for _, run in part) for part in parts):
        raise ValueError(f"{text}: write it as {shape}; {_QUOTING}")
    names = []
    for part in parts:
        for quoted, run in part:
            if not quoted and not _PLAIN.fullmatch(run.encode()):
                reason = "a pattern cannot stand here" if set(run) & set("*?") else 'put it in "double quotes"'
                raise ValueError(f"{text}: {run} is not a plain name; {reason}")
        name = "".join(run if quoted else _fold(run) for quoted, run in part)
        if len(name.encode()) > MAX_NAME_BYTES:
            raise ValueError(f"{text}: the name is longer than Postgres' {MAX_NAME_BYTES} bytes")
        names.append(name)
    return tuple(names)


def table_name(text: str) -> Table:
    """`schema.table` as the file writes it, as exact names. ValueError says what is wrong."""
    schema, table = _exact(text, 2, "schema.table")
    return schema, table


def column_name(text: str) -> str:
    """A column's name as the file writes it: unquoted names fold to lower case, as in SQL."""
    return _exact(text, 1, "a column's name")[0]


def table_column_name(text: str) -> tuple[Table, str]:
    """`schema.table.column` as the file writes it."""
    schema, table, column = _exact(text, 3, "schema.table.column")
    return (schema, table), column


def exact_columns(listed: Mapping[str, Iterable[str]]) -> dict[Table, tuple[str, ...]]:
    """Lists of columns as the file writes them, by exact (schema, table)."""
    return {table_name(name): tuple(map(column_name, columns)) for name, columns in listed.items()}


def table_pattern(text: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """`schema.table` with `*` and `?`, as one regular expression for each part; in quotes they are plain characters."""
    parts = _parts(text)
    if len(parts) != 2 or not all("".join(run for _, run in part) for part in parts):
        raise ValueError(f"{text}: a pattern has two parts, schema.table (all tables: *.*); {_QUOTING}")
    compiled = []
    for part in parts:
        expression = ""
        for quoted, run in part:
            if quoted:
                expression += re.escape(run)
                continue
            if _NOT_IN_PATTERN.search(run.encode()):
                raise ValueError(f'{text}: only * and ? mean something in a pattern; put the rest in "double quotes"')
            expression += re.escape(_fold(run)).replace(r"\*", ".*").replace(r"\?", ".")
        compiled.append(re.compile(expression, re.DOTALL))
    return compiled[0], compiled[1]


def written(*names: str) -> str:
    """Names joined by dots the way people write them: quoted only where they must be."""

    def one(name: str) -> str:
        return name if _PLAIN.fullmatch(name.encode()) and name == _fold(name) else '"' + name.replace('"', '""') + '"'

    return ".".join(map(one, names))


def sql_type(text: str) -> tuple[str, ...]:
    """A type as the file or the server writes it, so that what means the same is equal: ``int4`` and ``integer``,
    ``decimal(10, 2)`` and ``numeric(10,2)``. ValueError where it is no type.

    Schema ("" where none is written, or the system's), name, each modifier as a syntax tree's text, [] of an array."""
    try:
        tree = without_locations(parse(f"SELECT CAST(NULL AS {text})"))
        value = unwrap(unwrap(statement_node(tree).target_list[0]).val)
        if kind_of(value) != "TypeCast":
            raise ValueError
    except (PgddlError, ValueError):
        raise ValueError(f"{text}: not a type; write it as in SQL, such as integer or numeric(10,2)") from None
    node = value.type_name
    *schema, name = texts(node.names)
    modifiers = [str(unwrap(modifier)) for modifier in node.typmods]
    array = ["[]"] if node.array_bounds else []
    return ("".join(part for part in schema if part != "pg_catalog"), name, *modifiers, *array)


def _checked(parse: Any) -> AfterValidator:
    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


Pattern = Annotated[str, _checked(table_pattern)]
TableName = Annotated[str, _checked(table_name)]
TableColumnName = Annotated[str, _checked(table_column_name)]
ColumnName = Annotated[str, _checked(column_name)]
SqlType = Annotated[str, Field(strict=True, min_length=1), _checked(sql_type)]

# ---------------------------------------------------------------------------------------------------------------
# Durations, sizes, words

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
# As in postgresql.conf: kB is 1024 bytes.
_BYTES = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def seconds(value: object) -> float:
    """A duration such as `50ms`, `3s`, `10min` as seconds. A bare number has no unit and is refused, except 0."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[2].lower() not in _SECONDS:
        raise ValueError("expected a duration with its unit (us, ms, s, min, h, d), such as 50ms or 10min")
    return float(found[1]) * _SECONDS[found[2].lower()]


def _seconds_text(value: float) -> str:
    micros = round(value * 1e6)
    for unit, size in (("s", 1_000_000), ("ms", 1_000)):
        if micros % size == 0:
            return f"{micros // size}{unit}"
    return f"{micros}us"


def size_bytes(value: object) -> int:
    """A size such as `64MB` (1 MB = 1024 kB, as in postgresql.conf) as bytes; a bare number is bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[2].lower() not in _BYTES:
        raise ValueError("expected a size with its unit (B, kB, MB, GB, TB), such as 64MB")
    return int(float(found[1]) * _BYTES[found[2].lower()])


Seconds = Annotated[float, BeforeValidator(seconds), PlainSerializer(_seconds_text, return_type=str)]
Bytes = Annotated[int, BeforeValidator(size_bytes)]
Count = Annotated[int, Field(strict=True, ge=1)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True, min_length=1)]

# YAML 1.1 reads `off` as False and `null` as None; where those words are values they are meant as words.
_off = BeforeValidator(lambda value: "off" if value is False else value)
_null = BeforeValidator(lambda value: "null" if value is None else value)

# ---------------------------------------------------------------------------------------------------------------
# Defaults of the DDL rules: the installed lists of pgl_ddl_deploy 2.1/2.2 (seed 002)

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

# ---------------------------------------------------------------------------------------------------------------
# Endpoints

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET_KEYWORDS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


def _dsn_values(dsn: str) -> dict[str, str]:
    """A dsn's keywords; each `${VAR}` stands as `${VAR}` in its value, however the dsn quotes or escapes."""
    names = list(_VARIABLE.finditer(dsn))
    marked, end = "", 0
    for number, found in enumerate(names):
        marked += dsn[end : found.start()] + f"pgddlvariable{number}x"
        end = found.end()
    marked += dsn[end:]
    try:
        values = conninfo_to_dict(marked)
    except psycopg.Error:
        # The server library's message repeats parts of the string.
        raise ValueError(
            "not a Postgres conninfo or URI; let ${VAR} stand for all of it, or for single values in it"
        ) from None
    return {
        keyword: re.sub(r"pgddlvariable(\d+)x", lambda mark: names[int(mark[1])][0], str(value))
        for keyword, value in values.items()
        if value is not None
    }


def _dsn(text: str) -> str:
    text = text.strip()
    if _VARIABLE.fullmatch(text):
        return text
    if re.fullmatch(r"\$[A-Za-z_]\w*", text):
        raise ValueError("write the variable with braces, ${VAR}")
    for keyword, value in _dsn_values(text).items():
        if keyword in _SECRET_KEYWORDS and not _VARIABLE.fullmatch(value):
            raise ValueError(
                f"a literal {keyword} in the file is refused; take it from the environment (dsn: ${{SHOP_DSN}}, or "
                f"{keyword}=${{SHOP_PASSWORD}} in it), from ~/.pgpass, or use conn_id"
            )
    return text


def _conn_id(text: str) -> str:
    if not re.fullmatch(r"[\w.\-]+", text):
        raise ValueError("expected the id of an Airflow connection; a conninfo or URI goes under dsn")
    return text


ConnId = Annotated[str, Field(strict=True), AfterValidator(_conn_id)]


class Section(BaseModel):
    """A mapping of the file: nothing unknown, nothing changed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Endpoint(Section):
    """A database: an Airflow connection's id, or a dsn without a literal password."""

    conn_id: ConnId | None = None
    dsn: Annotated[str, Field(strict=True), AfterValidator(_dsn)] | None = None

    def resolve(self, env: Mapping[str, str]) -> str:
        """The dsn as a conninfo with its `${VAR}` taken from `env`. UsageError where it cannot be."""
        if self.dsn is None:
            raise UsageError(
                f"connection {self.conn_id} is known to Airflow only",
                todo="run it through Airflow, or give the pipeline file a dsn",
            )

        def value(name: str) -> str:
            if not env.get(name):
                raise UsageError(f"the environment variable {name} is not set", todo=f"export {name}=...")
            return env[name]

        if whole := _VARIABLE.fullmatch(self.dsn):
            conninfo = value(whole[1])
            try:
                conninfo_to_dict(conninfo)
            except psycopg.Error:
                raise UsageError(
                    f"the environment variable {whole[1]} holds no Postgres conninfo or URI",
                    todo=f"export {whole[1]}=postgresql://user@host:port/database",
                ) from None
            return conninfo
        # Value by value, so that a password with spaces or @ in it needs no escaping.
        values = {
            keyword: _VARIABLE.sub(lambda found: value(found[1]), text)
            for keyword, text in _dsn_values(self.dsn).items()
        }
        return make_conninfo("", **values)


# ---------------------------------------------------------------------------------------------------------------
# The tree


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
    ddl: Annotated[Literal["queue", "wal", "off"] | None, _off] = None
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
    # None until the file is read: then the lists of seed 002 for this scope.
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
    signal_blockers: Annotated[Literal["off", "cancel", "terminate", "cancel_then_terminate"], _off] = "off"

    def model_post_init(self, _context: Any, /) -> None:
        narrow = self.scope == "replicated_tables"
        if self.create_tags is None:
            object.__setattr__(self, "create_tags", REPLICATED_TABLES_TAGS if narrow else CREATE_TAGS)
        if self.drop_tags is None:
            object.__setattr__(self, "drop_tags", () if narrow else DROP_TAGS)


SourceAdded = Literal["stop", "skip", "add"]
TargetAdded = Literal["allow", "stop"]
SourceRemoved = Annotated[Literal["stop", "preserve", "null", "drop"], _null]
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
    source_removed_columns: Annotated[Literal["inherit", "stop", "preserve", "null", "drop"], _null] = "inherit"
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


class Verify(Section):
    before_swap: Flag = True


class Swap(Section):
    # Writers queue behind us for this long at each try (C15).
    lock_timeout: Annotated[Seconds, Field(ge=0.001, le=60)] = 0.05
    retries: Count = 200
    fence: Literal["none", "read_only", "lock"] = "none"
    keep_old: Flag = True
    # In place: what becomes of a transaction that has been in the way of the locks for a second.
    signal_blockers: Annotated[Literal["off", "cancel", "terminate", "cancel_then_terminate"], _off] = "off"
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
    tables: Tables = Field(default_factory=Tables)
    capture: Capture = Field(default_factory=Capture)
    ddl: Ddl = Field(default_factory=Ddl)
    schema_: SchemaPolicy = Field(default_factory=SchemaPolicy, alias="schema")
    rewrite: dict[TableName, Rewrite] = Field(default_factory=dict)
    backfill: Backfill = Field(default_factory=Backfill)
    replay: Replay = Field(default_factory=Replay)
    verify: Verify = Field(default_factory=Verify)
    swap: Swap = Field(default_factory=Swap)
    spark: Spark = Field(default_factory=Spark)

    _origin: Origin | None = PrivateAttr(default=None)

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
        origin = self._origin or Origin("pipeline", {})
        return origin.where(path)

    def to_json(self) -> dict[str, Any]:
        """Everything, defaults included, as JSON that `load_pipeline` takes back; no secret is in it."""
        tree = self.model_dump(mode="json", by_alias=True)
        for overrides in tree["schema"]["overrides"].values():
            # An override that is not given must not come back as the value `null`.
            for key in [key for key, value in overrides.items() if value in (None, "inherit")]:
                del overrides[key]
        if self._origin is not None:
            tree[ORIGIN] = self._origin.to_json()
        return tree


# ---------------------------------------------------------------------------------------------------------------
# Reading

# Travels in the job file, so that an error found much later can still name the line; never written by people.
ORIGIN = "$origin"


def _dotted(path: Iterable[str | int]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


@dataclass(frozen=True)
class Origin:
    """Where a pipeline was read: the file's name, and the line of each key by its dotted path."""

    name: str
    lines: Mapping[str, int]

    def where(self, path: Path_) -> str:
        """Name, line of the nearest key that the file has, and the path itself."""
        line = self.line(path)
        place = f"{self.name}, line {line}" if line else self.name
        return f"{place}: {_dotted(path)}" if path else place

    def line(self, path: Path_) -> int:
        """The line of the nearest key that the file has; 0 where it has none."""
        known = (self.lines.get(_dotted(path[:length])) for length in range(len(path), 0, -1))
        return next((line for line in known if line), 0)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "lines": dict(self.lines)}


class _Problem(Exception):
    """A wrong file, found while YAML is read."""

    def __init__(self, line: int, path: Path_, what: str):
        self.line, self.path, self.what = line, path, what


def _walk(node: yaml.Node, path: Path_ = ()) -> Iterator[tuple[Path_, yaml.Node, yaml.Node]]:
    """(path, key's or item's node, value's node) of all of a document, once a merge has been flattened."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield (*path, key.value), key, value
                yield from _walk(value, (*path, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield (*path, number), item, item
            yield from _walk(item, (*path, number))


def _read_yaml(text: str, name: str) -> tuple[Any, Origin]:
    import yaml  # a job file is JSON

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            raise PipelineFileError(f"{name}: the file is empty", todo="start with `pipeline: <name>`")
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            # They could make the walk endless, and a pattern such as *.* without quotes reads as one.
            if isinstance(token, yaml.AliasToken):
                line = token.start_mark.line + 1
                raise _Problem(line, (), f'*{token.value}: a YAML alias is not taken; quote a pattern ("*.*")')
        lines: dict[str, int] = {}
        for path, key, value in _walk(node):
            place = _dotted(path)
            line = key.start_mark.line + 1
            if place in lines:
                raise _Problem(line, path, f"the key stands twice, first on line {lines[place]}")
            lines[place] = line
            if isinstance(value, yaml.ScalarNode) and value.value == "" and value.style is None:
                raise _Problem(line, path, "has no value; leave the key out to take its default")
        return loader.construct_document(node), Origin(name, lines)
    except _Problem as problem:
        key_path = f"{_dotted(problem.path)}: " if problem.path else ""
        raise PipelineFileError(f"{name}, line {problem.line}: {key_path}{problem.what}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        hint = ' (quote a pattern: "*.*")' if error.context == "while scanning an alias" else ""
        raise PipelineFileError(f"{name}, line {line}: not valid YAML: {error.problem}{hint}") from None
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: a scalar that looks like a date, such as 2026-13-01.
        raise PipelineFileError(f"{name}: not valid YAML: {str(error).splitlines()[0]}") from None
    finally:
        loader.dispose()


def _is_text(source: str) -> bool:
    return "\n" in source or source.lstrip().startswith("{") or ": " in source


def load_pipeline(source: str | os.PathLike[str] | Mapping[str, Any], *, base: Path | None = None) -> Pipeline:
    """The pipeline of a file (relative to `base`), of YAML text, or of a dict; all defaults filled in.

    Raises PipelineFileError, which lists everything wrong with it, each with its line.
    """
    data: Any
    if isinstance(source, Mapping):
        data = dict(source)
        given = data.pop(ORIGIN, None)
        origin = Origin(given["name"], given["lines"]) if given else Origin("pipeline", {})
    elif isinstance(source, str) and _is_text(source):
        data, origin = _read_yaml(source, "pipeline")
    else:
        name = os.fspath(source)
        path = Path(base, name) if base is not None else Path(name)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise PipelineFileError(
                f"{name}: cannot read the pipeline file: {reason}",
                todo="give the path of a pipeline file; a relative path counts from "
                + ("the DAG's folder" if base is not None else "the current folder"),
            ) from None
        data, origin = _read_yaml(text, name)
    if not isinstance(data, dict):
        raise PipelineFileError(f"{origin.name}: expected a mapping of keys, starting with `pipeline: <name>`")
    try:
        pipeline = Pipeline.model_validate(data)
    except ValidationError as error:
        raise _refused(_problems(error), origin) from None
    found = list(contradictions(pipeline))
    if found:
        raise _refused(found, origin)
    pipeline._origin = origin
    return pipeline


def _refused(problems: Iterable[tuple[Path_, str]], origin: Origin) -> PipelineFileError:
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: origin.line(problem[0]))
    return PipelineFileError("\n".join(f"{origin.where(path)}: {what}" for path, what in ordered))


def _model_of(annotation: Any) -> tuple[type[Section] | None, bool]:
    """The section that an annotation holds, and whether it stands in a dict by name."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation, False
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is dict:
        return _model_of(args[1])[0], True
    if origin in (typing.Union, types.UnionType, Annotated):
        for argument in args:
            model, named = _model_of(argument)
            if model is not None:
                return model, named
    return None, False


def _keys(model: type[Section]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _section_at(path: Path_) -> type[Section] | None:
    model: type[Section] | None = Pipeline
    named = False
    for step in path:
        if named:
            named = False
        elif model is None:
            return None
        else:
            model, named = _model_of(_keys(model).get(str(step)))
    return model


def _all_keys(model: type[Section] = Pipeline, path: str = "") -> Iterator[tuple[str, str]]:
    for key, annotation in _keys(model).items():
        yield key, f"{path}{key}"
        inner, named = _model_of(annotation)
        if inner is not None and not named and inner is not Endpoint:
            yield from _all_keys(inner, f"{path}{key}.")


def _unknown(path: Path_) -> str:
    key = str(path[-1])
    section = _section_at(path[:-1])
    known = list(_keys(section)) if section is not None else []
    if near := difflib.get_close_matches(key, known, n=1, cutoff=0.6):
        return f"unknown key; did you mean {near[0]}?"
    for other, place in _all_keys():
        if other == key:
            return f"unknown key here; it belongs at {place}"
    return f"unknown key; known here: {', '.join(known)}"


def _problems(error: ValidationError) -> Iterator[tuple[Path_, str]]:
    """Pydantic's errors as (path in the file, what a person reads)."""
    for detail in error.errors(include_url=False):
        kind, context = detail["type"], detail.get("ctx", {})
        path: Path_ = tuple(step for step in detail["loc"] if step != "[key]")
        given = detail.get("input")
        # A union's loc ends with the name of the alternative that did not match.
        if path[:2] == ("ddl", "missing_role"):
            path = path[:2]
            if not isinstance(given, dict):
                yield path, "expected ignore, fail, or a mapping of roles such as {app: app_v2}"
                continue
        if kind == "extra_forbidden":
            yield path, _unknown(path)
        elif kind == "missing":
            yield path, "is missing"
        elif kind == "literal_error":
            yield path, _expected(given, str(context["expected"]))
        elif kind in ("model_type", "model_attributes_type", "dict_type", "dataclass_type"):
            section = _section_at(path)
            keys = f" with the keys {', '.join(_keys(section))}" if section is not None else ""
            yield path, f"expected a mapping{keys}"
        elif kind in ("tuple_type", "list_type"):
            yield path, "expected a list, such as [a, b]"
        elif kind == "string_type":
            yield path, "expected text" + (" (put it in quotes)" if isinstance(given, bool | int | float) else "")
        elif kind == "string_too_short":
            yield path, "is empty"
        elif kind == "bool_type":
            yield path, "expected true or false"
        elif kind == "int_type":
            yield path, "expected a whole number"
        elif kind == "string_pattern_mismatch" and path == ("pipeline",):
            yield path, "expected a name of a-z, 0-9 and _, at most 40 characters, starting with a letter"
        elif kind == "invalid_key":
            yield (*path[:-1], str(path[-1])), "expected a key that is text (put it in quotes)"
        elif kind == "value_error":
            yield path, str(context["error"])
        else:
            # Only kinds whose message holds a bound and never the value, such as greater_than_equal.
            yield path, detail["msg"][:1].lower() + detail["msg"][1:]


def _expected(given: object, expected: str) -> str:
    words = re.findall(r"'([^']*)'", expected)
    words = [word for word in words if word != "inherit"]
    text = "expected one of: " + ", ".join(words)
    if isinstance(given, str) and (near := difflib.get_close_matches(given, words, n=1)):
        text += f"; did you mean {near[0]}?"
    return text


# ---------------------------------------------------------------------------------------------------------------
# What a file may not say at once


def contradictions(pipeline: Pipeline) -> Iterator[tuple[Path_, str]]:
    """Settings that exclude one another, or that lose data without `schema.force`."""
    yield from _endpoints(pipeline)
    yield from _tables(pipeline)
    yield from _in_place(pipeline) if pipeline.in_place else _across(pipeline)
    yield from _ddl(pipeline)
    yield from _lossy(pipeline)


def _endpoints(pipeline: Pipeline) -> Iterator[tuple[Path_, str]]:
    for name, endpoint in (("source", pipeline.source), ("target", pipeline.target)):
        if endpoint is None:
            continue
        if (endpoint.conn_id is None) == (endpoint.dsn is None):
            yield (name,), "give either conn_id or dsn"
    if pipeline.target is not None and pipeline.source == pipeline.target:
        yield ("target",), "is the source itself; leave target out to rewrite in place"


def _tables(pipeline: Pipeline) -> Iterator[tuple[Path_, str]]:
    named: tuple[tuple[Path_, Iterable[str]], ...] = (
        (("rewrite",), pipeline.rewrite),
        (("schema", "overrides"), pipeline.schema_.overrides),
        *((path, listed) for path, listed in _column_lists(pipeline)),
    )
    for path, names in named:
        seen: dict[Table, str] = {}
        for name in names:
            if (first := seen.setdefault(table_name(name), name)) != name:
                yield (*path, name), f"is the same table as {first}"
    for path, listed in _column_lists(pipeline):
        for name, columns in listed.items():
            if not columns:
                yield (*path, name), "names no column"
    for name, overrides in pipeline.schema_.overrides.items():
        if overrides.skip_columns == ():
            yield ("schema", "overrides", name, "skip_columns"), "names no column"
    preserved = exact_columns(pipeline.schema_.preserve_columns)
    for name, columns in pipeline.schema_.null_removed_columns.items():
        for number, column in enumerate(columns):
            if column_name(column) in preserved.get(table_name(name), ()):
                path = ("schema", "null_removed_columns", name, number)
                yield path, f"{column} is in preserve_columns as well"


def _column_lists(pipeline: Pipeline) -> Iterator[tuple[Path_, Mapping[str, tuple[str, ...]]]]:
    """The keys that hold columns by their table."""
    yield ("tables", "skip_columns"), pipeline.tables.skip_columns
    yield ("schema", "preserve_columns"), pipeline.schema_.preserve_columns
    yield ("schema", "null_removed_columns"), pipeline.schema_.null_removed_columns


def _in_place(pipeline: Pipeline) -> Iterator[tuple[Path_, str]]:
    if not pipeline.rewrite:
        yield (), "without target it is a rewrite in place: name its tables under rewrite ({} removes bloat only)"
    for key in ("exclude", "schema_only", "skip_columns"):
        if getattr(pipeline.tables, key):
            yield ("tables", key), "has no place in a rewrite in place: it takes exactly the tables under rewrite"
    for name, overrides in pipeline.schema_.overrides.items():
        if overrides.skip_columns:
            path = ("schema", "overrides", name, "skip_columns")
            yield path, "has no place in a rewrite in place: write DROP COLUMN under rewrite"
    if pipeline.tables.existing != "refuse":
        yield ("tables", "existing"), "has no place in a rewrite in place: give a target, or leave it out"
    if pipeline.tables.include and pipeline.rewrite:
        tables = {table_name(name): name for name in pipeline.rewrite}
        covered: set[Table] = set()
        for number, pattern in enumerate(pipeline.tables.include):
            matched = {table for table in tables if _matches(pattern, table)}
            covered |= matched
            if not matched:
                yield ("tables", "include", number), f"{pattern} is not under rewrite; in place it takes exactly those"
        for table, name in tables.items():
            if table not in covered:
                yield ("rewrite", name), "is not in tables.include; in place leave tables.include out"
    for name, rewrite in pipeline.rewrite.items():
        if (by := rewrite.partition_by) is not None:
            place = ("rewrite", name, "partition_by")
            if sum(given is not None for given in (by.range, by.list, by.hash)) != 1:
                yield place, "needs one of range, list and hash"
            elif by.hash is not None and by.default_partition:
                yield (*place, "default_partition"), "has no place beside hash, which takes every row"
    if pipeline.capture.rows == "none":
        yield ("capture", "rows"), "none would lose what is written during a rewrite in place"
    if pipeline.capture.rows == "wal":
        yield ("capture", "rows"), "wal is for a migrate to a target; in place use change_log"
    if pipeline.swap.fence != "none":
        yield ("swap", "fence"), "a fence is for a migrate to a target; in place the swap's lock is enough"
    if pipeline.ddl.ddl_only:
        yield ("ddl", "ddl_only"), "needs a target"


def _across(pipeline: Pipeline) -> Iterator[tuple[Path_, str]]:
    if pipeline.rewrite:
        yield ("rewrite",), "is for a rewrite in place: leave target out, or rewrite"
    if not pipeline.tables.include and not pipeline.tables.schema_only:
        yield ("tables", "include"), 'is missing: name the tables, such as ["public.*"]'
    if pipeline.capture.rows == "direct_trigger":
        yield ("capture", "rows"), "direct_trigger works in place only; use change_log or wal"
    if pipeline.tables.keyless == "copy_at_swap" and pipeline.swap.fence == "none":
        why = "needs swap.fence: read_only or lock: nobody sees what is written to such a table once it is copied"
        yield ("tables", "keyless"), f"copy_at_swap {why}"
    if not pipeline.swap.keep_old and pipeline.tables.existing != "replace":
        yield ("swap", "keep_old"), "nothing old is replaced on this target; it belongs to a rewrite in place"
    if pipeline.swap.signal_blockers != "off":
        yield ("swap", "signal_blockers"), "is for the swap of a rewrite in place; for DDL see ddl.signal_blockers"


def _ddl(pipeline: Pipeline) -> Iterator[tuple[Path_, str]]:
    ddl, capture = pipeline.ddl, pipeline.capture
    create_tags, drop_tags = ddl.create_tags or (), ddl.drop_tags or ()
    if ddl.scope != "schemas" and ddl.schemas != ".*":
        yield ("ddl", "schemas"), f"needs scope: schemas, not {ddl.scope}"
    if ddl.scope == "replicated_tables":
        if ddl.ddl_only:
            yield ("ddl", "ddl_only"), "needs scope: schemas or everything"
        if extra := [tag for tag in create_tags if tag not in REPLICATED_TABLES_TAGS]:
            yield ("ddl", "create_tags"), f"{extra[0]} needs scope: schemas or everything, not replicated_tables"
        if drop_tags:
            yield ("ddl", "drop_tags"), "need scope: schemas or everything, not replicated_tables"
    for key, tags in (("create_tags", create_tags), ("drop_tags", drop_tags)):
        for tag in tags:
            if tag in ddl.blocked_tags:
                yield ("ddl", key), f"{tag} is in blocked_tags as well"
    for tag in drop_tags:
        if not tag.startswith("DROP "):
            yield ("ddl", "drop_tags"), f"{tag} is not a DROP; it belongs in create_tags"
    for tag in create_tags:
        if tag.startswith("DROP "):
            yield ("ddl", "create_tags"), f"{tag} belongs in drop_tags"
    if capture.ddl == "off" and ddl.ddl_only:
        yield ("ddl", "ddl_only"), "needs capture.ddl: queue or wal"
    if capture.failover and capture.rows != "wal":
        yield ("capture", "failover"), "needs a slot: capture.rows: wal"
    if capture.on_slot_lost != "fail" and "wal" not in (capture.rows, capture.ddl):
        yield ("capture", "on_slot_lost"), "needs a slot: capture.rows or capture.ddl: wal"


def _lossy(pipeline: Pipeline) -> Iterator[tuple[Path_, str]]:
    policy = pipeline.schema_
    if policy.force:
        return
    what = "can lose data and needs schema.force: true"
    if policy.validation == "disabled":
        yield ("schema", "validation"), f"disabled {what}"
    for drift in policy.allow_schema_drift:
        if drift != "target_superset":
            yield ("schema", "allow_schema_drift"), f"{drift} {what}"
    if policy.null_removed_columns:
        yield ("schema", "null_removed_columns"), what
    places: list[tuple[Path_, SchemaPolicy | Overrides]] = [(("schema",), policy)]
    places += [(("schema", "overrides", name), overrides) for name, overrides in policy.overrides.items()]
    for path, place in places:
        if path != ("schema",) and place.validation == "disabled":
            yield (*path, "validation"), f"disabled {what}"
        if place.allow_type_cast:
            yield (*path, "allow_type_cast"), what
        if place.source_added_columns == "skip":
            yield (*path, "source_added_columns"), f"skip {what}"
        if place.source_removed_columns in ("null", "drop"):
            yield (*path, "source_removed_columns"), f"{place.source_removed_columns} {what}"
        if place.type_mismatches == "cast_always":
            yield (*path, "type_mismatches"), f"cast_always {what}"


# ---------------------------------------------------------------------------------------------------------------
# The file against a database's names


@dataclass(frozen=True)
class Selection:
    """What a pipeline's patterns choose: tables whose rows travel, and tables of which only the structure does."""

    rows: list[Table]
    schema_only: list[Table]


def _matches(pattern: str, table: Table) -> bool:
    schema, name = table_pattern(pattern)
    return bool(schema.fullmatch(table[0]) and name.fullmatch(table[1]))


def matches(pipeline: Pipeline, names: Iterable[Table], *, strict: bool = True) -> Selection:
    """The tables of `names` that the pipeline takes, sorted. `names` comes without extensions' tables.

    A pattern, or a table named elsewhere in the file, that matches nothing is a PipelineFileError, unless `strict`
    is off (tables may well be dropped once a pipeline runs). System schemas and pgddl's own never match.
    """
    known = sorted({table for table in names if not _SYSTEM_SCHEMA.fullmatch(table[0])})
    tables = pipeline.tables
    problems: list[tuple[Path_, str]] = []

    def chosen(key: str, patterns: tuple[str, ...]) -> set[Table]:
        found: set[Table] = set()
        for number, pattern in enumerate(patterns):
            matched = {table for table in known if _matches(pattern, table)}
            if not matched:
                problems.append((("tables", key, number), f"{pattern} matches no table{_similar(pattern, known)}"))
            found |= matched
        return found

    if pipeline.in_place:
        selected, structure = set(pipeline.rewrites) & set(known), set[Table]()
    else:
        structure = chosen("schema_only", tables.schema_only)
        selected = chosen("include", tables.include) | structure
        excluded = chosen("exclude", tables.exclude)
        selected, structure = selected - excluded, structure - excluded
        if not pipeline.moves_rows:
            structure = selected
    for path, name in _named_tables(pipeline):
        table = table_name(name)
        if table not in known:
            problems.append((path, f"there is no table {written(*table)}{_similar(name, known)}"))
        elif table not in selected:
            problems.append((path, f"{written(*table)} is not among the tables of this pipeline"))
    if strict and problems:
        raise _refused(problems, pipeline._origin or Origin("pipeline", {}))
    if strict and not selected:
        raise _refused([(("tables", "exclude"), "no table is left")], pipeline._origin or Origin("pipeline", {}))
    return Selection(rows=sorted(selected - structure), schema_only=sorted(structure))


def _named_tables(pipeline: Pipeline) -> Iterator[tuple[Path_, str]]:
    for name in pipeline.rewrite:
        yield ("rewrite", name), name
    for path, listed in _column_lists(pipeline):
        for name in listed:
            yield (*path, name), name
    for name in pipeline.schema_.overrides:
        yield ("schema", "overrides", name), name
    for name in pipeline.schema_.allow_type_cast:
        yield ("schema", "allow_type_cast", name), written(*table_column_name(name)[0])


def _similar(pattern: str, known: Collection[Table]) -> str:
    """What was probably meant: other capitals first, then the nearest spelling."""
    plain = pattern.replace('"', "")
    if set(plain) & set("*?"):
        schema, _, rest = plain.partition(".")
        near = difflib.get_close_matches(schema, sorted({schema for schema, _ in known}), n=1)
        return f"; did you mean {written(near[0])}.{rest}?" if near and near[0] != schema else ""
    names = {f"{schema}.{table}": written(schema, table) for schema, table in known}
    for name, text in names.items():
        if name.lower() == plain.lower():
            return f"; did you mean {text}?"
    near = difflib.get_close_matches(plain, list(names), n=1, cutoff=0.75)
    return f"; did you mean {names[near[0]]}?" if near else ""


def check_columns(pipeline: Pipeline, columns: Mapping[Table, Collection[str]]) -> None:
    """Refuses the file where it names a column that its table (a key of `columns`) does not have."""
    problems: list[tuple[Path_, str]] = []

    def need(path: Path_, table: Table, column: str) -> None:
        if table in columns and column not in columns[table]:
            near = difflib.get_close_matches(column, list(columns[table]), n=1)
            hint = f"; did you mean {written(near[0])}?" if near else ""
            problems.append((path, f"{written(*table)} has no column {written(column)}{hint}"))

    for name, listed in pipeline.tables.skip_columns.items():
        for number, column in enumerate(listed):
            need(("tables", "skip_columns", name, number), table_name(name), column_name(column))
    for name in pipeline.schema_.allow_type_cast:
        need(("schema", "allow_type_cast", name), *table_column_name(name))
    for name, overrides in pipeline.schema_.overrides.items():
        path = ("schema", "overrides", name)
        for column in overrides.allow_type_cast or ():
            need((*path, "allow_type_cast", column), table_name(name), column_name(column))
        for number, column in enumerate(overrides.skip_columns or ()):
            need((*path, "skip_columns", number), table_name(name), column_name(column))
    for name, rewrite in pipeline.rewrite.items():
        for number, column in enumerate(rewrite.order_by):
            need(("rewrite", name, "order_by", number), table_name(name), column_name(column))
        if rewrite.partition_by is not None:
            column = column_name(rewrite.partition_by.column)
            need(("rewrite", name, "partition_by", "column"), table_name(name), column)
    if problems:
        raise _refused(problems, pipeline._origin or Origin("pipeline", {}))


# ---------------------------------------------------------------------------------------------------------------
# A file that changes after setup

# Who works, how fast and how patiently: nothing of it is in what has been copied already. And what a person decides
# when two schemas differ, which is never known at setup: columns that are new from then on are read again.
FREE_KEYS = (
    "capture.on_slot_lost",
    "capture.max_retained_wal",
    "backfill.workers",
    "backfill.throttle",
    "ddl.lock_safe",
    "ddl.lock_timeout",
    "ddl.retry_for",
    "ddl.signal_blockers",
    "swap.lock_timeout",
    "swap.retries",
    "swap.signal_blockers",
    "swap.recreate_materialized_views",
    "spark",
    "schema",
    "tables.skip_columns",
)


def changed_keys(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The dotted keys in which two pipelines (`to_json`) differ, other than those of FREE_KEYS."""

    def flat(tree: Mapping[str, Any]) -> dict[str, Any]:
        try:
            tree = load_pipeline(tree).to_json()  # fills in defaults of keys that an older version did not know
        except PipelineFileError:
            tree = dict(tree)
        leaves: dict[str, Any] = {}

        def collect(value: Any, path: str) -> None:
            if isinstance(value, Mapping) and value:
                for key, inner in value.items():
                    collect(inner, f"{path}.{key}" if path else str(key))
            else:
                leaves[path] = list(value) if isinstance(value, tuple) else value

        collect({key: value for key, value in tree.items() if key != ORIGIN}, "")
        # An empty mapping and an absent one say the same.
        return {path: value for path, value in leaves.items() if value not in ({}, None)}

    before, after = flat(recorded), flat(now)
    return [
        path
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
        and not any(path == free or path.startswith(f"{free}.") for free in FREE_KEYS)
    ]
