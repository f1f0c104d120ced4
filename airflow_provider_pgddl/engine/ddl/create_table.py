"""A table as statements, from its metadata: made as it is, or brought from one version to the next. Pure.

What is in `rest` is not said here (see `rebuild_gaps`), and what no version holds cannot be: names of NOT NULL
constraints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import LiteralString

from psycopg import sql

from airflow_provider_pgddl.engine.ddl.captured_events import ColumnMeta, ConstraintMeta, TableMeta
from airflow_provider_pgddl.engine.ddl.compose import AlterTable, ident, joined, raw, raw_statement, spell
from airflow_provider_pgddl.engine.ddl.serial_and_identity import identity_options
from airflow_provider_pgddl.engine.schema.definitions import constraint_columns, is_constant
from airflow_provider_pgddl.engine.schema.table_versions import name_of


@dataclass(frozen=True, slots=True)
class World:
    """All tables that an event knows of, by oid, as they were before it and as they are after it."""

    before: Mapping[int, TableMeta]
    after: Mapping[int, TableMeta]
    identities: Mapping[tuple[int, str], str] = field(default_factory=dict)
    """(table, column) → the CREATE SEQUENCE behind an identity column that the event made."""
    rewritten: frozenset[int] = frozenset()
    dropped: frozenset[int] = frozenset()

    @property
    def known(self) -> dict[int, TableMeta]:
        """As they are afterwards, where the event shows them."""
        return {**self.before, **self.after}

    def named(self, name: Sequence[str]) -> TableMeta | None:
        return next((meta for meta in self.known.values() if name_of(meta) == tuple(name)), None)

    def descendants(self, meta: TableMeta) -> Iterator[tuple[TableMeta | None, TableMeta]]:
        """Each partition and child that is there afterwards, with its version before."""
        for oid in meta["descendants"]:
            if oid in self.after:
                yield self.before.get(oid), self.after[oid]


def column(meta: TableMeta, name: str) -> ColumnMeta | None:
    return next((c for c in meta["columns"] if c["name"] == name), None)


def create_table(meta: TableMeta, world: World) -> list[sql.Composed]:
    name = ident(name_of(meta))
    validated, *alike = apart(c for c in meta["constraints"] if c["local"] and c["validated"])
    later = [*alike, [c for c in meta["constraints"] if c["local"] and not c["validated"]]]
    elements: list[sql.Composable] = [constraint_clause(c) for c in validated]
    parents = joined(ident(parent) for parent in meta["parents"])
    if meta["bound"] is not None:
        listed = spell(" ({})", joined(elements)) if elements else sql.SQL("")
        body: sql.Composable = spell(" PARTITION OF {}{} {}", parents, listed, raw(meta["bound"]))
    else:
        own = [c for c in meta["columns"] if c["local"]]
        elements[:0] = [column_clause(c, c["default"], world.identities.get((meta["oid"], c["name"]))) for c in own]
        body = spell(" ({})", joined(elements))
        if meta["parents"]:
            body += spell(" INHERITS ({})", parents)
    if meta["partition_key"] is not None:
        body += spell(" PARTITION BY {}", raw(meta["partition_key"]))
    if meta["options"]:
        body += spell(" WITH {}", reloptions(meta["options"]))
    kind = sql.SQL("UNLOGGED TABLE") if meta["persistence"] == "u" else sql.SQL("TABLE")
    made = [spell("CREATE {} {}{}", kind, name, body)]
    alter = AlterTable(sql.SQL("TABLE"), name)
    if unlike := [*_unlike_parents(meta, world)]:
        made.append(alter(*unlike))
    return made + [alter(*(spell("ADD {}", constraint_clause(c)) for c in some)) for some in later if some]


def apart(constraints: Iterable[ConstraintMeta]) -> list[list[ConstraintMeta]]:
    """Lists of constraints that can be made in one statement each: of two that would have the same index, Postgres
    makes one where they are in one statement. There is at least one list."""
    lists: list[list[ConstraintMeta]] = [[]]
    seen: Counter[str] = Counter()
    for c in constraints:
        if c["type"] in ("p", "u", "x"):
            like = c["definition"] if c["type"] == "x" else repr(constraint_columns(c["definition"]))
            seen[like] += 1
            lists += [[]] * (seen[like] > len(lists))
            lists[seen[like] - 1] = [*lists[seen[like] - 1], c]
        else:
            lists[0].append(c)
    return lists


def create_view(meta: TableMeta, *, replace: bool = False) -> sql.Composed:
    """A view or a materialized view. The query names the columns as they are called now."""
    kind = sql.SQL("MATERIALIZED VIEW") if meta["kind"] == "m" else sql.SQL("VIEW")
    if replace and meta["kind"] == "v":
        kind = sql.SQL("OR REPLACE VIEW")
    with_ = spell(" WITH {}", reloptions(meta["options"])) if meta["options"] else sql.SQL("")
    query = raw((meta["definition"] or "").rstrip().removesuffix(";"))
    return spell("CREATE {} {}{} AS {}", kind, ident(name_of(meta)), with_, query)


def _unlike_parents(meta: TableMeta, world: World) -> Iterator[sql.Composed]:
    """What inherited columns have of their own: a default, a NOT NULL. Said outright where no parent is known."""
    parents = [world.named(parent) for parent in meta["parents"]]
    for c in meta["columns"]:
        if (c["local"] and meta["bound"] is None) or not parents:
            continue
        inherited = [found for parent in parents if parent and (found := column(parent, c["name"]))]
        if not c["generated"] and not c["identity"] and not (inherited and inherited[0]["default"] == c["default"]):
            yield default_action(c)
        if c["not_null"] and not any(i["not_null"] for i in inherited):
            yield spell("ALTER COLUMN {} SET NOT NULL", ident([c["name"]]))


def replica_identity(meta: TableMeta) -> sql.Composed:
    words: dict[str, LiteralString] = {"d": "DEFAULT", "n": "NOTHING", "f": "FULL", "i": "USING INDEX {}"}
    index = (ident([meta["replica_index"]]),) if meta["replica_index"] else ()
    return spell("REPLICA IDENTITY {}", spell(words[meta["replica_identity"]], *index))


def column_clause(c: ColumnMeta, default: str | None, sequence: str | None = None) -> sql.Composed:
    """A column in CREATE TABLE or ADD COLUMN; `sequence` is the CREATE SEQUENCE of its identity."""
    clause = spell("{} {}", ident([c["name"]]), type_of(c))
    if c["generated"]:
        word = sql.SQL("STORED" if c["generated"] == "s" else "VIRTUAL")
        clause += spell(" GENERATED ALWAYS AS ({}) {}", raw(c["default"] or ""), word)
    elif c["identity"]:
        clause += spell(" {}", identity_clause(c, sequence))
    elif default is not None:
        clause += spell(" DEFAULT {}", raw(default))
    return clause + sql.SQL(" NOT NULL") if c["not_null"] else clause


def type_of(c: ColumnMeta) -> sql.Composed:
    if c["collation"] is None:
        return raw_statement(c["type"])
    return spell("{} COLLATE {}", raw(c["type"]), raw(c["collation"]))


def identity_clause(c: ColumnMeta, sequence: str | None) -> sql.Composed:
    always = sql.SQL("ALWAYS" if c["identity"] == "a" else "BY DEFAULT")
    clause = spell("GENERATED {} AS IDENTITY", always)
    return clause + spell(" ({})", identity_options(sequence)) if sequence else clause


def constraint_clause(c: ConstraintMeta) -> sql.Composed:
    return spell("CONSTRAINT {} {}", ident([c["name"]]), raw(c["definition"]))


def default_action(c: ColumnMeta) -> sql.Composed:
    if c["default"] is None:
        return spell("ALTER COLUMN {} DROP DEFAULT", ident([c["name"]]))
    return spell("ALTER COLUMN {} SET DEFAULT {}", ident([c["name"]]), raw(c["default"]))


def reloptions(settings: Iterable[str]) -> sql.Composed:
    """pg_class.reloptions as ``("fillfactor" = '70')``."""
    pairs = (setting.partition("=") for setting in settings)
    return spell("({})", joined(spell("{} = {}", ident([key]), sql.Literal(value)) for key, _, value in pairs))


def default_of_old_rows(meta: TableMeta, c: ColumnMeta, world: World) -> tuple[str | None, bool]:
    """The DEFAULT to add a column with, and whether its own default has to be set afterwards (C6).

    Old rows show what the default was at that instant: the server keeps it (attmissingval), on the leaves where the
    table is partitioned. Where it was evaluated row by row the rows are copied again, so what they hold here does not
    matter, only that they hold something where NULL is refused.
    """
    own = c["default"]
    if own is None or c["generated"] or c["identity"] or is_constant(own):
        return own, False
    twins = [twin for _, leaf in world.descendants(meta) if (twin := column(leaf, c["name"]))]
    missing = next((one["missing"] for one in [c, *twins] if one["missing"] is not None), None)
    if missing is not None:
        return spell("{}::{}", sql.Literal(missing), raw(c["type"])).as_string(None), True
    touched = {meta["oid"], *meta["descendants"]}
    return (own, False) if c["not_null"] or touched & world.rewritten else (None, True)
