"""C11: what a run would record that is not the newest any more is not recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.capture import fence
from airflow_provider_pgddl.engine.errors import Fenced, PreflightRefused
from airflow_provider_pgddl.engine.following.new_tables import take_in_late_tables
from airflow_provider_pgddl.engine.following.schema_gate import gate, validating
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.journal.windows import LOST_WINDOWS
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import connect
from airflow_provider_pgddl.engine.swapping.fence import lower_left
from tests.conftest import Database
from tests.failpoints import At
from tests.integration.lifecycle import Lifecycle, execute, wait_until
from tests.integration.sessions import Underway, do, wait_for, waits_for_anything

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


# --- the fence against writers is the newest run's, too ---------------------------------------------------------------

READ_ONLY: dict[str, Any] = {"swap": {"fence": "read_only"}}
WRITE = "INSERT INTO public.t VALUES (100)"


@pytest.fixture
def fencing(source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], at: At) -> Lifecycle:
    """About to cut over; the first run that does fails behind its fence."""
    execute(source_dsn, f"{TABLES}; INSERT INTO public.t SELECT generate_series(1, 9)")
    made = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, backfill={"workers": 1}, **READ_ONLY)
    made.run_all(until="verify")

    def fail(number: int) -> None:
        if number == 1:
            raise psycopg.OperationalError("the first run has failed")

    at("cut_over.behind_fence", fail)
    return made


class Held:
    """For `at`: the first pass stops here until it is let go on."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, number: int) -> None:
        if number == 1:
            self.reached.set()
            assert self.go_on.wait(120)


def test_c11_a_run_that_lives_on_leaves_the_fence_of_the_newer_one(
    fencing: Lifecycle, at: At, capsys: pytest.CaptureFixture[str]
) -> None:
    """It finds that nobody has cut over, which is true, and the newer run is about to."""
    looks, drained = Held(), Held()
    at("cut_over.before_look", looks)
    at("cut_over.before_target", drained)
    with Underway(lambda: fencing.run("swap")) as older:
        wait_for(looks.reached.is_set, older)
        assert fencing.journal(END_LEASE) == [(True,)]
        with Underway(lambda: fencing.run("swap")) as newer:
            wait_for(drained.reached.is_set, newer)
            looks.go_on.set()
            try:
                assert "the first run has failed" in str(older.fails(Exception))
                with pytest.raises(pg.ReadOnlySqlTransaction):
                    do(fencing.source, WRITE)
            finally:
                drained.go_on.set()
            assert newer.finish().state == "done"
    with pytest.raises(pg.ReadOnlySqlTransaction):
        do(fencing.source, WRITE)
    assert differences(fencing.source, fencing.target) == []
    assert "the fence is left to the newer run" in capsys.readouterr().out


def test_c11_a_newer_run_waits_for_one_that_is_taking_its_fence_down(fencing: Lifecycle, at: At) -> None:
    lowers = Held()
    at("cut_over.before_fence_down_commit", lowers)
    with Underway(lambda: fencing.run("swap")) as older:
        wait_for(lowers.reached.is_set, older)
        assert fencing.journal(END_LEASE) == [(True,)]
        with Underway(lambda: fencing.run("swap")) as newer:
            try:
                wait_for(lambda: waits_for_anything(fencing.target), newer)
            finally:
                lowers.go_on.set()
            assert "the first run has failed" in str(older.fails(Exception))
            assert newer.finish().state == "done"
    with pytest.raises(pg.ReadOnlySqlTransaction):
        do(fencing.source, WRITE)
    assert differences(fencing.source, fencing.target) == []


def test_c11_a_run_that_was_taken_over_lowers_no_fence_as_it_begins(move: Lifecycle) -> None:
    with taken_over(move) as context:
        fence.raise_fence(context.source, move.name, ("public", "t"))
        with pytest.raises(Fenced):
            lower_left(context)
    with pytest.raises(pg.ReadOnlySqlTransaction):
        do(move.source, WRITE)


@pytest.mark.parametrize("stage", ["setup", "backfill", "replay", "verify", "swap"])
def test_whatever_runs_behind_a_killed_swap_takes_its_fence_down(move: Lifecycle, stage: str) -> None:
    with connect(move.source, purpose="test") as source:
        fence.raise_fence(source, move.name, ("public", "t"))
    some = None if stage == "swap" else ["public.u"]
    if some and stage != "setup":
        move.run(stage, tables=some)  # which a swap may stand beside, for all that it knows
        with pytest.raises(pg.ReadOnlySqlTransaction):
            do(move.source, "INSERT INTO public.t VALUES (1)")
    if stage == "swap":
        move.refused(stage, PreflightRefused)  # before verify
    else:
        move.run(stage)
    do(move.source, "INSERT INTO public.t VALUES (1)")


def test_where_commits_are_lost_only_a_swap_takes_the_fence_down(move: Lifecycle) -> None:
    """A cut-over may be among them, with applications that go on there."""
    with connect(move.source, purpose="test") as source:
        fence.raise_fence(source, move.name, ("public", "t"))
    do(move.target, f"UPDATE pgddl.pipelines SET verify_needed = '{LOST_WINDOWS} …'")
    for stage in ("setup", "backfill", "replay"):
        move.run(stage)
        with pytest.raises(pg.ReadOnlySqlTransaction):
            do(move.source, "INSERT INTO public.t VALUES (1)")
    move.refused("swap", PreflightRefused)  # before verify
    do(move.source, "INSERT INTO public.t VALUES (1)")


def test_a_table_that_is_taken_out_behind_a_killed_swap_takes_its_fence_along(move: Lifecycle) -> None:
    with connect(move.source, purpose="test") as source:
        fence.raise_fence(source, move.name, ("public", "t"))
    move.content["tables"] = {"include": ["public.u"]}
    move.run("setup", reconfigure=True)
    do(move.source, "INSERT INTO public.t VALUES (1)")


def test_a_source_that_applications_have_left_is_not_moved_again(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str
) -> None:
    """Its rows are old, and a copy of them would take the place of those that are written now."""
    do(source_dsn, "CREATE TABLE public.t (id int PRIMARY KEY, n int) PARTITION BY LIST (id)")
    do(source_dsn, "CREATE TABLE public.t_1 PARTITION OF public.t DEFAULT", "INSERT INTO public.t VALUES (1, 1)")
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, swap={"fence": "read_only"})
    move.run_all()
    do(target_dsn, "UPDATE public.t SET n = 2")
    for existing in ("replace", "adopt"):
        taken = {"include": ["public.*"], "existing": existing}
        second = lifecycle(source_dsn, target_dsn, tables=taken, pipeline=move.name)
        refused = second.refused("setup", PreflightRefused, again=True)
        assert "public.t): refuses writes since a cut-over of this pipeline" in str(refused)
    assert move.journal("SELECT n FROM public.t") == [(2,)]


def test_a_fence_of_an_earlier_run_is_no_matter_of_another_target(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str, database: Database, pg18: Cluster
) -> None:
    for table in ("moved", "next"):
        do(source_dsn, f"CREATE TABLE public.{table} (id int PRIMARY KEY)")
    fenced: dict[str, Any] = {"swap": {"fence": "read_only"}, "capture": {"ddl": "off"}}
    first = lifecycle(source_dsn, target_dsn, tables={"include": ["public.moved"]}, **fenced)
    first.run_all()
    other = lifecycle(source_dsn, database(pg18), tables={"include": ["public.next"]}, pipeline=first.name, **fenced)
    other.run_all()


def test_a_fence_of_an_earlier_run_stays(lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str) -> None:
    """It goes on to keep applications from what has moved, whatever the pipeline is used for next."""
    for table in ("moved", "next"):
        do(source_dsn, f"CREATE TABLE public.{table} (id int PRIMARY KEY)", f"INSERT INTO public.{table} VALUES (1)")
    first = lifecycle(source_dsn, target_dsn, tables={"include": ["public.moved"]}, swap={"fence": "read_only"})
    first.run_all()
    second = lifecycle(
        source_dsn, target_dsn, tables={"include": ["public.next"]}, swap={"fence": "read_only"}, pipeline=first.name
    )
    second.run("setup", again=True)
    second.run_all(after="setup", until="verify")
    second.run("swap")
    for table in ("moved", "next"):
        with pytest.raises(pg.ReadOnlySqlTransaction):
            do(source_dsn, f"INSERT INTO public.{table} VALUES (2)")
