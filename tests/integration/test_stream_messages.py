"""What a slot tells over the replication protocol: of rows, old and new, of tables, messages and TRUNCATE."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.capture.pgoutput import LogicalMessage, RelationMessage, Truncate, Unchanged, decode
from airflow_provider_pgddl.engine.capture.slot_stream import marker
from tests.combinations import matrix
from tests.conftest import Database, database_name
from tests.integration.sessions import do, one
from tests.integration.streams import capture, read, rows, session_of, stream_of


@pytest.fixture(params=matrix(16, 18))
def source(request: pytest.FixtureRequest, pg16: Cluster, pg18: Cluster, database: Database) -> str:
    return database(pg16 if request.param == 16 else pg18)


def test_messages_come_between_the_rows_of_their_transaction(source: str) -> None:
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)")
    with psycopg.connect(source) as conn:
        conn.execute("INSERT INTO t VALUES (1)")
        conn.execute(
            "SELECT pg_logical_emit_message(true, 'pgddl', 'é'), pg_logical_emit_message(false, 'pgddl', 'no')"
        )
        conn.execute("INSERT INTO t VALUES (2)")
    do(source, "SELECT pg_logical_emit_message(false, 'pgddl', 'no')")
    with stream_of(source) as stream:
        first, message, second = read(stream, source)
    assert isinstance(message, LogicalMessage)
    assert (message.prefix, message.content) == ("pgddl", "é".encode())
    assert rows([first, second]) == [("I", None, (b"1",)), ("I", None, (b"2",))]


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        (
            "DEFAULT",
            [
                ("U", None, (b"1", b"a", b"v", Unchanged.TOAST)),
                ("U", (b"1", None, None, None), (b"2", b"a", b"v", Unchanged.TOAST)),
                ("D", (b"2", None, None, None), None),
            ],
        ),
        (
            "USING INDEX by_code",
            [
                ("U", None, (b"1", b"a", b"v", Unchanged.TOAST)),
                ("U", None, (b"2", b"a", b"v", Unchanged.TOAST)),
                ("D", (None, b"a", None, None), None),
            ],
        ),
        (
            "FULL",
            [
                ("U", (b"1", b"a", None, b"big"), (b"1", b"a", b"v", Unchanged.TOAST)),
                ("U", (b"1", b"a", b"v", b"big"), (b"2", b"a", b"v", Unchanged.TOAST)),
                ("D", (b"2", b"a", b"v", b"big"), None),
            ],
        ),
    ],
)
def test_what_is_known_of_the_old_row_is_its_replica_identity(
    source: str, identity: str, expected: list[tuple[Any, ...]]
) -> None:
    capture(
        source,
        "CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, v text, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "CREATE UNIQUE INDEX by_code ON t (code)",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        "INSERT INTO t VALUES (1, 'a', NULL, repeat('big', 4000))",
    )
    do(source, "UPDATE t SET v = 'v'", "UPDATE t SET id = 2", "DELETE FROM t")
    with stream_of(source) as stream:
        found = rows(read(stream, source))

    def shortened(row: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        return row and tuple(b"big" if value == b"big" * 4000 else value for value in row)

    assert [(op, shortened(old), shortened(new)) for op, old, new in found] == expected


def test_without_a_replica_identity_only_new_rows_can_come(source: str) -> None:
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY NOTHING")
    do(source, "INSERT INTO t VALUES (1)")
    for refused in ("UPDATE t SET id = 2", "DELETE FROM t"):  # so such a table must not be published (C19)
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="replica identity"):
            do(source, refused)
    with stream_of(source) as stream, session_of(source) as session:
        items = list(decode(stream.messages(marker(session))))
    assert [item.replica_identity for item in items if isinstance(item, RelationMessage)] == ["n"]
    assert rows(items) == [("I", None, (b"1",))]


def test_a_key_that_is_out_of_line_comes_with_the_old_row(source: str) -> None:
    capture(
        source,
        "CREATE TABLE t (id text PRIMARY KEY, v text)",
        "ALTER TABLE t ALTER id SET STORAGE EXTERNAL",
        "INSERT INTO t VALUES (repeat('k', 2500), 'a')",
    )
    do(source, "UPDATE t SET v = 'b'")
    with stream_of(source) as stream:
        assert rows(read(stream, source)) == [("U", (b"k" * 2500, None), (Unchanged.TOAST, b"b"))]


def test_only_the_columns_of_the_publications_list_come(source: str) -> None:
    table = "CREATE TABLE t (a text, id int, b text, part int, PRIMARY KEY (part, id))"
    capture(source, table, publish="TABLE t (id, part)")
    do(source, "INSERT INTO t VALUES ('a', 1, 'b', 2)", "UPDATE t SET a = 'x', part = 3", "UPDATE t SET a = 'y'")
    do(source, "DELETE FROM t")
    with stream_of(source) as stream, session_of(source) as session:
        items = list(decode(stream.messages(marker(session))))
    (relation,) = [item for item in items if isinstance(item, RelationMessage)]
    assert [(c.name, c.in_identity) for c in relation.columns] == [("id", True), ("part", True)]
    assert rows(items) == [
        ("I", None, (b"1", b"2")),
        ("U", (b"1", b"2"), (b"1", b"3")),
        ("U", None, (b"1", b"3")),
        ("D", (b"1", b"3"), None),
    ]


def test_a_table_that_is_changed_is_described_again(source: str) -> None:
    capture(source, "CREATE TABLE t (id int PRIMARY KEY)")
    do(source, "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)", "ALTER TABLE t RENAME id TO key")
    do(source, "ALTER TABLE t RENAME TO u", "INSERT INTO u VALUES (3)")
    with stream_of(source) as stream, session_of(source) as session:
        items = list(decode(stream.messages(marker(session))))
    described = [(item.name, item.columns[0].name) for item in items if isinstance(item, RelationMessage)]
    assert described == [("t", "id"), ("u", "key")]


def test_one_truncate_of_two_tables(source: str) -> None:
    capture(
        source,
        "CREATE TABLE a (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY REFERENCES a)",
        "CREATE TABLE c (id int PRIMARY KEY)",
    )
    do(source, "TRUNCATE a RESTART IDENTITY CASCADE", "TRUNCATE c, b")
    oids = [one(source, "SELECT %s::regclass::oid::bigint", name) for name in "abc"]
    with stream_of(source) as stream:
        found = read(stream, source)
    assert found == [
        Truncate((oids[0], oids[1]), cascade=True, restart_identity=True),
        Truncate((oids[2], oids[1]), cascade=False, restart_identity=False),
    ]


def test_values_are_printed_as_by_every_session_of_ours(source: str) -> None:
    name = database_name(source)
    odd = {"DateStyle": "German", "TimeZone": "Asia/Tokyo", "bytea_output": "escape", "client_encoding": "LATIN1",
           "IntervalStyle": "sql_standard", "extra_float_digits": "-3"}  # fmt: skip
    capture(
        source,
        "CREATE TABLE t (at timestamptz, b bytea, c text, i interval, f float8, PRIMARY KEY (at, b, c, i, f))",
        *(f"ALTER DATABASE {name} SET {key} = '{value}'" for key, value in odd.items()),
    )
    with psycopg.connect(source, client_encoding="UTF8") as conn:
        conn.execute(r"INSERT INTO t VALUES ('2024-02-01 00:00Z', '\x00ff', 'é', '1 day 2 hours', 0.1::float4)")
    with stream_of(source) as stream, session_of(source) as session:
        ((_, _, row),) = rows(read(stream, source))
        texts = session.execute("SELECT at::text, b::text, c, i::text, f::text FROM public.t").fetchone()
    assert tuple(value.decode() for value in row) == texts
    assert row[2] == "é".encode()
