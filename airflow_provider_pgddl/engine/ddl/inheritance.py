"""Parents, partitions and children: joining them, leaving them, and whether they took part in what was done. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from airflow_provider_pgddl.engine.ddl.captured_events import ColumnMeta, ConstraintMeta, TableMeta
from airflow_provider_pgddl.engine.ddl.compose import Statements, ident, raw, spell
from airflow_provider_pgddl.engine.ddl.create_table import World, column
from airflow_provider_pgddl.engine.schema.table_versions import name_of


def leave_parents(before: TableMeta, after: TableMeta, world: World, subjects: Collection[int]) -> Statements:
    name = ident(name_of(after))
    for parent, oid in _parents(before, world.before):
        if _among(parent, oid, _parents(after, world.known)):
            continue
        if before["bound"] is not None:
            yield spell("ALTER TABLE {} DETACH PARTITION {}", ident(parent), name)
        else:
            yield spell("ALTER TABLE {} NO INHERIT {}", name, ident(parent))
    # one that the command reports itself is looked after there
    elsewhere = {*after["descendants"], *subjects, *world.dropped}
    for part in (world.before[oid] for oid in before["descendants"] if oid in world.before and oid not in elsewhere):
        if part["bound"] is not None and list(name_of(before)) in part["parents"]:  # deeper ones left with theirs
            yield spell("ALTER TABLE {} DETACH PARTITION {}", name, ident(name_of(part)))


def join_parents(before: TableMeta, after: TableMeta, world: World, subjects: Collection[int]) -> Statements:
    name = ident(name_of(after))
    for parent, oid in _parents(after, world.known):
        if _among(parent, oid, _parents(before, world.before)):
            continue
        if after["bound"] is not None:
            yield spell("ALTER TABLE {} ATTACH PARTITION {} {}", ident(parent), name, raw(after["bound"]))
        else:
            yield spell("ALTER TABLE {} INHERIT {}", name, ident(parent))
    for was, part in world.descendants(after):
        # One that was made a partition says so itself: of its parent, nothing was recorded then.
        told = part["oid"] in subjects or (was is not None and list(name_of(before)) in was["parents"])
        if (
            not told
            and part["oid"] not in before["descendants"]
            and part["bound"] is not None
            and list(name_of(after)) in part["parents"]
        ):
            yield spell("ALTER TABLE {} ATTACH PARTITION {} {}", name, ident(name_of(part)), raw(part["bound"]))


def _parents(meta: TableMeta, known: Mapping[int, TableMeta]) -> list[tuple[list[str], int | None]]:
    """Each parent's name, and its oid where that is known."""
    oids = {name_of(other): oid for oid, other in known.items()}
    return [(parent, oids.get((parent[0], parent[1]))) for parent in meta["parents"]]


def _among(parent: list[str], oid: int | None, others: Iterable[tuple[list[str], int | None]]) -> bool:
    """Whether it is one of these parents, under the same name or under another one."""
    return any(parent == name or (oid is not None and oid == other) for name, other in others)


def constraint_stays(constraint: ConstraintMeta, world: World, after: TableMeta) -> bool:
    """Whether the children kept what they had inherited."""
    for was, is_ in world.descendants(after):
        here = {c["name"]: c for c in (was["constraints"] if was else ())}
        inherited = constraint["name"] in here and not here[constraint["name"]]["local"]
        if inherited and any(c["name"] == constraint["name"] for c in is_["constraints"]):
            return True
    return False


def column_stays(dropped: ColumnMeta, after: TableMeta, world: World) -> bool:
    for was, is_ in world.descendants(after):
        here = column(was, dropped["name"]) if was else None
        if here and not here["local"] and any(c["attnum"] == here["attnum"] for c in is_["columns"]):
            return True
    return False


def descendants_followed(after: TableMeta, name: str, what: str, world: World) -> bool:
    """Whether all descendants ended as the table did: then they were told by it."""
    own = column(after, name)
    theirs = [column(part, name) for _, part in world.descendants(after)]
    return all(c is None or own is None or c[what] == own[what] for c in theirs)  # type: ignore[literal-required]
