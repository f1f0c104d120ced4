"""Rows of a table that was on the target before the pipeline: those that it alone has, and those that cannot come yet.

What only the target has is known by its keys, at a window's snapshot, whatever range its row is in there. Kept, it is
left out of all that is compared, emptied and read again, until the source comes to have a row of its key: from then on
that is the source's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from psycopg import errors as pg
from psycopg import sql

from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.plan import Adopted, Plan
from airflow_provider_pgddl.engine.model.ranges import Range
from airflow_provider_pgddl.engine.rights import as_owner, foreign_code
from airflow_provider_pgddl.engine.rows import foreign_keys_and_triggers
from airflow_provider_pgddl.engine.rows.ranges import where
from airflow_provider_pgddl.engine.rows.transfer import copy_between, read_statement, write_statement
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("adopted_rows")
_W = queries("windows")
# What a fuzzy block may meet in a table that has its indexes and foreign keys from the start.
MEETINGS = (pg.UniqueViolation, pg.ExclusionViolation, pg.ForeignKeyViolation)


OTHER_KEY = (
    "has another key now, and rows that only the target has are kept by the one before: give it that key again, or"
    " `pgddl reset --tables` it, which leaves its rows as they are, and run again from setup"
)


def uncompared(table: TableRow, *, other_part: bool = False) -> TableRow:
    """One that nobody knows the rows of any more. Those of one that was empty have come from the source, and a TRUNCATE
    there is about them. `other_part`: not all of them by the condition that there is now."""
    adopted: Adopted = "uncompared"
    if table.plan.adopted in ("empty", "begun", "other_part"):
        adopted = "other_part" if other_part or table.plan.adopted == "other_part" else "begun"
    return replace(table, plan=replace(table.plan, adopted=adopted, extra=""))


def compare_anew(target: Session, table: TableRow) -> None:
    """What was seen to be equal is not any more, as the source has lost rows as a whole that the copy has kept."""
    if table.plan.adopted == "uncompared":
        target.execute(queries("journal")["forget_verification"], [table.id])


def has_other_key(before: Plan, now: Plan) -> bool:
    """Whether rows that are kept are not known by the key that the table has come to have."""
    numbers = [[plan.columns.pairs.get(c, [0])[0] for c in plan.key.columns] for plan in (before, now)]
    return bool(before.extra) and numbers[0] != numbers[1]


def create_extra(target: Session, table: TableRow) -> str:
    """The keys of rows that are kept; returns what `Plan.extra` is to be."""
    name = f"extra_{table.id}"
    parts = {"pending": sql.Identifier("pgddl", name), "keys": table.plan.key.list()}
    definitions = table.plan.key.definitions("k", not_null=True)
    target.execute(sql.SQL(_W["create_pending"]).format(definitions=definitions, **parts))
    target.execute(sql.SQL(_W["pending_replica_identity"]).format(pending=parts["pending"]))
    return name


def retype_extra(target: Session, was: Plan, now: Plan) -> None:
    """Where a column of the key has come to have another type."""
    for number, (before, type_) in enumerate(zip(was.key.types, now.key.types, strict=False), 1):
        if now.extra and before != type_:
            column, of_type = sql.Identifier(f"k{number}"), sql.SQL(type_)
            alter = sql.SQL(_Q["retype_extra"]).format(extra=now.extra_keys, column=column, type=of_type)
            target.execute(alter)


def drop_extra(target: Session, table_id: int) -> None:
    target.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier("pgddl", f"extra_{table_id}")))


def forget_extra(target: Session, plan: Plan, staging: sql.Identifier) -> None:
    """Of the staged keys the source has come to have the rows."""
    if plan.extra:
        same = plan.key.same("x", "k", "k", "k")
        target.execute(sql.SQL(_Q["forget_extra"]).format(extra=plan.extra_keys, staging=staging, same=same))


def empty_copy(target: Session, plan: Plan, role: str = "") -> None:
    """All rows of the source leave the copy, as the role where it has code of it; of an archive none does. Of one that
    keeps others none does behind the wall (`archive.not_behind_the_wall`)."""
    if plan.operations:
        return
    if plan.extra:
        target.execute(but_extra(plan, plan.copy_only))
        return
    foreign_keys_and_triggers.empty(target, [plan.copy_only], [(plan.copy_schema, plan.copy_name)], role)


def but_extra(plan: Plan, relation: sql.Composable) -> sql.Composed:
    """DELETE of what came from the source."""
    same = plan.key.join("c", "x")
    return sql.SQL(_Q["delete_but_extra"]).format(relation=relation, extra=plan.extra_keys, same=same)


def stage_extra(source: Session, target: Session, table: TableRow, within: Range) -> tuple[sql.Identifier, int]:
    """The keys of the copy's rows in a range that the source has not at its snapshot, wherever it would have them; in a
    temporary table of the target, and how many. The live table is locked, and so is the copy.

    What the source has, and came by a condition that is another one now, is nobody else's."""
    plan = table.plan
    if plan.adopted == "other_part":
        table = replace(table, plan=replace(plan, where=""))
    here, alone = (_staging(target, purpose, plan, table.id) for purpose in ("range", "alone"))
    query = sql.SQL(_W["keys_of_copy"]).format(
        keys=_typed_keys(plan), copy=shown_as_t(plan), where=where(plan, within), staging=here,
        same=plan.key.join("c", "k"),
    )  # fmt: skip
    with as_owner.selected(target, foreign_code.writer_of(target, plan), query, plan.key.types, here) as rows:
        found = target.execute(sql.SQL("INSERT INTO {} ({}) {}").format(here, plan.key.list(), rows)).rowcount
    return alone, _stage_missing(source, target, table, here, alone) if found else 0


def spare_extra(source: Session, target: Session, table: TableRow, staging: sql.Identifier) -> int:
    """Takes keys of rows that only the target has out of the staged ones; of those that are kept, where the source has
    no row for the target to take their place at its snapshot: it never had one (`tables.where`), or not for long.
    Returns how many."""
    plan = table.plan
    spared = _spare_unknown(target, table, staging) if plan.where_there and plan.adopted == "uncompared" else 0
    return spared + (_spare_known(source, target, table, staging) if plan.extra else 0)


def _spare_unknown(target: Session, table: TableRow, staging: sql.Identifier) -> int:
    """Of rows that nobody has decided about, those that cannot be the source's: if it has come to have one of such a
    key, comparing tells."""
    plan = table.plan
    if plan.keepers.removes_extra:
        return 0
    others = _staging(target, "others", plan, table.id)
    known = sql.SQL("SELECT FROM {} AS x WHERE {}").format(plan.extra_keys, plan.key.join("c", "x"))
    query = sql.SQL(_Q["others_of_copy"]).format(
        keys=_typed_keys(plan), copy=plan.copy_only, staging=staging, join=plan.key.join("c", "k"),
        where=sql.SQL(plan.where_there), known=known if plan.extra else sql.SQL("SELECT WHERE false"),
    )  # fmt: skip
    with as_owner.selected(target, foreign_code.writer_of(target, plan), query, plan.key.types, staging) as rows:
        target.execute(sql.SQL("INSERT INTO {} ({}) {}").format(others, plan.key.list(), rows))
    parts = {"staging": staging, "same": plan.key.same("x", "k", "k", "k")}
    return target.execute(sql.SQL(_Q["spare_extra"]).format(alone=others, **parts)).rowcount


def _spare_known(source: Session, target: Session, table: TableRow, staging: sql.Identifier) -> int:
    plan = table.plan
    here, alone = (_staging(target, purpose, plan, table.id) for purpose in ("kept", "alone"))
    parts = {"keys": plan.key.list(), "staging": staging, "same": plan.key.same("x", "k", "k", "k")}
    if not target.execute(sql.SQL(_Q["staged_extra"]).format(here=here, extra=plan.extra_keys, **parts)).rowcount:
        return 0
    if not _stage_missing(source, target, table, here, alone):
        return 0
    return target.execute(sql.SQL(_Q["spare_extra"]).format(alone=alone, **parts)).rowcount


def _stage_missing(
    source: Session, target: Session, table: TableRow, here: sql.Identifier, alone: sql.Identifier
) -> int:
    """Into `alone`, of the keys in `here` on the target, those that the source has no row of for the target."""
    plan = table.plan
    there = _staging(source, "there", plan, table.id)
    read = read_statement(sql.SQL("SELECT {} FROM {}").format(plan.key.list(), here), plan.key.binary)
    copy_between(target, source, read, write_statement(there, plan.key.list(), plan.key.binary))
    source.execute(sql.SQL("ANALYZE {}").format(there))
    missing = sql.SQL(_Q["not_on_source"]).format(
        keys=plan.key.list(), staging=there, source=plan.rows, join=plan.key.join("t", "k")
    )
    with as_owner.selected(source, foreign_code.reader_of(source, plan), missing, plan.key.types, there) as rows:
        read = read_statement(rows, plan.key.binary)
        write = write_statement(alone, plan.key.list(), plan.key.binary)
        return copy_between(source, target, read, write, wordless=plan.in_part).rows


def shown_as_t(plan: Plan) -> sql.Composed:
    return sql.SQL("{} AS t").format(plan.copy_shown)


def keep_extra(target: Session, plan: Plan, staging: sql.Identifier) -> None:
    """The staged keys are of rows that stay as they are."""
    parts = {"pending": plan.extra_keys, "keys": plan.key.list(), "staging": staging}
    target.execute(sql.SQL(_W["add_pending"]).format(**parts))


def count_extra(target: Session, tables: Sequence[TableRow]) -> dict[str, int]:
    """Rows that are kept, by table."""
    found = {}
    for table in (t for t in tables if t.plan.extra):
        row = target.execute(sql.SQL("SELECT count(*) FROM {}").format(table.plan.extra_keys)).fetchone()
        found[table.qualified] = int(row[0]) if row else 0
    return found


def insert_or_leave(source: Session, target: Session, table_id: int, plan: Plan, rows: sql.Composable) -> int:
    """The rows of a query into a copy that has its indexes already: one that meets another row there becomes pending,
    as do all where the server cannot tell which one that is. Returns how many came.

    In a block that is read while clients write, whatever meets something has changed since capture began."""
    arrivals, insert, as_they_are = as_owner.bare_arrivals(target, plan, "pgddl_adopted")
    binary = plan.columns.binary and as_they_are
    read, write = read_statement(rows, binary), write_statement(arrivals, plan.columns.list, binary)
    copied = copy_between(source, target, read, write, wordless=plan.in_part).rows
    left = _staging(target, "left", plan, table_id)
    parts = {"left": left, "keys": plan.key.list(), "arrived": _typed_keys(plan, "a"), "arrivals": arrivals}
    left_all, came = sql.SQL(_Q["leave_all"]).format(**parts), 0
    # A deferrable constraint is no arbiter; and what the wall is for is not run as ourselves.
    if plan.keepers.writer or _deferrable(target, plan):
        target.execute(left_all)
    else:
        one_by_one = sql.SQL(_Q["insert_or_leave"]).format(
            insert=_behind_alias(plan, insert), put=_typed_keys(plan), same=plan.key.same("a", "k", "p", "k"), **parts
        )
        try:
            with target.transaction():
                came = copied - target.execute(one_by_one).rowcount
        except MEETINGS:  # foreign keys, which do not say of which row
            target.execute(left_all)
    pending = {"pending": sql.Identifier("pgddl", f"pending_{table_id}"), "keys": plan.key.list(), "staging": left}
    target.execute(sql.SQL(_W["add_pending"]).format(**pending))
    target.execute(sql.SQL("DROP TABLE {}").format(arrivals))
    return came


def _behind_alias(plan: Plan, insert: sql.Composed) -> sql.Composed:
    """INSERT INTO copy AS c …: what is returned is named by it."""
    into = sql.SQL("INSERT INTO {} (").format(plan.copy).as_string()
    text = insert.as_string()
    assert text.startswith(into)
    aliased = sql.SQL("INSERT INTO {} AS c (").format(plan.copy).as_string() + text.removeprefix(into)
    return sql.Composed([sql.SQL(aliased)])


def _deferrable(target: Session, plan: Plan) -> bool:
    row = target.execute(_Q["deferrable"], {"schema": plan.copy_schema, "name": plan.copy_name}).fetchone()
    return bool(row and row[0])


def _typed_keys(plan: Plan, alias: str = "c") -> sql.Composed:
    """… AS k1, … AS k2, …"""
    key = zip(plan.key.columns, plan.key.types, strict=True)
    return sql.SQL(", ").join(
        sql.SQL("{}::{} AS {}").format(sql.Identifier(alias, c), sql.SQL(t), sql.Identifier(f"k{n}"))
        for n, (c, t) in enumerate(key, 1)
    )


def _staging(conn: Session, purpose: str, plan: Plan, table_id: int) -> sql.Identifier:
    """A session's temporary table of keys, empty."""
    staging = sql.Identifier("pg_temp", f"pgddl_{purpose}_{table_id}_{plan.key.digest}")
    conn.execute(sql.SQL(_W["create_staging"]).format(staging=staging, definitions=plan.key.definitions("k")))
    conn.execute(sql.SQL("TRUNCATE {}").format(staging))
    return staging
