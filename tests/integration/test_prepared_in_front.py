"""A prepared transaction in the way, which no process has: it is named like one that has (C36)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from airflow_provider_pgddl.engine.errors import Retry
from airflow_provider_pgddl.engine.job import context
from airflow_provider_pgddl.engine.server import giving_way, strong_locks
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import Underway, wait_for

Lifecycles = Callable[..., Lifecycle]

NAMED = r"; in front: prepared transaction 'forgotten', which no signal ends: COMMIT PREPARED or ROLLBACK PREPARED it"


@pytest.fixture
def move(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Lifecycle]:
    for module in (context, strong_locks, giving_way):
        monkeypatch.setattr(module, "SAY_EVERY", 0.1)
    execute(source_dsn, "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'v')")

    def make(retries: int = 1000) -> Lifecycle:
        return lifecycle(
            source_dsn, target_dsn, tables={"include": ["public.t"]}, capture={"ddl": "off"},
            swap={"fence": "read_only", "retries": retries}, backfill={"workers": 1},
        )  # fmt: skip

    return make


@contextmanager
def forgotten(dsn: str, statement: str) -> Iterator[Callable[[], None]]:
    """What is yielded ends it."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("BEGIN")
        conn.execute(statement.encode())
        conn.execute("PREPARE TRANSACTION 'forgotten'")

        def end() -> None:
            conn.execute("ROLLBACK PREPARED 'forgotten'")

        yield end


def said(capsys: pytest.CaptureFixture[str], line: str, so_far: list[str]) -> bool:
    so_far.append(capsys.readouterr().out)
    return re.search(line, "".join(so_far), re.MULTILINE) is not None


@pytest.mark.parametrize(
    ("side", "stage", "statement", "line"),
    [
        ("source", "replay", "ALTER TABLE t ADD c int", r"^pgddl replay: gave way .*" + NAMED),
        ("target", "replay", "LOCK TABLE t IN EXCLUSIVE MODE", r"^pgddl replay: this has been under way .*" + NAMED),
        ("source", "swap", "UPDATE t SET v = v", r"^pgddl swap: fence: .*" + NAMED),
    ],
)
def test_c36_who_waits_for_one_says_so(
    move: Callable[..., Lifecycle], capsys: pytest.CaptureFixture[str], side: str, stage: str, statement: str, line: str
) -> None:
    one, lines = move(), list[str]()
    one.run_all(until="schema_sync" if stage == "replay" else "verify")
    execute(one.source, "UPDATE t SET v = 'changed'")
    with forgotten(one.source if side == "source" else one.target, statement) as end:
        with Underway(lambda: one.run(stage)) as running:
            wait_for(lambda: said(capsys, line, lines), running)
            end()


def test_what_gives_up_says_how_they_are_found(move: Callable[..., Lifecycle]) -> None:
    one = move(retries=2)
    one.run_all(until="verify")
    with forgotten(one.source, "UPDATE t SET v = v") as end:
        error = one.refused("swap", Retry)
        assert error.sql is not None
        with psycopg.connect(one.source, autocommit=True) as conn:
            *_, prepared = error.sql.split(";\n")
            assert [gid for gid, *_ in conn.execute(prepared.encode())] == ["forgotten"]
        end()
