"""Every verdict on a cast against what Postgres does to the values at the edges of a type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, LiteralString, cast

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.rows.transfer import REFUSALS, copy_between, read_statement, write_statement
from airflow_provider_pgddl.engine.schema.casts import Cast, cast_sql, judge_cast
from airflow_provider_pgddl.engine.schema.table_model import TypeModel
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.server.schema_reading import read
from tests.conftest import Database
from tests.integration.cast_verdicts import IMPOSSIBLE, LOSSY, SAFE, SAFE_BUT_FOR, STRICT, TYPES, VALUES

_PAIRS = [
    *((pair, "safe") for pair in [*SAFE, *SAFE_BUT_FOR]),
    *((pair, "lossy") for pair in [*LOSSY, *STRICT]),
    *((pair, "impossible") for pair in IMPOSSIBLE),
]


@dataclass(frozen=True)
class Pair:
    number: int
    names: tuple[str, str]
    expected: str
    source: TypeModel
    target: TypeModel
    cast: Cast

    @property
    def table(self) -> sql.Identifier:
        return sql.Identifier("s", f"m{self.number}")

    @property
    def was(self) -> sql.Identifier:
        """On the target: the source's own values, in its own type."""
        return sql.Identifier("s", f"was{self.number}")

    @property
    def expression(self) -> str:
        return cast_sql("V a", self.cast, self.target)

    def __str__(self) -> str:
        return f"{self.names[0]} → {self.names[1]}"


class Matrix:
    """The pairs on two servers: a table each, on the source with the values at the edges of its type."""

    def __init__(self, source: Session, target: Session) -> None:
        self.source, self.target = source, target
        self.pairs = []
        for conn in (source, target):
            run(conn, TYPES)
        pairs = [pair for pair, _ in _PAIRS]
        create = 'CREATE TABLE s.{}{} (id integer PRIMARY KEY, "V a" {});'
        run(source, "".join(create.format("m", n, was) for n, (was, _) in enumerate(pairs)))
        run(target, "".join(create.format("m", n, now) for n, (_, now) in enumerate(pairs)))
        run(target, "".join(create.format("was", n, was) for n, (was, _) in enumerate(pairs)))
        names = [("s", f"m{n}") for n in range(len(_PAIRS))]
        sides = [read(conn, names).tables for conn in (source, target)]
        for n, ((pair, expected), name) in enumerate(zip(_PAIRS, names, strict=True)):
            columns = [side[name].column("V a") for side in sides]
            assert columns[0] and columns[1]
            a, b = columns[0].type, columns[1].type
            self.pairs.append(Pair(n, pair, expected, a, b, judge_cast(a, b)))

    def fill(self, pair: Pair) -> list[int]:
        """Ids of the rows; the values arrive on the target as they were, too."""
        numbers, insert = count(), sql.SQL("INSERT INTO {} VALUES (%s, %s)").format(pair.table)
        read_back = f'SELECT ("V a"::text::{pair.names[0]})::text FROM s.m{pair.number} WHERE id = %s'
        for value in (*values_of(pair.source), None):
            try:
                with self.source.transaction():
                    self.source.execute(insert, [n := next(numbers), value])
                    # timestamp(3) rounds the last microsecond of 294276 to what no server reads, nor restores
                    run(self.source, read_back, [n])
            except psycopg.Error:
                continue
        with self.source.transaction(), self.target.transaction():
            copy_between(
                self.source,
                self.target,
                read_statement(sql.SQL("TABLE {}").format(pair.table), False),
                write_statement(pair.was, sql.SQL('id, "V a"'), False),
            )
        return [n for (n,) in self.source.execute(sql.SQL("SELECT id FROM {} ORDER BY id").format(pair.table))]

    def send(self, pair: Pair, number: int) -> str | None:
        """Why the row was refused; None where it arrived. As chunks and windows send rows."""
        select = sql.SQL("SELECT id, {} FROM {} WHERE id = {}").format(
            sql.SQL(cast(LiteralString, pair.expression)), pair.table, number
        )
        try:
            with self.source.transaction(), self.target.transaction():
                write = write_statement(pair.table, sql.SQL('id, "V a"'), False)
                copy_between(self.source, self.target, read_statement(select, False), write)
        except REFUSED as error:
            return str(error.diag.message_primary)
        return None

    def changed(self, pair: Pair, number: int) -> str | None:
        """The value that came back as another one."""
        for through in ("", "::text"):
            back = f't."V a"{through}::{pair.names[0]}'
            for same in (f'{back} IS NOT DISTINCT FROM w."V a"', f'{back}::text IS NOT DISTINCT FROM w."V a"::text'):
                if pair.names[0] in GEOMETRIC and "::text IS" not in same:
                    continue  # their equality is of areas and lengths, and fuzzy
                query = (
                    f'SELECT {same}, w."V a"::text, t."V a"::text FROM {{}} t JOIN {{}} w USING (id) WHERE id = {{}}'
                )
                try:
                    row = self.target.execute(
                        sql.SQL(cast(LiteralString, query)).format(pair.table, pair.was, number)
                    ).fetchone()
                except (psycopg.errors.CannotCoerce, psycopg.errors.UndefinedFunction):
                    continue
                except psycopg.DataError as error:
                    return str(error.diag.message_primary)
                assert row
                return None if row[0] else f"{row[1]} → {row[2]}"
        raise AssertionError(f"{pair}: nothing to compare by")


# NaN is a feature that integers do not support, says the server, and "-0." a name in a schema that is not there.
REFUSED = (*REFUSALS, psycopg.NotSupportedError, psycopg.errors.InvalidName, psycopg.errors.InvalidSchemaName)

GEOMETRIC = {"point", "line", "lseg", "box", "path", "polygon", "circle"}


def run(conn: Session, statements: str, args: Any = None) -> list[tuple[Any, ...]]:
    cursor = conn.execute(statements.encode(), args)
    return cursor.fetchall() if cursor.description else []


def values_of(type_: TypeModel) -> Iterator[str]:
    yield from VALUES[type_.name]
    inside = type_.text.partition("(")[2].partition(")")[0]
    if type_.name == "numeric" and "," in inside:
        precision, scale = map(int, inside.split(","))
        yield from (f"{sign}{'9' * precision}e{-scale}" for sign in "+-")
    if type_.name in ("character varying", "character") and inside:
        yield from (letter * int(inside) for letter in "x\U0001f600")


@pytest.fixture(params=["16 to 18", "18 to 16"])
def matrix(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster, database: Database) -> Iterator[Matrix]:
    dsns = [database(pg16), database(pg18)]
    if request.param == "18 to 16":
        dsns.reverse()
    with connect(dsns[0], purpose="test") as source, connect(dsns[1], purpose="test") as target:
        yield Matrix(source, target)


def test_every_verdict_is_what_postgres_does(matrix: Matrix) -> None:
    assert len(matrix.pairs) > 200
    wrong = []
    for pair in matrix.pairs:
        found = _look(matrix, pair)
        if found:
            wrong.append(f"{pair} is {pair.cast.kind} ({pair.cast.why}): {found}")
    assert not wrong, "\n".join(wrong)


def _look(matrix: Matrix, pair: Pair) -> str | None:
    """What is wrong with the verdict."""
    if pair.cast.kind != pair.expected:
        return f"expected {pair.expected}"
    if pair.cast.kind == "impossible":
        return _possible(matrix, pair)
    numbers = matrix.fill(pair)
    assert len(numbers) > 1, f"{pair}: no value was taken by the source"
    refused = {n: why for n in numbers if (why := matrix.send(pair, n))}
    changed = [what for n in numbers if n not in refused and (what := matrix.changed(pair, n))]
    if pair.cast.kind == "lossy":
        return "no value was lost" if not refused and not changed and pair.names not in STRICT else None
    if pair.names in SAFE_BUT_FOR:
        values = {v for n, v in run(matrix.source, f'SELECT id, "V a"::text FROM s.m{pair.number}') if n in refused}
        return None if values == {SAFE_BUT_FOR[pair.names]} and not changed else f"refused {values}, changed {changed}"
    return f"refused {refused}, changed {changed}" if refused or changed else None


def _possible(matrix: Matrix, pair: Pair) -> str | None:
    try:
        run(matrix.target, f"SELECT CAST(NULL::{pair.names[0]} AS {pair.names[1]})")
    except psycopg.errors.CannotCoerce:
        return None
    return "Postgres casts it"


def test_examples_are_what_postgres_does(matrix: Matrix) -> None:
    shown = 0
    for pair in matrix.pairs:
        if not pair.cast.example:
            continue
        before, _, after = pair.cast.example.partition(" → ")
        # as the source's expression and the target's input would have it
        through = "::text" if pair.cast.expression == "column" else ""
        query = f"SELECT CAST(CAST(%s AS {pair.names[0]}){through} AS {pair.names[1]})::text"
        try:
            [(value,)] = run(matrix.target, query, [before])
        except REFUSED:
            value = "refused"
        assert value == after, f"{pair}: {pair.cast.example}, but {value}"
        shown += 1
    assert shown > 40


def test_what_the_source_prints_is_what_the_target_has(matrix: Matrix) -> None:
    """As verify compares: by the text of the expression, and of what was stored."""
    for pair in matrix.pairs:
        if pair.cast.kind != "safe" or pair.cast.expression == "column":
            continue
        for n in matrix.fill(pair):
            if matrix.send(pair, n) is None:
                [(sent,)] = run(matrix.source, f"SELECT ({pair.expression})::text FROM s.m{pair.number} WHERE id = {n}")
                [(stored,)] = run(matrix.target, f'SELECT "V a"::text FROM s.m{pair.number} WHERE id = {n}')
                assert sent == stored, str(pair)


def test_keys_are_found_again_by_the_sources_equality(matrix: Matrix) -> None:
    """Changed keys wait in a table of the source's type, and are joined with the copy by the source's operator."""
    tried = 0
    for pair in matrix.pairs:
        if judge_cast(pair.source, pair.target, key=True).kind not in ("same", "safe"):
            continue
        for n in matrix.fill(pair):
            matrix.send(pair, n)
        # the type of a plan's key_types, which has no modifier; a domain is compared as what it is stored as
        [(key,)] = run(matrix.target, "SELECT format_type(%s::regtype, -1)", [pair.source.stored.name])
        stored = f"::{key}" if pair.source.kind == "domain" else ""
        pending = f'SELECT "V a"::{key} AS k1 FROM s.was{pair.number}'
        query = f"""SELECT (SELECT count(*) FROM s.m{pair.number} t JOIN ({pending}) k
                            ON t."V a"{stored} OPERATOR(pg_catalog.=) k.k1),
                           (SELECT count(*) FROM s.was{pair.number} a JOIN s.was{pair.number} b
                            ON a."V a"{stored} OPERATOR(pg_catalog.=) b."V a"{stored})"""
        [(found, there)] = run(matrix.target, query)
        assert found == there > 0, str(pair)
        tried += 1
    assert tried > 30


def test_what_postgres_casts_is_not_called_impossible(pg16: Cluster, pg18: Cluster) -> None:
    plain = sorted({name for pair in (*SAFE, *LOSSY, *IMPOSSIBLE) for name in pair if "." not in name})
    for cluster in (pg16, pg18):
        with connect(cluster.conninfo(), purpose="test") as conn:
            casts = run(
                conn,
                "SELECT format_type(castsource, NULL), format_type(casttarget, NULL) FROM pg_cast"
                " WHERE castsource <> casttarget AND greatest(castsource, casttarget) < 16384"
                " AND NOT format_type(castsource, NULL) ~ '^pg_|multirange'",
            )
        found = {pair for pair in casts if judge_cast(base(pair[0]), base(pair[1])).kind == "impossible"}
        # Bytes of integers are cast since 18 only; a range to its multirange is judged by what both are of.
        integers = {"smallint", "integer", "bigint"}
        assert {
            (a, b) for a, b in found if not a.endswith("range") and not ("bytea" in (a, b) and {a, b} & integers)
        } == set()
        names = [name for name in plain if "(" not in name and "range" not in name and not name.endswith("[]")]
        called = {(a, b) for a in names for b in names if judge_cast(base(a), base(b)).kind == "impossible"}
        assert called
        assert not called & set(casts) - found


def base(name: str) -> TypeModel:
    return TypeModel(name, name, "base")


def test_types_of_extensions(pg15: Cluster, database: Database) -> None:
    with connect(database(pg15), purpose="test") as conn:
        run(conn, "CREATE SCHEMA x; CREATE EXTENSION citext SCHEMA x; CREATE EXTENSION hstore SCHEMA x")
        run(conn, "CREATE TABLE x.t (c x.citext, h x.hstore, t text, v varchar(5), i integer, j jsonb)")
        [table] = read(conn, [("x", "t")]).tables.values()
        types = {c.name: c.type for c in table.columns}
        verdicts = {
            a + b: judge_cast(types[a], types[b])
            for a, b in ("tc", "vc", "ct", "cv", "ht", "th", "ci", "hi", "ic", "hc")
        }
        assert {pair: c.kind for pair, c in verdicts.items()} == {
            "tc": "safe",
            "vc": "safe",
            "ct": "safe",
            "cv": "lossy",
            "ht": "safe",
            "th": "lossy",
            "ci": "lossy",
            "hi": "impossible",
            "ic": "safe",
            "hc": "safe",
        }
        assert cast_sql("t", verdicts["tc"], types["c"]) == '"t"'
        assert cast_sql("c", verdicts["ct"], types["t"]) == 'CAST("c" AS text)'
        assert judge_cast(types["t"], types["c"], key=True).kind == "lossy"  # 'a' and 'A' would be one key
        row = ['"a"=>"1", "b"=>NULL', "Ab "]
        [(same,)] = run(
            conn,
            "SELECT CAST(%s::x.hstore AS text)::x.hstore OPERATOR(x.=) %s::x.hstore AND %s::x.citext::text = %s",
            [row[0], row[0], row[1], row[1]],
        )
        assert same
