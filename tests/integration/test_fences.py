"""C11: what a run would record that is not the newest any more is not recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import Fenced
from airflow_provider_pgddl.engine.following.new_tables import take_in_late_tables
from airflow_provider_pgddl.engine.following.schema_gate import gate, validating
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.server import catalog
from tests.integration.lifecycle import Lifecycle, execute, wait_until

TABLES = "CREATE TABLE public.t (id int PRIMARY KEY); CREATE TABLE public.u (id int PRIMARY KEY)"
RECORDED = "SELECT table_name, status, xmin::text FROM pgddl.schema_status ORDER BY 1"
END_LEASE = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE 'pgddl:%:lease'"


@pytest.fixture
def move(source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle]) -> Lifecycle:
    execute(source_dsn, TABLES)
    made = lifecycle(
        source_dsn,
        target_dsn,
        tables={"include": ["public.*"]},
        backfill={"workers": 1},
        schema={"validation_interval": "100ms"},
    )
    made.run_all(until="replay")
    return made


@contextmanager
def taken_over(move: Lifecycle) -> Iterator[Context]:
    """A run that still has all its sessions but for its lock, which a newer one holds."""
    with ExitStack() as stack:
        old = stages._context(move.job("replay"), Lease(move.target, move.name, "replay", None), stack)
        assert move.journal(END_LEASE) == [(True,)]
        newer = stack.enter_context(Lease(move.target, move.name, "replay", None))
        newer.take()
        yield old


def blocks(context: Context) -> Any:
    return context.block({context.journal.tables.of(1)[0].id: ["told by nobody"]})


def looks(context: Context) -> Any:
    return gate(context.pipeline, context.source_dsn, context.target_dsn, fence=context.fence())


def stops_a_newcomer(context: Context) -> Any:
    name = ("public", "keyless")
    oid = catalog.oid_of(context.source, *name)
    assert oid is not None
    return take_in_late_tables(context, {name: oid}, catalog.describe(context.source, [oid]))


@pytest.mark.parametrize("act", [blocks, looks, stops_a_newcomer], ids=lambda f: f.__name__)
def test_c11_a_run_that_was_taken_over_records_nothing(move: Lifecycle, act: Callable[[Context], Any]) -> None:
    before = move.journal(RECORDED)
    with taken_over(move) as context:
        execute(move.source, "ALTER TABLE public.t ADD COLUMN late int; CREATE TABLE public.keyless (x int)")
        execute(move.target, "CREATE TABLE public.keyless (x int)")
        with pytest.raises(Fenced):
            act(context)
    assert move.journal(RECORDED) == before


def test_c11_the_look_beside_a_backfill_is_fenced_too(move: Lifecycle, capsys: pytest.CaptureFixture[str]) -> None:
    before, said = move.journal(RECORDED), list[str]()

    def told() -> bool:
        said.append(capsys.readouterr().out)
        return "a newer run took over" in "".join(said)

    with taken_over(move) as context, validating(context):
        wait_until(told)
    assert move.journal(RECORDED) == before
