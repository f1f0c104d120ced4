"""What a window makes of each kind of change, while writers run; with triggers and with a slot.

Beside these: c26 in test_correctness_ddl.py and the rewrites in test_correctness.py (c03) for tables whose blocks are
still being copied, test_stream.py for the stream's own memory, test_kept_columns.py for what only the target has."""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs, differences
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.following import new_plan
from airflow_provider_pgddl.engine.rows.reload import ChangedAgain
from tests.integration.lifecycle import Lifecycle, wait_until
from tests.integration.sessions import do, one, rounds

Make = Callable[..., Lifecycle]
Transactions = Iterator[str]

TABLES = """
    CREATE TABLE t (id int PRIMARY KEY, u text UNIQUE, body text, big text);
    ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
    INSERT INTO t SELECT n, 'u' || n, 'x', repeat('big ' || n, 900) FROM generate_series(1, 200) n
"""
ATTEMPTS = 20
PAUSE = 0.02  # seconds between two transactions of a session
OUTCOMES = (psycopg.errors.IntegrityError, psycopg.errors.DeadlockDetected)


@pytest.fixture(params=["change_log", "wal"])
def move(request: pytest.FixtureRequest, source_dsn: str, target_dsn: str, lifecycle: Make) -> Lifecycle:
    return lifecycle(
        source_dsn,
        target_dsn,
        tables={"include": ["public.*"]},
        capture={"rows": request.param},
        replay={"window_rows": 200_000, "until_lag": "30s"},
    )


@contextmanager
def application(dsn: str, *writers: Transactions) -> Iterator[Callable[[int], None]]:
    """Each in a session of its own, one string a transaction, as long as the block lasts; yields what waits for so many
    more to have committed."""
    over, committed = threading.Event(), [0] * len(writers)
    failed: list[BaseException] = []

    def write(number: int, transactions: Transactions) -> None:
        try:
            with psycopg.connect(dsn, autocommit=True, options="-c statement_timeout=60s") as conn:
                for _ in rounds(over, PAUSE):
                    with_outcome(conn, next(transactions))
                    committed[number] += 1
        except BaseException as error:  # noqa: BLE001 - raised again at the end
            failed.append(error)

    def more(count: int) -> None:
        before = list(committed)
        wait_until(lambda: failed or all(now >= then + count for now, then in zip(committed, before, strict=True)), 60)

    threads = [threading.Thread(target=write, args=(n, w), daemon=True) for n, w in enumerate(writers)]
    for thread in threads:
        thread.start()
    try:
        yield more
    finally:
        over.set()
        for thread in threads:
            thread.join(90)
        if failed:
            raise failed[0]


def with_outcome(conn: psycopg.Connection[tuple[object, ...]], transaction: str) -> None:
    try:
        conn.execute(transaction.encode())
    except OUTCOMES:
        conn.rollback()


def at_random(*statements: str) -> Transactions:
    """Any of these, for ever: {n} is a row, {d} a digit, {k} a number that has not been."""
    number = random.SystemRandom().getrandbits(32)
    print(f"seed {number}")
    chance = random.Random(number)
    for k in itertools.count(1000):
        yield chance.choice(statements).format(n=chance.randint(1, 200), d=chance.randint(0, 9), k=k)


def windows_under(move: Lifecycle, *writers: Transactions, seldom: Iterable[str] = ()) -> None:
    """Replays while they write, and at the end both sides are equal. `seldom` locks whole tables, so it gets a few
    turns a replay: who did so all the time would keep windows out, as it should."""
    move.run_all(until="schema_sync")
    turns = threading.Semaphore(0)
    with application(move.source, *writers, in_turn(seldom, turns)) as more:
        for _ in range(3):
            turns.release(3)
            more(15)
            turns.release(3)
            replay(move)
        turns.release(3)
        more(15)
    replay(move)
    assert differences(move.source, move.target) == []


def in_turn(transactions: Iterable[str], turns: threading.Semaphore) -> Transactions:
    for transaction in transactions:
        while not turns.acquire(timeout=0.01):
            yield "SELECT 1"
        yield transaction
    yield from itertools.repeat("SELECT 1")


def replay(move: Lifecycle) -> None:
    """As Airflow does it: again, where the error says that a retry helps."""
    for _ in range(ATTEMPTS):
        try:
            result = move.run("replay")
        except PgddlError as error:
            if not error.retryable:
                raise
        else:
            assert not result.blocked
            return
    raise AssertionError(f"it did not end in {ATTEMPTS} attempts")


ROWS = {
    "key changes": [
        "UPDATE t SET id = id + 100000 WHERE id % 10 = {d} AND id BETWEEN 1 AND 99999",
        "UPDATE t SET id = id - 100000 WHERE id % 10 = {d} AND id > 100000",
        "UPDATE t SET id = -id WHERE id % 10 = {d}",
        (
            "UPDATE t SET id = -id - 500000 WHERE id IN ({n}, {n} + 1);"
            " UPDATE t SET id = CASE id WHEN -500000 - {n} THEN {n} + 1 ELSE {n} END"
            " WHERE id IN (-500000 - {n}, -500001 - {n})"
        ),
        (
            "DELETE FROM t WHERE id = {n}; UPDATE t SET id = {n} WHERE id = {n} + 1;"
            " INSERT INTO t VALUES ({n} + 1, 'new {k}')"
        ),
    ],
    "unique values handed from row to row": [
        (
            "UPDATE t SET u = 'on its way ' || id WHERE id BETWEEN {n} AND {n} + 5; UPDATE t SET u = 'u' ||"
            " CASE id WHEN {n} + 5 THEN {n} ELSE id + 1 END WHERE id BETWEEN {n} AND {n} + 5"
        ),
        "DELETE FROM t WHERE id = {n}; UPDATE t SET u = 'u{n}' WHERE id = {n} % 200 + 1",
        "INSERT INTO t VALUES ({n}, 'u{n}') ON CONFLICT (u) DO UPDATE SET u = 'was ' || t.u",
        "UPDATE t SET u = NULL WHERE id = {n}; UPDATE t SET u = 'u{n}' WHERE id = {n} % 200 + 1",
    ],
    "big values that no UPDATE touches": [
        "UPDATE t SET body = 'n{k}' WHERE id % 10 = {d}",
        "UPDATE t SET id = id + 1000, body = 'moved' WHERE id = {n}",
        "UPDATE t SET id = id - 1000 WHERE id = {n} + 1000",
        "UPDATE t SET big = repeat('new {k}', 900) WHERE id = {n}",
    ],
}


@pytest.mark.parametrize("rule", ROWS)
def test_rows(move: Lifecycle, rule: str) -> None:
    do(move.source, TABLES)
    windows_under(move, at_random(*ROWS[rule]), at_random(*ROWS[rule]))


def test_truncate(move: Lifecycle) -> None:
    do(
        move.source,
        "CREATE TABLE p (id int PRIMARY KEY, v text); CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p);"
        "CREATE TABLE alone (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)",
    )
    fill = (
        "INSERT INTO p SELECT n, 'p{k}' FROM generate_series(1, 60) n ON CONFLICT DO NOTHING;"
        " INSERT INTO c SELECT n, n FROM generate_series(1, 60) n ON CONFLICT DO NOTHING"
    )
    truncates = [
        "TRUNCATE c",
        "TRUNCATE p CASCADE",
        f"TRUNCATE p CASCADE; {fill}",
        f"{fill}; TRUNCATE c; UPDATE p SET v = 'x'",
        f"TRUNCATE p, c, alone RESTART IDENTITY; {fill}; INSERT INTO alone (v) VALUES ('first')",
        "TRUNCATE alone; INSERT INTO alone (v) VALUES ('{k}'); TRUNCATE alone; INSERT INTO alone (v) VALUES ('{n}')",
    ]
    rows = [
        fill,
        "INSERT INTO alone (v) SELECT '{k}' FROM generate_series(1, 9)",
        "DELETE FROM c WHERE id % 10 = {d}",
        "UPDATE p SET v = v || '{d}' WHERE id % 10 = {d}",
    ]
    windows_under(move, at_random(*rows), seldom=at_random(*truncates))


def test_generated_and_identity_columns(move: Lifecycle) -> None:
    do(
        move.source,
        "CREATE TABLE g (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int,"
        " twice int GENERATED ALWAYS AS (n * 2) STORED UNIQUE, by_default int GENERATED BY DEFAULT AS IDENTITY)",
        "INSERT INTO g (n) SELECT n FROM generate_series(1, 200) n",
    )
    transactions = [
        "INSERT INTO g (n) VALUES ({k} + {d} * 100000)",
        "INSERT INTO g (id, n) OVERRIDING SYSTEM VALUE VALUES ({k} * 10 + 1000000, -{k})",
        "UPDATE g SET n = -n WHERE id = {n}; UPDATE g SET by_default = DEFAULT WHERE id = {n} + 1",
        "UPDATE g SET id = DEFAULT WHERE id = {n}",
        (
            "UPDATE g SET n = n + 1000000 WHERE id IN ({n}, {n} + 1);"
            " UPDATE g SET n = 1000001 + 2 * {n} - n WHERE n > 1000000"
        ),
    ]
    windows_under(move, at_random(*transactions), at_random(*transactions))


def tables_that_come_and_go() -> Transactions:
    for n in itertools.count():
        rows = f"INSERT INTO n{n} SELECT g, 'first' FROM generate_series(1, 50) g"
        yield f"CREATE TABLE n{n} (id int PRIMARY KEY, v text); {rows}"
        yield f"UPDATE n{n} SET v = 'second' WHERE id % 3 = 0"
        yield f"ALTER TABLE n{n} RENAME TO m{n}; DELETE FROM m{n} WHERE id < 10"
        yield f"ALTER TABLE m{n} RENAME COLUMN id TO number; UPDATE m{n} SET number = number + 100 WHERE v = 'second'"
        if n % 2:
            yield f"DROP TABLE m{n}; CREATE TABLE m{n} (id int PRIMARY KEY); INSERT INTO m{n} VALUES (1), (2)"
        if n > 2:
            yield f"DROP TABLE m{n - 3}"


def test_tables_created_dropped_and_renamed_between_windows(move: Lifecycle) -> None:
    do(move.source, TABLES)
    windows_under(move, at_random(*ROWS["key changes"]), seldom=tables_that_come_and_go())
    assert diff_catalogs(*(catalog_lines(dsn, ["public"]) for dsn in (move.source, move.target))) == []


def partitions_that_come_and_go() -> Transactions:
    for n in itertools.count():
        low, high = 1000 * n, 1000 * n + 1000
        rows = f"INSERT INTO r{n} SELECT 'brought', {low} + g, g FROM generate_series(1, 40) g"
        yield f"CREATE TABLE r{n} (v text, at int NOT NULL, id int NOT NULL, PRIMARY KEY (id, at)); {rows}"
        bound = f"FOR VALUES FROM ({low}) TO ({high})"
        yield f"ALTER TABLE r ATTACH PARTITION r{n} {bound}; UPDATE r SET v = 'in' WHERE id < 9"
        if n:
            yield f"UPDATE r SET at = at + 1000 WHERE at BETWEEN {low - 1000} AND {low - 980}"
            yield f"UPDATE r SET at = at - 995 WHERE at BETWEEN {low} AND {low + 5}; DELETE FROM r WHERE id = 30"
        if n > 1:
            yield f"ALTER TABLE r DETACH PARTITION r{n - 2}; UPDATE r{n - 2} SET v = 'out'"
        if n > 2:
            yield f"UPDATE r{n - 3} SET v = 'for itself'"
        if n > 3:
            yield f"DROP TABLE r{n - 4}"


def test_partitions_attached_detached_and_rows_that_move_between_them(move: Lifecycle) -> None:
    do(
        move.source,
        "CREATE TABLE r (id int, at int, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
        "CREATE TABLE r_rest PARTITION OF r FOR VALUES FROM (-1000) TO (0)",
        "INSERT INTO r SELECT n, -n, 'rest' FROM generate_series(1, 200) n",
    )
    rows = at_random(
        "UPDATE r_rest SET v = '{k}' WHERE id % 10 = {d}", "UPDATE r_rest SET id = id + 1000 WHERE id = {n}"
    )
    windows_under(move, rows, seldom=partitions_that_come_and_go())


def test_a_rewrite_reads_its_own_table_again_and_no_other(move: Lifecycle, capsys: pytest.CaptureFixture[str]) -> None:
    tables = ("defaulted", "retyped", "retyped_key", "added", "other")
    do(
        move.source,
        *(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v int, w text);"
            f" INSERT INTO {name} SELECT n, n FROM generate_series(1, 300) n"
            for name in tables
        ),
    )
    move.run_all(until="replay")
    chunks = (
        "SELECT table_name, count(*) FROM pgddl.chunks JOIN pgddl.tables t ON t.id = table_id GROUP BY 1 ORDER BY 1"
    )
    before = move.journal(chunks)
    capsys.readouterr()
    rows = [at_random(*(f"UPDATE {name} SET w = '{{k}}' WHERE id % 10 = {{d}}" for name in tables)) for _ in "ab"]
    with application(move.source, *rows) as more:
        for ddl in (
            "ALTER TABLE defaulted ADD COLUMN r float DEFAULT random(), ADD at timestamptz DEFAULT clock_timestamp()",
            "ALTER TABLE retyped ALTER v TYPE text USING 'v' || v",
            "ALTER TABLE retyped_key ALTER id TYPE bigint USING id * 10",
            "ALTER TABLE added ADD COLUMN constant text DEFAULT 'c', ADD now timestamptz DEFAULT now()",
        ):
            do(move.source, ddl)
            more(5)
        replay(move)
        more(5)
    replay(move)
    assert differences(move.source, move.target) == []
    again = re.findall(r"public\.(\w+): [1-9]\d* rows are pending", capsys.readouterr().out)
    assert set(again) == {"defaulted", "retyped", "retyped_key"}
    assert move.journal(chunks) == before


def test_a_table_that_changes_while_it_is_read_again_is_not_blocked_for_that(
    move: Lifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(move.source, TABLES)
    move.run_all(until="schema_sync")
    too_soon, reload = itertools.count(), new_plan.reload

    def changed_again(*args: Any) -> int:
        if next(too_soon) < 3:
            raise ChangedAgain("this test says so")
        return reload(*args)

    monkeypatch.setattr(new_plan, "reload", changed_again)
    do(move.source, "ALTER TABLE t ALTER body TYPE int USING 7")
    assert not move.run("replay").blocked
    assert next(too_soon) == 4
    assert differences(move.source, move.target) == []


ROWS_OF_ONE = 200_000
MEMORY = 40_000  # kB; the transaction writes 80,000 of rows, and they would take several times that here


def test_a_transaction_larger_than_memory(move: Lifecycle) -> None:
    do(move.source, "CREATE TABLE big (id int PRIMARY KEY, v text); INSERT INTO big VALUES (0, 'before')")
    move.run_all(until="schema_sync")
    do(
        move.source,
        f"INSERT INTO big SELECT n, repeat('v', 400) || n FROM generate_series(1, {ROWS_OF_ONE}) n;"
        " UPDATE big SET id = -id WHERE id % 50 = 0; DELETE FROM big WHERE id % 49 = 0",
    )
    with application(move.source, at_random("UPDATE big SET v = '{k}' WHERE id = {n}")) as more:
        more(5)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = memory("VmRSS")
        replay(move)
        grown = memory("VmHWM") - before
        more(5)
    print(f"{grown} kB")
    assert grown < MEMORY
    replay(move)
    assert one(move.target, f"SELECT count(*) > {ROWS_OF_ONE * 0.97} FROM big")
    assert differences(move.source, move.target) == []


def memory(what: str) -> int:
    """Of this process, in kB."""
    found = re.search(rf"^{what}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])
