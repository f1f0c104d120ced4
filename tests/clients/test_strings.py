"""The strings that migration tools send, while a pipeline follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import psycopg
import pytest

from airflow_provider_pgddl.demo.compare import differences
from tests.clients.conftest import Move
from tests.clients.strings import TOOLS, strings
from tests.integration.lifecycle import execute

pytestmark = pytest.mark.timeout(600)

# Liquibase's history has no key. To copy it whole a swap has to know that nobody writes, and this fence stays on
# no other table.
KEYLESS = "databasechangelog"
OPTIONS = {"tables": {"include": ["*.*"], "keyless": "copy_at_swap"}, "swap": {"fence": "lock"}}


def send(dsn: str, sent: Sequence[str]) -> Iterator[None]:
    """Each string by itself, all through one session; stops wherever no transaction is open behind one."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for each in sent:
            conn.execute(each.encode())
            if conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                yield


def test_what_migration_tools_send_follows(move: Callable[..., Move], all_combinations: bool) -> None:
    """All tools are in one database, one after the other; in make test-all replay runs behind each transaction."""
    moved = move(**OPTIONS)
    for tool in TOOLS:
        list(send(moved.source, strings(tool)[0]))
    if moved.life.content["capture"]["rows"] == "wal":  # what preflight asks for, as Prisma's table has no primary key
        execute(moved.source, 'ALTER TABLE public."_UserFriends" REPLICA IDENTITY FULL')
    moved.begin()
    for tool in TOOLS:
        print(tool)
        for _ in send(moved.source, strings(tool)[1]):
            if all_combinations:
                moved.run("replay")
        moved.run("replay")
        found = [each for each in differences(moved.source, moved.target) if each.table != KEYLESS]
        assert list(map(str, found)) == []
    moved.end_equal(fenced=[KEYLESS])
