"""What a pipeline file may not say at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.pipeline.key_positions import KeyPath
from airflow_provider_pgddl.engine.pipeline.model import Overrides, Pipeline, SchemaPolicy, column_lists
from airflow_provider_pgddl.engine.pipeline.names import column_name, exact_columns, fits, table_name
from airflow_provider_pgddl.engine.pipeline.tags import REPLICATED_TABLES_TAGS


def contradictions(pipeline: Pipeline) -> Iterator[tuple[KeyPath, str]]:
    """Settings that exclude one another, or that lose data without `schema.force`."""
    yield from _endpoints(pipeline)
    yield from _tables(pipeline)
    yield from _in_place(pipeline) if pipeline.in_place else _across(pipeline)
    yield from _ddl(pipeline)
    yield from _lossy(pipeline)
    yield from _way_back(pipeline)
    yield from _operations(pipeline)


def _operations(pipeline: Pipeline) -> Iterator[tuple[KeyPath, str]]:
    path, tables = ("tables", "operations"), pipeline.tables
    given = set(tables.operations)
    if len(given) != len(tables.operations):
        yield path, "names one of them twice: once is enough"
    if "insert" not in given:
        yield path, "needs insert, as rows are copied first: add it"
    elif given == {"insert", "delete"}:
        yield path, "delete needs update, as a row that is deleted and inserted again is seen as changed: add update"
    if not pipeline.archives:
        return
    if pipeline.in_place:
        yield path, "has no place in a rewrite in place, which takes all changes: give a target"
        return
    if pipeline.ddl.ddl_only:
        yield path, "is about rows that are moved: leave ddl.ddl_only out"
    if tables.existing != "refuse":
        yield path, f"without delete has no place beside tables.existing: {tables.existing}: leave one of them out"
    if tables.keyless != "refuse":
        yield path, "without delete needs a key of every table: leave tables.keyless out"
    if pipeline.swap.way_back:
        yield path, "without delete has no way back, as the source has not got what is kept: leave swap.way_back out"


def _way_back(pipeline: Pipeline) -> Iterator[tuple[KeyPath, str]]:
    """The other way needs two servers that are equal at the cut-over, and shown to be."""
    path = ("swap", "way_back")
    if pipeline.swap.way_back is None:
        return
    if pipeline.swap.way_back == pipeline.pipeline:
        yield path, "is this pipeline's own name"
    if pipeline.in_place:
        yield path, "is for a cut-over to another server; in place `revert` is the way back"
        return
    if pipeline.ddl.ddl_only:
        yield path, "needs rows that are moved: leave ddl.ddl_only out"
    if pipeline.swap.fence != "read_only":
        yield path, "needs swap.fence: read_only; what reached the old server after the cut-over would be overwritten"
    if not pipeline.verify.before_swap:
        yield path, "needs verify.before_swap: true; the way back begins with two sides that are equal"
    if pipeline.capture.rows == "none":
        yield path, "needs rows that are captured: capture.rows"
    for key in ("where", "transform"):
        if getattr(pipeline.tables, key):
            yield path, f"has no place beside tables.{key}: the target has not all that the source has, to lead it back"


def refuse_names(pipeline: Pipeline) -> None:
    """UsageError where a new pipeline's slots may have the names of another one's: those for rows are called after the
    pipeline behind this, those for DDL after it alone. One that bears such a name already is taken away by it."""
    for key, name in (("pipeline", pipeline.pipeline), ("swap.way_back", pipeline.swap.way_back)):
        if (name or "").startswith("rows_of_"):
            raise UsageError(
                f"{key}: {name} begins with rows_of_, so its slot may have the name of another pipeline's",
                todo="rename it",
            )


def _endpoints(pipeline: Pipeline) -> Iterator[tuple[KeyPath, str]]:
    for name, endpoint in (("source", pipeline.source), ("target", pipeline.target)):
        if endpoint is None:
            continue
        outside = endpoint.dsn is not None or endpoint.dsn_command is not None
        if (endpoint.conn_id is None) == (not outside):
            yield (name,), "give either conn_id or dsn (or dsn_command)"
    if pipeline.target is not None and pipeline.source == pipeline.target:
        yield ("target",), "is the source itself; leave target out to rewrite in place"


def _tables(pipeline: Pipeline) -> Iterator[tuple[KeyPath, str]]:
    named: tuple[tuple[KeyPath, Iterable[str]], ...] = (
        (("rewrite",), pipeline.rewrite),
        (("schema", "overrides"), pipeline.schema_.overrides),
        (("tables", "where"), pipeline.tables.where),
        (("tables", "transform"), pipeline.tables.transform),
        *((path, listed) for path, listed in column_lists(pipeline)),
    )
    for path, names in named:
        seen: dict[Name, str] = {}
        for name in names:
            if (first := seen.setdefault(table_name(name), name)) != name:
                yield (*path, name), f"is the same table as {first}"
    for path, listed in column_lists(pipeline):
        for name, columns in listed.items():
            if not columns:
                yield (*path, name), "names no column"
    yield from _transformed(pipeline)
    for name, overrides in pipeline.schema_.overrides.items():
        if overrides.skip_columns == ():
            yield ("schema", "overrides", name, "skip_columns"), "names no column"
    preserved = exact_columns(pipeline.schema_.preserve_columns)
    for name, columns in pipeline.schema_.null_removed_columns.items():
        for number, column in enumerate(columns):
            if column_name(column) in preserved.get(table_name(name), ()):
                path = ("schema", "null_removed_columns", name, number)
                yield path, f"{column} is in preserve_columns as well"


def _transformed(pipeline: Pipeline) -> Iterator[tuple[KeyPath, str]]:
    for name, values in pipeline.tables.transform.items():
        path = ("tables", "transform", name)
        skipped, seen = pipeline.skipped_columns.get(table_name(name), ()), dict[str, str]()
        if not values:
            yield path, "names no column"
        for column in values:
            if (first := seen.setdefault(column_name(column), column)) != column:
                yield (*path, column), f"is the same column as {first}"
            if column_name(column) in skipped:
                yield (*path, column), f"{column} is in skip_columns as well"


def _in_place(pipeline: Pipeline) -> Iterator[tuple[KeyPath, str]]:
    if not pipeline.rewrite:
        yield (), "without target it is a rewrite in place: name its tables under rewrite ({} removes bloat only)"
    for key in ("where", "transform"):
        if getattr(pipeline.tables, key):
            yield ("tables", key), "has no place in a rewrite in place, which keeps all rows as they are: give a target"
    for key in ("exclude", "schema_only", "skip_columns"):
        if getattr(pipeline.tables, key):
            yield ("tables", key), "has no place in a rewrite in place: it takes exactly the tables under rewrite"
    for name, overrides in pipeline.schema_.overrides.items():
        if overrides.skip_columns:
            path = ("schema", "overrides", name, "skip_columns")
            yield path, "has no place in a rewrite in place: write DROP COLUMN under rewrite"
    if pipeline.tables.existing != "refuse":
        yield ("tables", "existing"), "has no place in a rewrite in place: give a target, or leave it out"
    if pipeline.tables.keep_extra is not None:
        yield ("tables", "keep_extra"), "has no place in a rewrite in place: it is about tables that are adopted"
    if pipeline.tables.include and pipeline.rewrite:
        tables = {table_name(name): name for name in pipeline.rewrite}
        covered: set[Name] = set()
        for number, pattern in enumerate(pipeline.tables.include):
            matched = {table for table in tables if fits(pattern, table)}
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
    if pipeline.follow.finish:
        yield ("follow", "finish"), "needs a target: in place the swap brings all of it"


def _across(pipeline: Pipeline) -> Iterator[tuple[KeyPath, str]]:
    if pipeline.rewrite:
        yield ("rewrite",), "is for a rewrite in place: leave target out, or rewrite"
    if not pipeline.tables.include and not pipeline.tables.schema_only:
        yield ("tables", "include"), 'is missing: name the tables, such as ["public.*"]'
    if pipeline.capture.rows == "direct_trigger":
        yield ("capture", "rows"), "direct_trigger works in place only; use change_log or wal"
    if pipeline.tables.keyless == "copy_at_swap" and pipeline.swap.fence == "none":
        why = "needs swap.fence: read_only or lock: nobody sees what is written to such a table once it is copied"
        yield ("tables", "keyless"), f"copy_at_swap {why}"
    if pipeline.tables.keep_extra is not None and pipeline.tables.existing == "refuse":
        yield (
            ("tables", "keep_extra"),
            "is about tables that the target has already (tables.existing: adopt or replace)",
        )
    if pipeline.tables.existing == "replace":
        yield from _replacing(pipeline)
    if pipeline.tables.keep_extra and pipeline.swap.way_back:
        yield ("tables", "keep_extra"), "has no way back: the source has not got the rows that are kept"
    if not pipeline.swap.keep_old:
        yield ("swap", "keep_old"), "is for a rewrite in place; what a migration replaces is kept until cleanup"
    if pipeline.swap.signal_blockers != "off":
        yield ("swap", "signal_blockers"), "is for the swap of a rewrite in place; for DDL see ddl.signal_blockers"


def _replacing(pipeline: Pipeline) -> Iterator[tuple[KeyPath, str]]:
    path, without = ("tables", "existing"), "replace has no place beside"
    if pipeline.ddl.ddl_only:
        yield path, f"{without} ddl.ddl_only: no rows are moved"
    if pipeline.follow.finish:
        yield path, f"{without} follow.finish: what the swap brings would be on the tables that it replaces"
    if pipeline.swap.way_back:
        yield path, f"{without} swap.way_back: until cleanup `revert` puts the target's own tables back"
    if pipeline.tables.keyless == "copy_at_swap":
        yield path, f"{without} tables.keyless: copy_at_swap: leave tables without a key out"


def _ddl(pipeline: Pipeline) -> Iterator[tuple[KeyPath, str]]:
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
    for key in ("where", "transform"):
        if ddl.ddl_only and getattr(pipeline.tables, key):
            yield ("tables", key), "is about rows that are moved: leave ddl.ddl_only out"
    if capture.ddl == "off" and ddl.ddl_only:
        yield ("ddl", "ddl_only"), "needs capture.ddl: queue or wal"
    if pipeline.follow.finish and not pipeline.in_place:
        if capture.ddl == "off":
            yield ("follow", "finish"), "needs capture.ddl: queue or wal"
        if ddl.ddl_only:
            yield ("follow", "finish"), "is about tables whose rows are followed: leave ddl.ddl_only out"
    if capture.failover and capture.rows != "wal":
        yield ("capture", "failover"), "needs a slot: capture.rows: wal"
    if capture.on_slot_lost != "fail" and "wal" not in (capture.rows, capture.ddl):
        yield ("capture", "on_slot_lost"), "needs a slot: capture.rows or capture.ddl: wal"


def _lossy(pipeline: Pipeline) -> Iterator[tuple[KeyPath, str]]:
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
    places: list[tuple[KeyPath, SchemaPolicy | Overrides]] = [(("schema",), policy)]
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
