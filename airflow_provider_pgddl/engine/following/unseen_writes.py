"""Writes that no log has seen: where what captures a table was off for a while, an empty log says nothing (C9). Whoever
trusts one asks here as well."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg import sql

from airflow_provider_pgddl.engine.capture import change_log
from airflow_provider_pgddl.engine.capture.fence import unfenced
from airflow_provider_pgddl.engine.errors import StageFailed
from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.names import Name
from airflow_provider_pgddl.engine.model.tables import Table
from airflow_provider_pgddl.engine.schema.drift import AGAIN, physical_drift
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("capture")


@dataclass(frozen=True, slots=True)
class Unseen:
    """Why a table may have been written to without its log's knowledge, and what it is now. `off`: ALTER TABLE for each
    trigger of ours that is there and does not fire in every session."""

    row: TableRow
    why: list[str]
    now: Table
    off: list[str]


def unseen_writes(conn: Session, capture: str, rows: Sequence[TableRow], *, by_name: bool = False) -> list[Unseen]:
    """Of captured tables (by the `capture` of this name) those that are not as they were recorded. One that is gone has
    nothing left to lose, but what has its name now (`by_name`) may be what applications write to."""
    names = change_log.capture_names(capture)
    now = catalog.describe(conn, [row.oid for row in rows], names)
    if by_name:
        now |= _namesakes(conn, [row for row in rows if row.oid not in now], names)
    leaves = [leaf.oid for table in now.values() for leaf in table.leaves]
    empty = {oid for (oid,) in conn.execute(_Q["never_written"], [leaves])}
    off = dict[int, list[str]]()
    for oid, *trigger in conn.execute(_Q["not_always"], [leaves, list(names)]):
        schema, relation, name = trigger
        on = sql.SQL("ALTER TABLE {} ENABLE ALWAYS TRIGGER {};")
        statement = on.format(sql.Identifier(schema, relation), sql.Identifier(name))
        off.setdefault(oid, []).append(statement.as_string(conn))
    found = []
    for row in rows:
        if (table := now.get(row.oid)) is None:
            continue
        known = {**{str(leaf.oid): [leaf.filenode, leaf.attributes, leaf.triggers] for leaf in table.leaves
                    if leaf.oid in empty}, **row.physical}  # fmt: skip
        if why := physical_drift(known, table, followed=False):
            these = [statement for leaf in table.leaves for statement in off.get(leaf.oid, ())]
            found.append(Unseen(row, [one.removesuffix(f"; {AGAIN}") for one in why], table, these))
    return found


def _namesakes(conn: Session, gone: Iterable[TableRow], names: Sequence[str]) -> dict[int, Table]:
    """By the oid of the table that was there before. A view in its place holds no rows."""
    by_name = {(row.schema, row.name): row.oid for row in gone}
    found = {oid: by_name[name] for name, oid in catalog.oids_of(conn, by_name).items()}
    tables = catalog.describe(conn, found, names)
    return {found[oid]: table for oid, table in tables.items() if table.kind in ("r", "p")}


def refuse_unseen_writes(found: Sequence[Unseen], *, of: str, where: str, carry: str) -> None:
    """Nobody can tell what was written, so a person looks, and says so: `of`, the journal's table, is told what the
    table is by then, so whatever comes after that is refused again. Not so where nothing captures a relation by then:
    a fence has to keep writers out there, or the person, who is told of it."""
    if not found:
        return
    off = [statement for one in found for statement in one.off]
    table = found[0].row.qualified if len(found) == 1 else None
    what = "; ".join(why for one in found for why in one.why) + "; what was written then is in no log"
    if off:
        raise StageFailed(
            what, table=table,
            todo=f"switch it on again on the {where}, so that nothing more is missed, and run this again, which says "
            "how to go on", sql="\n".join(off),
        )  # fmt: skip
    if of == "reverses" and any(leaf.triggers is None for one in found for leaf in one.now.leaves):
        raise StageFailed(what, table=table, todo=f"nothing logs the {where}'s new table any more, so there is no way "
                          "back: run stage cleanup, which ends the pipeline")  # fmt: skip
    if bare := sorted({f"{leaf.schema}.{leaf.name}" for one in found for leaf in one.now.leaves if not leaf.triggers}):
        carry = f"nothing logs {', '.join(bare)}, so see first that nobody writes there any more; {carry}"
    accept = sql.SQL("UPDATE pgddl.{} SET physical = {} WHERE id = {};")
    raise StageFailed(
        what,
        table=table,
        todo=f"{carry}; then tell the journal on the target that you have looked, and run this again",
        sql="\n".join(
            accept.format(
                sql.Identifier(of), sql.Literal(json.dumps(one.now.physical())), sql.Literal(one.row.id)
            ).as_string()
            for one in found
        ),
    )


def without_log(source: Session, pipeline: str, tables: Sequence[TableRow]) -> list[Name]:
    """What a cut-over has closed for good, as it has no key and so no log, and what is open."""
    return unfenced(source, pipeline, [(table.schema, table.name) for table in tables if table.keyless])


def refuse_without_log(relations: Sequence[Name], then: str) -> None:
    if relations:
        raise StageFailed(
            "the source had lost its fence where no log tells whether anything was written after the swap, as there is "
            f"no key: {', '.join('.'.join(name) for name in relations)}",
            todo=f"{then}; see what was written there, and carry it over by hand; then run this again",
        )
