"""Columns that the copy alone has: their values outlive that a row leaves the copy and comes back (C5).

A row that has changed is deleted from the copy and inserted again. What nobody but the copy knows of it waits
meanwhile in a table of its own, by key. A value stands there at the key that its row had at one snapshot of the source:
that of the chunk that has brought the row, else that of the last window, or of the birth of a run whose copies were
complete from the first. Each window takes the values to the keys that
their rows have come to since, in the order of the log. Moves that a value's snapshot shows are not followed once more,
which would undo an exchange of keys: of a window that died before it had acknowledged them, or of keys that were
exchanged before their blocks were read. Nor are those of the way there, in the log of a way back: the rows that its
last windows have read again left the new server's tables, and not the old one's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from psycopg import sql

from airflow_provider_pgddl.engine.journal.tables import TableRow
from airflow_provider_pgddl.engine.model.plan import Plan
from airflow_provider_pgddl.engine.rows.change_log_reading import Logs, read_as, unmoved
from airflow_provider_pgddl.engine.rows.transfer import copy_between, read_statement, write_statement
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("copy_only_columns")
# The other columns bear their own names, so these have such as nobody gives.
NOT_BEHIND_THE_WALL = (
    "it has columns whose values have to be kept, and code of its owner, as whom they cannot be: "
    "name the owner in trusted_roles"
)
_KEY = "pgddl key "
_LEAF = "pgddl leaf"
_SEEN = "pgddl seen"  # the snapshot of the chunk that has brought the row; null: that of the last window
_BATCH = "pgddl batch"  # the transaction that has kept it; null once a window has followed it


def kept_table(table_id: int) -> sql.Identifier:
    return sql.Identifier("pgddl", f"kept_{table_id}")


def _until(table_id: int) -> sql.Identifier:
    return sql.Identifier("pgddl", f"kept_until_{table_id}")


# --- the table itself -------------------------------------------------------------------------------------------------


def fit(target: Session, table: TableRow) -> None:
    """Makes the table of kept values what the plan asks for, in the caller's transaction: with these columns, or not
    there where the plan keeps none. Values stay, but where the key's own types are others."""
    plan = table.plan
    if not plan.columns.kept:
        drop_kept(target, table)
        return
    keys = [f"{_KEY}{i}" for i in range(1, len(plan.key.columns) + 1)]
    wanted = {**dict(zip(keys, plan.key.types, strict=True)), _LEAF: "oid", _SEEN: "pg_snapshot", _BATCH: "xid8"}
    wanted |= dict(zip(plan.columns.kept, plan.columns.kept_types, strict=True))
    kept = kept_table(table.id)
    args = {"names": list(wanted), "types": list(wanted.values()), "keys": keys, "kept": f"pgddl.kept_{table.id}"}
    differences = target.execute(_Q["differences"], args).fetchall()
    if any(name in keys or there in keys for name, _, there in differences):
        drop_kept(target, table)
        _create(target, table)
        return
    for name, type_, there in differences:
        parts = {"kept": kept, "column": sql.Identifier(name or there), "type": sql.SQL(type_ or "")}
        if name is None:
            target.execute(sql.SQL(_Q["drop_column"]).format(**parts))
        elif there is None:
            target.execute(sql.SQL(_Q["add_column"]).format(**parts))
            _set_default(target, table, name)
        else:
            target.execute(sql.SQL(_Q["alter_column"]).format(**parts))


def _create(target: Session, table: TableRow) -> None:
    plan = table.plan
    definitions = sql.SQL(", ").join(
        [
            plan.key.definitions(_KEY, not_null=True),
            sql.SQL("{} oid NOT NULL").format(sql.Identifier(_LEAF)),
            sql.SQL("{} pg_catalog.pg_snapshot").format(sql.Identifier(_SEEN)),
            sql.SQL("{} pg_catalog.xid8 DEFAULT pg_catalog.pg_current_xact_id()").format(sql.Identifier(_BATCH)),
            *(
                sql.SQL("{} {}").format(sql.Identifier(c), sql.SQL(t))
                for c, t in zip(plan.columns.kept, plan.columns.kept_types, strict=True)
            ),
        ]
    )
    kept, until = kept_table(table.id), _until(table.id)
    target.execute(sql.SQL(_Q["create"]).format(kept=kept, definitions=definitions))
    target.execute(sql.SQL(_Q["index_keys"]).format(kept=kept, keys=plan.key.list(_KEY)))
    target.execute(sql.SQL(_Q["index_batch"]).format(kept=kept, batch=sql.Identifier(_BATCH)))
    target.execute(sql.SQL(_Q["create_until"]).format(until=until))
    for relation in (kept, until):  # someone else's FOR ALL TABLES publication would fail our updates
        target.execute(sql.SQL(_Q["replica_identity"]).format(relation=relation))


def _set_default(target: Session, table: TableRow, column: str) -> None:
    """Rows that were away when the column came would have got its default, too."""
    row = target.execute(_Q["default_of"], [table.plan.copy_schema, table.plan.copy_name, column]).fetchone()
    if row and row[0]:
        parts = {"kept": kept_table(table.id), "column": sql.Identifier(column), "value": sql.SQL(row[0])}
        target.execute(sql.SQL(_Q["set_default"]).format(**parts))


def rekey(target: Session, was: TableRow, now: TableRow) -> None:
    """When a table's plan becomes another: values stay where the key still is of the same columns, in their new types.

    Of another key nobody can tell which row they belong to, and of columns that are kept no more they are old ones."""
    kept, types = kept_table(now.id), zip(was.plan.key.types, now.plan.key.types, strict=False)
    row = target.execute(_Q["exists"], [f"pgddl.kept_{now.id}"]).fetchone()
    if row is None or not row[0]:
        return
    if not now.plan.columns.kept or has_other_key(was, now):
        drop_kept(target, now)
        return
    for i, (before, type_) in enumerate(types, 1):
        if before != type_:
            parts = {"kept": kept, "column": sql.Identifier(f"{_KEY}{i}"), "type": sql.SQL(type_)}
            target.execute(sql.SQL(_Q["alter_column"]).format(**parts))


def has_other_key(was: TableRow, now: TableRow) -> bool:
    """Whether the key is of other columns of the source than it was."""
    keys = [[t.version["attnums"].get(name) for name in t.plan.key.columns] for t in (was, now)]
    return keys[0] != keys[1]


def drop_kept(target: Session, table: TableRow) -> None:
    target.execute(sql.SQL(_Q["drop"]).format(kept=kept_table(table.id), until=_until(table.id)))


def count_kept(target: Session, table: TableRow, leaves: Collection[int] | None = None) -> int:
    """Rows that are away from the copy, and of which it alone has values; of these leaves of the copy only, by oid."""
    there = target.execute(_Q["exists"], [f"pgddl.kept_{table.id}"]).fetchone()
    if there != (True,):
        return 0
    row = target.execute(sql.SQL(_Q["count"]).format(kept=kept_table(table.id), which=kept_of(leaves))).fetchone()
    return int(row[0]) if row else 0


def kept_of(leaves: Collection[int] | None) -> sql.Composable:
    """The WHERE for values of rows that stood in these leaves of the copy, by oid; none for all."""
    if leaves is None:
        return sql.SQL("")
    return sql.SQL(" WHERE {} = ANY({}::oid[])").format(sql.Identifier(_LEAF), sql.Literal(list(leaves)))


def put_aside(table: TableRow, leaves: Collection[int] | None = None) -> str:
    """SQL for a person who writes the values to the rows by hand once these have come."""
    parts = {"kept": kept_table(table.id), "which": kept_of(leaves)}
    statements = "CREATE TABLE public.put_aside AS SELECT * FROM {kept}{which};\nDELETE FROM {kept}{which};"
    return sql.SQL(statements).format(**parts).as_string()


# --- rows leave the copy ----------------------------------------------------------------------------------------------


def delete_keeping(target: Session, table: TableRow, staging: sql.Identifier) -> None:
    """Deletes the rows of the staged keys from the copy, and keeps their values."""
    fit(target, table)
    plan = table.plan
    values = [
        *(
            sql.SQL("{} AS {}").format(sql.Identifier("k", f"k{i}"), sql.Identifier(f"{_KEY}{i}"))
            for i in range(1, len(plan.key.columns) + 1)
        ),
        *_leaf_and_values(plan),
    ]
    query = sql.SQL(_Q["delete_from_copy"]).format(
        copy=plan.copy_only, staging=staging, join=plan.key.join("c", "k"), **_saving(target, table, values)
    )
    target.execute(query)


def save_all(target: Session, table: TableRow) -> None:
    """Keeps the values of every row of the copy, in the transaction that empties it."""
    _save(target, table, table.plan.copy_only)


def save_leaves(target: Session, table: TableRow, leaves: Iterable[int]) -> None:
    """The same for these leaves of the source."""
    for leaf in leaves:
        name = table.plan.copies.get(str(leaf))
        if name:
            _save(target, table, sql.SQL("ONLY {}").format(sql.Identifier(*name)))


def _save(target: Session, table: TableRow, relation: sql.Composable) -> None:
    plan = table.plan
    if not plan.columns.kept or plan.operations:  # no row leaves an archive
        return
    fit(target, table)
    keys = (
        sql.SQL("CAST({} AS {}) AS {}").format(sql.Identifier("c", c), sql.SQL(t), sql.Identifier(f"{_KEY}{i}"))
        for i, (c, t) in enumerate(zip(plan.key.columns, plan.key.types, strict=True), 1)
    )
    saving = _saving(target, table, [*keys, *_leaf_and_values(plan)])
    target.execute(sql.SQL(_Q["save"]).format(relation=relation, **saving))


def _leaf_and_values(plan: Plan) -> list[sql.Composable]:
    leaf = sql.SQL("c.tableoid AS {}").format(sql.Identifier(_LEAF))
    return [leaf, sql.SQL("c.xmin AS pgddl_xmin"), *(sql.Identifier("c", c) for c in plan.columns.kept)]


def _saving(target: Session, table: TableRow, values: Iterable[sql.Composable]) -> dict[str, sql.Composable]:
    plan = table.plan
    args = [plan.copy_schema, plan.copy_name, list(plan.columns.kept)]
    row = target.execute(_Q["have_defaults"], args).fetchone()
    # A row that was written anew since, by hand or by an ALTER, is no chunk's any more.
    first = target.execute(_Q["first_seen"], [table.id]).fetchone()
    # Where a column has a default, NULL is a value, too: the row would not come back with it.
    nulls = sql.SQL("pg_catalog.num_nonnulls({}) > 0").format(_columns("g", plan.columns.kept))
    return {
        "kept": kept_table(table.id),
        "values": sql.SQL(", ").join(values),
        "columns": sql.SQL(", ").join([plan.key.list(_KEY), sql.Identifier(_LEAF), _columns(None, plan.columns.kept)]),
        "seen": sql.Identifier(_SEEN),
        "table": sql.Literal(table.id),
        "first_seen": sql.SQL("{}::pg_catalog.pg_snapshot").format(sql.Literal(first[0] if first else None)),
        "worth": sql.SQL("true") if row and row[0] else nulls,
    }


# --- keys change ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moves:
    """What the log says under a window's snapshot: keys that went elsewhere (in a temporary table), leaves that were
    truncated and by which transaction."""

    moves: sql.Identifier
    truncated: Sequence[tuple[int, str]]
    snapshot: str

    @property
    def leaves(self) -> list[int]:
        """Those that were truncated."""
        return sorted({leaf for leaf, _ in self.truncated})


def unfollowed(target: Session, table: TableRow) -> bool:
    """Whether values are kept that no window has taken along yet."""
    query = sql.SQL(_Q["unfollowed"]).format(kept=kept_table(table.id), batch=sql.Identifier(_BATCH))
    row = target.execute(query).fetchone()
    return bool(row and row[0])


def read_moves(
    logs: Logs, target: Session, table: TableRow, snapshot: str, first: Callable[[], str | None] = lambda: None
) -> Moves:
    """Of what no window has followed yet; `first` has the snapshot of the source that the values stand at before any
    has, None where that is each value's own."""
    plan = table.plan
    fit(target, table)
    row = target.execute(sql.SQL(_Q["followed_until"]).format(until=_until(table.id))).fetchone()
    until = sql.Literal(row[0] if row else first())
    moves = _temporary("moves", table)
    old, new = plan.key.list("old_"), plan.key.list("new_")
    definitions = plan.key.definitions("old_", "new_")
    target.execute(sql.SQL(_Q["create_moves"]).format(moves=moves, definitions=definitions))
    index = sql.Identifier(f"pgddl_moves_{table.id}_{plan.key.digest}_old")
    target.execute(sql.SQL(_Q["index_moves"]).format(index=index, moves=moves, old=old))
    log = logs.of(table)
    query = sql.SQL(_Q["moves"]).format(old=old, new=new, log=log, same=unmoved(logs, plan.key), until=until)
    query = read_as(logs, plan.key, moves, query)
    columns = sql.SQL("xid, at, {}, {}").format(old, new)
    if logs.session is target:
        target.execute(sql.SQL("INSERT INTO {} ({}) {}").format(moves, columns, query))
    else:
        write = write_statement(moves, columns, plan.key.binary)
        copy_between(logs.session, target, read_statement(query, plan.key.binary), write)
    truncated = logs.session.execute(sql.SQL(_Q["truncated"]).format(log=log, until=until)).fetchall()
    return Moves(moves, [(leaf, xid) for leaf, xid in truncated], snapshot)


def forget_strays(target: Session, table: TableRow, staging: sql.Identifier, pending: sql.Identifier) -> None:
    """Before keys become pending: what is kept at such of them as were not is of rows that are gone, and a new row may
    have the key. Only where rows have come back for all keys before, so not while blocks are copied."""
    query = sql.SQL(_Q["forget_strays"]).format(
        kept=kept_table(table.id),
        staging=staging,
        pending=pending,
        same=table.plan.key.same("k", _KEY, "s", "k"),
        waits=table.plan.key.same("k", _KEY, "p", "k"),
    )
    target.execute(query)


def forget_truncated(target: Session, table: TableRow, truncated: Sequence[tuple[int, str]]) -> None:
    """The rows that stood in these leaves when they were truncated are gone with their values; a row never leaves its
    leaf but by DELETE and INSERT."""
    plan, oids = table.plan, list[int | None]()
    for leaf, _ in truncated:
        name = plan.copies.get(str(leaf))
        row = target.execute(queries("catalog")["oid_of"], name).fetchone() if name else None
        oids.append(row[0] if row else None)
    if not truncated:
        return
    query = sql.SQL(_Q["forget_truncated"]).format(
        kept=kept_table(table.id),
        seen=sql.Identifier(_SEEN),
        there=sql.SQL("{} = t.leaf").format(sql.Identifier("k", _LEAF)) if plan.partitioned else sql.SQL("true"),
    )
    target.execute(query, [oids, [xid for _, xid in truncated]])


def follow(target: Session, table: TableRow, moved: Moves) -> None:
    """Takes kept values to the keys that their rows have come to, and forgets those of deleted rows; notes the
    snapshot. All in the transaction in which the window takes the keys."""
    plan, kept, ends = table.plan, kept_table(table.id), _temporary("ends", table)
    old, new = plan.key.list("old_"), plan.key.list("new_")
    target.execute(sql.SQL(_Q["create_ends"]).format(ends=ends, definitions=plan.key.definitions("new_")))
    target.execute(sql.SQL("ANALYZE {}").format(moved.moves))
    seen = sql.Identifier("k", _SEEN)
    target.execute(
        sql.SQL(_Q["find_ends"]).format(
            ends=ends,
            moves=moved.moves,
            kept=kept,
            old=old,
            new=new,
            seen=seen,
            m_new=_keys("m", plan, "new_"),
            departs=plan.key.same("m", "old_", "k", _KEY),
            goes_on=plan.key.same("n", "old_", "w", "new_"),
        )
    )
    assignments = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(f"{_KEY}{i}"), sql.Identifier("e", f"new_{i}"))
        for i in range(1, len(plan.key.columns) + 1)
    )
    parts = {"kept": kept, "ends": ends, "seen": sql.Identifier(_SEEN), "batch": sql.Identifier(_BATCH)}
    target.execute(sql.SQL(_Q["forget_gone"]).format(**parts))
    target.execute(sql.SQL(_Q["move"]).format(set=assignments, **parts))
    target.execute(sql.SQL(_Q["forget_doubles"]).format(same=plan.key.same("k", _KEY, "b", _KEY), **parts))
    target.execute(sql.SQL(_Q["followed"]).format(**parts))
    for temporary in (moved.moves, ends):
        target.execute(sql.SQL("TRUNCATE {}").format(temporary))
    until = _until(table.id)
    target.execute(sql.SQL(_Q["forget_until"]).format(until=until))
    target.execute(sql.SQL(_Q["set_until"]).format(until=until, snapshot=sql.Literal(moved.snapshot)))


# --- rows come back ---------------------------------------------------------------------------------------------------


def create_arrivals(target: Session, plan: Plan, table_id: int) -> sql.Identifier:
    """Where rows arrive that may have kept values: the copy cannot be told afterwards, since an identity column takes
    values with an INSERT only."""
    arrivals = arrivals_of(table_id)
    query = sql.SQL(_Q["create_arrivals"])
    target.execute(query.format(arrivals=arrivals, columns=plan.columns.list, copy=plan.copy))
    return arrivals


def put_back(target: Session, plan: Plan, table_id: int, taken: sql.Identifier | None) -> None:
    """The arrived rows into the copy, each with what was kept for its key; the others of the taken keys are gone, and
    so are their values."""
    _insert(target, plan, table_id)
    kept = kept_table(table_id)
    same = plan.key.same("k", _KEY, "s", "k")
    if taken is not None:
        target.execute(sql.SQL(_Q["forget_taken"]).format(kept=kept, staging=taken, same=same))
    target.execute(sql.SQL(_Q["drop_arrivals"]).format(arrivals=arrivals_of(table_id)))


def stage_kept_keys(target: Session, table: TableRow, staging: sql.Identifier) -> None:
    """The keys that values are kept for."""
    fit(target, table)
    query = sql.SQL(_Q["stage_keys"])
    target.execute(
        query.format(
            staging=staging, names=table.plan.key.list(), keys=table.plan.key.list(_KEY), kept=kept_table(table.id)
        )
    )


def _insert(target: Session, plan: Plan, table_id: int) -> None:
    parts = {
        "copy": plan.copy, "columns": plan.columns.list, "values": _columns("a", plan.columns.names),
        "arrivals": arrivals_of(table_id), "kept": kept_table(table_id), "join": plan.key.join("a", "k", _KEY),
    }  # fmt: skip
    keep, kept_values = _columns(None, plan.columns.kept), _columns("k", plan.columns.kept)
    target.execute(sql.SQL(_Q["insert_kept"]).format(keep=keep, kept_values=kept_values, **parts))
    target.execute(sql.SQL(_Q["insert_others"]).format(**parts))


def arrivals_of(table_id: int) -> sql.Identifier:
    return sql.Identifier("pg_temp", f"pgddl_arrivals_{table_id}")


def _temporary(purpose: str, table: TableRow) -> sql.Identifier:
    return sql.Identifier("pg_temp", f"pgddl_{purpose}_{table.id}_{table.plan.key.digest}")


def _keys(alias: str, plan: Plan, prefix: str) -> sql.Composed:
    return _columns(alias, [f"{prefix}{i}" for i in range(1, len(plan.key.columns) + 1)])


def _columns(alias: str | None, names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(alias, n) if alias else sql.Identifier(n) for n in names)
