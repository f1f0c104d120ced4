"""Two versions of one table, and what lies between them: from metadata, never from the text of a statement. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from airflow_provider_pgddl.engine.ddl.captured_events import ColumnMeta, ConstraintMeta, IndexMeta, KeyMeta, TableMeta
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.schema.definitions import (
    flags,
    index_options,
    same_constraint,
    same_expression,
    same_index,
    same_partition_key,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    before: T
    after: T


@dataclass(frozen=True, slots=True)
class ColumnDiff:
    """A column that both versions have. `changed` names what differs: name, type, typmod, collation, default, not_null,
    generated, identity, local, rest; and type_name, where its type is the same one under another name."""

    before: ColumnMeta
    after: ColumnMeta
    changed: frozenset[str]

    @property
    def retyped(self) -> bool:
        return not self.changed.isdisjoint({"type", "typmod", "collation"})


@dataclass(frozen=True, slots=True)
class ConstraintDiff:
    """`changed`: name, definition (what it demands), flags (deferrable, deferred, enforced), validated, local."""

    before: ConstraintMeta
    after: ConstraintMeta
    changed: frozenset[str]


@dataclass(frozen=True, slots=True)
class IndexDiff:
    """`changed`: name, definition, options (its WITH)."""

    before: IndexMeta
    after: IndexMeta
    changed: frozenset[str]


@dataclass(frozen=True, slots=True)
class TableDiff:
    """What changed from one version of a table to the next; null and empty where nothing did.

    Of a table that was created every column, constraint and index was added, of one that was dropped they were
    dropped; what else it is (owner, options …) is in the version.
    """

    oid: int
    before: Name | None
    after: Name | None
    renamed: Changed[str] | None = None
    moved: Changed[str] | None = None
    """To another schema."""
    columns_added: tuple[ColumnMeta, ...] = ()
    columns_dropped: tuple[ColumnMeta, ...] = ()
    columns: tuple[ColumnDiff, ...] = ()
    constraints_added: tuple[ConstraintMeta, ...] = ()
    constraints_dropped: tuple[ConstraintMeta, ...] = ()
    constraints: tuple[ConstraintDiff, ...] = ()
    indexes_added: tuple[IndexMeta, ...] = ()
    indexes_dropped: tuple[IndexMeta, ...] = ()
    indexes: tuple[IndexDiff, ...] = ()
    key: Changed[KeyMeta | None] | None = None
    replica_identity: Changed[tuple[str, str | None]] | None = None
    """pg_class.relreplident, and the index of 'i'."""
    owner: Changed[str] | None = None
    options: Changed[list[str]] | None = None
    parents: Changed[list[list[str]]] | None = None
    bound: Changed[str | None] | None = None
    partition_key: Changed[str | None] | None = None
    persistence: Changed[str] | None = None
    kind: Changed[str] | None = None
    definition: Changed[str | None] | None = None
    """A view's query."""
    descendants: Changed[list[int]] | None = None
    rest: Changed[str | None] | None = None

    @property
    def created(self) -> bool:
        return self.before is None

    @property
    def dropped(self) -> bool:
        return self.after is None

    @property
    def columns_renamed(self) -> dict[str, str]:
        return {c.before["name"]: c.after["name"] for c in self.columns if "name" in c.changed}

    @property
    def columns_retyped(self) -> tuple[ColumnDiff, ...]:
        return tuple(c for c in self.columns if c.retyped)

    def having(self, what: str) -> tuple[ColumnDiff, ...]:
        """The columns in which this changed (`not_null`, `default` …)."""
        return tuple(c for c in self.columns if what in c.changed)

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return self.created or self.dropped or any(self._changes().values())

    def _changes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name not in ("oid", "before", "after")}

    def to_json(self) -> dict[str, Any]:
        """Every field, whether it changed or not; pairs as {"before": …, "after": …}."""
        whole: dict[str, Any] = {
            "oid": self.oid,
            "before": list(self.before) if self.before else None,
            "after": list(self.after) if self.after else None,
            "created": self.created,
            "dropped": self.dropped,
        }
        return whole | {name: _json(value) for name, value in self._changes().items()}


def _json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    if isinstance(value, Changed):
        return {"before": _json(value.before), "after": _json(value.after)}
    if isinstance(value, ColumnDiff | ConstraintDiff | IndexDiff):
        return {"before": value.before, "after": value.after, "changed": sorted(value.changed)}
    return value


def table_diff(before: TableMeta | None, after: TableMeta | None) -> TableDiff:
    """What lies between two versions of one table; None stands for a table that is not there."""
    if before is None and after is None:
        raise ValueError("a difference needs at least one version")
    if before is None or after is None:
        return _whole(before, after)
    columns, added, dropped = _columns(before, after)
    renamed = {c.before["name"]: c.after["name"] for c in columns if "name" in c.changed}
    constraints, constraints_added, constraints_dropped = _matched(
        before["constraints"], after["constraints"], lambda c: (c["type"], c["name"])
    )
    indexes, indexes_added, indexes_dropped = _matched(before["indexes"], after["indexes"], lambda i: i["name"])
    return TableDiff(
        oid=after["oid"],
        before=name_of(before),
        after=name_of(after),
        renamed=_changed(before["name"], after["name"]),
        moved=_changed(before["schema"], after["schema"]),
        columns_added=tuple(added),
        columns_dropped=tuple(dropped),
        columns=tuple(c for c in columns if c.changed),
        constraints_added=tuple(constraints_added),
        constraints_dropped=tuple(constraints_dropped),
        constraints=tuple(c for c in (_constraint(*pair, renamed) for pair in constraints) if c.changed),
        indexes_added=tuple(indexes_added),
        indexes_dropped=tuple(indexes_dropped),
        indexes=tuple(i for i in (_index(*pair, renamed) for pair in indexes) if i.changed),
        key=_changed(before["key"], after["key"]),
        replica_identity=_changed(
            (before["replica_identity"], before["replica_index"]), (after["replica_identity"], after["replica_index"])
        ),
        owner=_changed(before["owner"], after["owner"]),
        options=_changed(before["options"], after["options"]),
        parents=_changed(before["parents"], after["parents"]),
        bound=_changed(before["bound"], after["bound"]),
        partition_key=_partition_key(before["partition_key"], after["partition_key"], renamed),
        persistence=_changed(before["persistence"], after["persistence"]),
        kind=_changed(before["kind"], after["kind"]),
        definition=_changed(before["definition"], after["definition"]),
        descendants=_changed(before["descendants"], after["descendants"]),
        rest=_rest(before, after, [*constraints, *indexes]),
    )


def mask(meta: TableMeta, skip: Collection[str] = ()) -> list[int]:
    """The attnums of the columns that are replicated: all but `skip` (names) and what each side generates itself."""
    return [c["attnum"] for c in meta["columns"] if c["name"] not in skip and not c["generated"]]


def name_of(meta: TableMeta) -> Name:
    return meta["schema"], meta["name"]


def _whole(before: TableMeta | None, after: TableMeta | None) -> TableDiff:
    meta = after or before
    assert meta is not None
    columns, constraints, indexes = tuple(meta["columns"]), tuple(meta["constraints"]), tuple(meta["indexes"])
    if after is not None:
        return TableDiff(
            meta["oid"],
            None,
            name_of(meta),
            columns_added=columns,
            constraints_added=constraints,
            indexes_added=indexes,
        )
    return TableDiff(
        meta["oid"],
        name_of(meta),
        None,
        columns_dropped=columns,
        constraints_dropped=constraints,
        indexes_dropped=indexes,
    )


def _changed(before: T, after: T) -> Changed[T] | None:
    return None if before == after else Changed(before, after)


def _columns(before: TableMeta, after: TableMeta) -> tuple[list[ColumnDiff], list[ColumnMeta], list[ColumnMeta]]:
    """Columns are known by attnum; across a dump and restore, which deals out new ones, by the injector's identity."""
    same_relation = before["oid"] == after["oid"]
    by_id = not same_relation and all(c.get("id") for c in [*before["columns"], *after["columns"]])

    def identity(column: ColumnMeta) -> Any:
        return column.get("id") if by_id else column["attnum"]

    was = {identity(c): c for c in before["columns"]}
    is_ = {identity(c): c for c in after["columns"]}
    renamed = {was[i]["name"]: c["name"] for i, c in is_.items() if i in was and was[i]["name"] != c["name"]}
    both = [ColumnDiff(was[i], c, _column(was[i], c, renamed, same_relation)) for i, c in is_.items() if i in was]
    return both, [c for i, c in is_.items() if i not in was], [c for i, c in was.items() if i not in is_]


_PLAIN = ("name", "typmod", "collation", "not_null", "generated", "identity", "local")


def _column(before: ColumnMeta, after: ColumnMeta, renamed: Mapping[str, str], same_relation: bool) -> frozenset[str]:
    was, is_ = cast(Mapping[str, Any], before), cast(Mapping[str, Any], after)
    changed = {what for what in _PLAIN if was[what] != is_[what]}
    # oids are those of one cluster's life; a type that was renamed keeps its own
    other_type = before["type_oid"] != after["type_oid"] if same_relation else _bare(before) != _bare(after)
    if other_type:
        changed.add("type")
    elif before["type"] != after["type"] and "typmod" not in changed:
        changed.add("type_name")
    if not _same_default(before, after, renamed):
        changed.add("default")
    if rest_of(before) != rest_of(after):
        changed.add("rest")
    return frozenset(changed)


def _bare(column: ColumnMeta) -> str:
    """A type without its typmod, which is compared by itself."""
    return column["type"].split("(", 1)[0].rstrip()


def _same_default(before: ColumnMeta, after: ColumnMeta, renamed: Mapping[str, str]) -> bool:
    was, is_ = before["default"], after["default"]
    if was is None or is_ is None or was == is_ or not (before["generated"] and after["generated"]):
        return was == is_
    return same_expression(was, is_, renamed)


def _matched(
    before: Sequence[T], after: Sequence[T], name: Callable[[T], Any]
) -> tuple[list[tuple[T, T]], list[T], list[T]]:
    """Pairs by oid, then by name: a column's new type makes the server build what stands on it anew."""
    oid = cast(Callable[[T], int], lambda item: item["oid"])
    was = {oid(item): item for item in before}
    pairs = [(was.pop(oid(item)), item) for item in after if oid(item) in was]
    paired = {oid(item) for _, item in pairs}
    left = {name(item): item for item in was.values()}
    added = []
    for item in after:
        if oid(item) in paired:
            continue
        if name(item) in left:
            pairs.append((left.pop(name(item)), item))
        else:
            added.append(item)
    return pairs, added, list(left.values())


def _constraint(before: ConstraintMeta, after: ConstraintMeta, renamed: Mapping[str, str]) -> ConstraintDiff:
    changed = {what for what in ("name", "validated", "local") if before[what] != after[what]}
    if before["definition"] != after["definition"]:
        if flags(before["definition"]) != flags(after["definition"]):
            changed.add("flags")
        # The same constraint demands the same, whatever the names in it have become.
        if before["oid"] != after["oid"] and not same_constraint(_enforced(before), _enforced(after), renamed):
            changed.add("definition")
    return ConstraintDiff(before, after, frozenset(changed))


def _enforced(constraint: ConstraintMeta) -> str:
    return constraint["definition"].removesuffix(" NOT VALID")


def _index(before: IndexMeta, after: IndexMeta, renamed: Mapping[str, str]) -> IndexDiff:
    changed = {"name"} if before["name"] != after["name"] else set()
    if before["definition"] != after["definition"]:
        if before["oid"] != after["oid"] and not same_index(before["definition"], after["definition"], renamed):
            changed.add("definition")
        elif index_options(before["definition"]) != index_options(after["definition"]):
            changed.add("options")
    return IndexDiff(before, after, frozenset(changed))


# Newer minor versions note among a column's options when it got its type; a dump leaves that out, and nobody sets it.
_VERSION = re.compile(r"(?<=\{)pg_attver=\d+,?|,pg_attver=\d+")


def rest_of(meta: TableMeta | ColumnMeta) -> frozenset[str]:
    """The parts of its `rest`."""
    rest = _VERSION.sub("", meta.get("rest") or "")
    return frozenset(part for part in rest.split("; ") if part not in ("", "options {}"))


def _rest(before: TableMeta, after: TableMeta, pairs: Iterable[tuple[Any, Any]]) -> Changed[str | None] | None:
    """But for the new names of the indexes and constraints in it."""
    names = {f" {was['name']}": f" {is_['name']}" for was, is_ in pairs if was["name"] != is_["name"]}
    renamed = {
        next((part.removesuffix(old) + new for old, new in names.items() if part.endswith(old)), part)
        for part in rest_of(before)
    }
    return None if renamed == rest_of(after) else Changed(before.get("rest"), after.get("rest"))


def _partition_key(before: str | None, after: str | None, renamed: Mapping[str, str]) -> Changed[str | None] | None:
    """It never changes but for the names in it."""
    same = before is not None and after is not None and same_partition_key(before, after, renamed)
    return None if same else _changed(before, after)
