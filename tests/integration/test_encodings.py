"""Databases in other encodings than UTF8, on either side: names, texts and what the journal says of them."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import PgddlError, PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.server.connect import connect
from tests.conftest import admin_of, database_name
from tests.integration.lifecycle import Lifecycle


def encoded(cluster: Cluster, dsn: str, encoding: str) -> str:
    """The same database, made anew in this encoding."""
    name = sql.Identifier(database_name(dsn))
    with admin_of(cluster) as admin:
        admin.execute(sql.SQL("DROP DATABASE {}").format(name))
        again = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LOCALE 'C'")
        admin.execute(again.format(name, sql.Literal(encoding)))
    return dsn


def speak(dsn: str, *statements: str) -> None:
    """As a client does that speaks UTF8, whatever the database's encoding is."""
    with psycopg.connect(dsn, autocommit=True, client_encoding="UTF8") as conn:
        for statement in statements:
            conn.execute(statement.encode())


@pytest.mark.parametrize(
    ("there", "here", "word", "rows"),
    [
        ("LATIN1", "UTF8", "größe", "wal"),
        ("EUC_JP", "UTF8", "日本語", "wal"),
        ("WIN1251", "WIN1251", "размер", "change_log"),
        ("SQL_ASCII", "SQL_ASCII", "größe", "wal"),
    ],
)
def test_names_and_texts_arrive_and_ddl_follows(
    pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle],
    there: str, here: str, word: str, rows: str,
) -> None:  # fmt: skip
    """What a message in the WAL says is in the database's encoding, and nobody converts it on the way."""
    source, target = encoded(pg16, source_dsn, there), encoded(pg18, target_dsn, here)
    speak(
        source,
        f"CREATE TYPE {word}_t AS ENUM ('{word}')",
        f"CREATE TABLE {word} (id int, {word}_k text, e {word}_t, j jsonb, PRIMARY KEY ({word}_k, id))",
        f"INSERT INTO {word} SELECT i, '{word}' || i, '{word}', '[\"{word}\"]' FROM generate_series(1, 200) i",
        f"COMMENT ON TABLE {word} IS '{word}'",
    )
    capture = {"rows": rows, "ddl": "wal" if rows == "wal" else "queue"}
    move = lifecycle(source, target, tables={"include": ["public.*"]}, capture=capture)
    move.run_all(until="backfill")
    speak(
        source,
        f"ALTER TABLE {word} ADD {word}_new text DEFAULT '{word} {word}'",
        f"UPDATE {word} SET {word}_new = '{word}' WHERE id % 3 = 0",
        f"UPDATE {word} SET {word}_k = '{word} {word}' || id WHERE id % 5 = 0",
        f"DELETE FROM {word} WHERE {word}_k = '{word}7'",
    )
    move.run_all(after="backfill", until="swap")
    assert differences(source, target) == []
    speak(target, f"DO $$BEGIN ASSERT obj_description('{word}'::regclass, 'pg_class') = '{word}'; END$$")


def test_a_journal_in_latin1_takes_what_we_say_of_a_table(
    pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    """An arrow is a sign that it has not: the gate failed, and every stage behind it."""
    source, target = encoded(pg16, source_dsn, "LATIN1"), encoded(pg18, target_dsn, "LATIN1")
    speak(source, "CREATE TABLE t (id int PRIMARY KEY, größe numeric(9, 2))", "INSERT INTO t VALUES (1, 1.5)")
    move = lifecycle(source, target, tables={"include": ["public.*"]})
    move.run_all(until="replay")
    speak(target, "ALTER TABLE t ALTER größe TYPE integer")
    (blocked,) = move.run("verify").blocked
    assert blocked["reason"].startswith("Type mismatch on public.t.größe: numeric(9,2)")
    (report,) = stages.gate(load_pipeline(move.content), source, target)
    assert report.findings[0].impact == "Casting would lose precision (19.99 -> 20)"
    with connect(target, purpose="test") as conn:
        said = conn.execute("SELECT %s, %s", ["… größe →", "ÿ"]).fetchone()
    assert said == ("... größe ->", "ÿ")


def test_a_name_that_is_too_long_in_utf8_stops_its_table_alone(
    pg16: Cluster, source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    source = encoded(pg16, source_dsn, "LATIN1")
    speak(
        source,
        "CREATE TABLE t (id int PRIMARY KEY, n name)",
        f"INSERT INTO t VALUES (1, '{'é' * 31}'), (2, '{'é' * 63}')",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    move = lifecycle(source, target_dsn, tables={"include": ["public.*"]})
    move.run_all(until="snapshot")
    (blocked,) = move.run("backfill").blocked
    assert blocked["table"] == "public.t"
    assert "identifier too long" in blocked["reason"]


def test_longer_names_than_the_target_takes_are_told_before_anything_is_touched(
    pg16: Cluster, source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    """Cut, two of them were one, and no table was found by its name."""
    source, long = encoded(pg16, source_dsn, "LATIN1"), "é" * 40
    speak(
        source,
        f"CREATE TABLE {long} (id int PRIMARY KEY, {'ü' * 31}a int)",
        f"CREATE TYPE short AS ENUM ('{long}', '{'é' * 31}')",
        f"CREATE TABLE t (id int CONSTRAINT {long}k PRIMARY KEY, {long}c int CONSTRAINT {long}o CHECK (id > 0))",
    )
    move = lifecycle(source, target_dsn, tables={"include": ["public.*"]})
    told = str(move.refused("setup", PreflightRefused))
    for what in (f"column {long}c of public.t", f"label {long} of public.short", f"relation {long} of public",
                 f"relation {long}k of public", f"constraint {long}o of public"):  # fmt: skip
        assert f"{what} has more than 63 bytes in UTF8" in told, told
    assert told.count("has more than 63 bytes") == 6, told  # and the key of the first table


def test_what_users_have_written_never_becomes_another_sign(
    pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    """An arrow in an expression of the file would be read as two other signs, and written so."""
    source, target = encoded(pg16, source_dsn, "LATIN1"), encoded(pg18, target_dsn, "LATIN1")
    speak(source, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'x')")
    tables = {"include": ["public.*"], "transform": {"public.t": {"v": "v || '→'"}}}
    move = lifecycle(source, target, tables=tables)
    with pytest.raises(PgddlError, match="no equivalent in encoding"):
        move.run_all(until="replay")


def test_a_key_that_only_the_copy_can_hold_is_not_taken_for_another(
    pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    source, target = encoded(pg16, source_dsn, "LATIN1"), encoded(pg18, target_dsn, "UTF8")
    speak(source, "CREATE TABLE t (id text PRIMARY KEY)", "INSERT INTO t VALUES ('a->b'), ('c')")
    move = lifecycle(source, target, tables={"include": ["public.*"]})
    move.run_all(until="replay")
    speak(target, "INSERT INTO t VALUES ('a→b')")
    with pytest.raises(PgddlError, match=r"\(a→b\) is too many on the copy"):
        move.run("verify")
