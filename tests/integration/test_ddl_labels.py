"""Labels of enums that change their meaning at the worst instant: no row says on the target what it did not say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.stages import gate
from tests.combinations import matrix
from tests.failpoints import At, Passes, once
from tests.integration.ddl_shop import SHOP, all_through, each
from tests.integration.lifecycle import Lifecycle, execute

Make = Callable[..., Lifecycle]


@pytest.fixture(params=matrix("queue", "wal"))
def make(lifecycle: Callable[..., Lifecycle], source_dsn: str, target_dsn: str, request: pytest.FixtureRequest) -> Make:
    def made(schema: str = SHOP, **pipeline: Any) -> Lifecycle:
        execute(source_dsn, schema)
        content: dict[str, Any] = {"tables": {"include": ["public.*"]}, "capture": {"ddl": request.param}}
        return lifecycle(source_dsn, target_dsn, **{**content, **pipeline})

    return made


@pytest.mark.parametrize("through", ["", "domain", "array", "composite"])
def test_rows_of_a_type_whose_ddl_waits_do_not_go_on(make: Make, through: str) -> None:
    column = {"": "public.mood", "domain": "public.feeling", "array": "public.mood[]", "composite": "public.pair"}
    value = {"": "{}", "domain": "{}", "array": "{{{}}}", "composite": "({},1)"}[through]
    pipeline = make(
        f"""CREATE TYPE public.mood AS ENUM ('good', 'bad');
        CREATE DOMAIN public.feeling AS public.mood;
        CREATE TYPE public.pair AS (m public.mood, n int);
        CREATE TABLE public.people (id int PRIMARY KEY, m {column[through]});
        INSERT INTO public.people SELECT i, '{value.format("good")}' FROM generate_series(1, 20) i""",
        ddl={"approval": "required"},
    )
    pipeline.run_all(until="replay")
    each(pipeline.source, f"""
        ALTER TYPE public.mood RENAME VALUE 'good' TO 'fine'
        ALTER TYPE public.mood RENAME VALUE 'bad' TO 'good'
        INSERT INTO public.people VALUES (100, '{value.format("good")}')""")  # fmt: skip
    for _ in range(2):
        pipeline.run("replay")
        execute(pipeline.target, "UPDATE pgddl.ddl_events SET status = 'pending' WHERE status = 'awaiting_approval'")
    gate(pipeline.job("replay").pipeline, pipeline.source, pipeline.target)
    pipeline.run("replay")
    assert differences(pipeline.source, pipeline.target) == []


@pytest.mark.parametrize(("rows", "ddl"), [("change_log", "queue"), ("change_log", "wal"), ("wal", "wal")])
def test_a_label_that_changes_its_meaning_just_before_a_window(
    lifecycle: Callable[..., Lifecycle],
    source_dsn: str,
    target_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    rows: str,
    ddl: str,
) -> None:
    from airflow_provider_pgddl.engine.following import catch_up

    execute(
        source_dsn,
        """CREATE TYPE public.mood AS ENUM ('good', 'bad');
        CREATE TABLE public.people (id int PRIMARY KEY, m public.mood);
        INSERT INTO public.people SELECT i, 'good' FROM generate_series(1, 20) i""",
    )
    capture = {"rows": rows, "ddl": ddl}
    pipeline = lifecycle(source_dsn, target_dsn, tables={"include": ["public.*"]}, capture=capture)
    pipeline.run_all(until="replay")
    before, done = catch_up.one_window, []

    def window(*args: Any, **options: Any) -> Any:
        if not done:
            done.append(1)
            each(source_dsn, """
                ALTER TYPE public.mood RENAME VALUE 'good' TO 'fine'
                ALTER TYPE public.mood RENAME VALUE 'bad' TO 'good'
                INSERT INTO public.people VALUES (100, 'good')""")  # fmt: skip
        return before(*args, **options)

    monkeypatch.setattr(catch_up, "one_window", window)
    assert not pipeline.run("replay").blocked
    all_through(pipeline, after="schema_sync")


LABELS = """
CREATE TYPE public.mood AS ENUM ('good', 'bad');
CREATE TABLE public.people (id int PRIMARY KEY, m public.mood, filler text);
INSERT INTO public.people
SELECT i, CASE WHEN i % 2 = 0 THEN 'good' ELSE 'bad' END::public.mood, repeat('x', 300) FROM generate_series(1, 2000) i;
"""
EXCHANGE = """
ALTER TYPE public.mood RENAME VALUE 'good' TO 'fine'
ALTER TYPE public.mood RENAME VALUE 'bad' TO 'good'
ALTER TYPE public.mood RENAME VALUE 'fine' TO 'bad'"""


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
@pytest.mark.parametrize("where", ["backfill.before_chunk", "backfill.before_chunk_commit", "replay.after_snapshot"])
def test_labels_that_change_places_while_rows_are_copied(make: Make, at: At, rows: str, where: str) -> None:
    """A server writes labels as of now: rows of a snapshot before it would say the opposite on the target."""
    pipeline = make(LABELS, capture={"rows": rows}, backfill={"chunk_bytes": "64kB", "workers": 1})
    stage = where.partition(".")[0]
    pipeline.run_all(until="snapshot" if stage == "backfill" else "replay")
    execute(pipeline.source, "UPDATE public.people SET filler = 'y' WHERE id < 900")
    with at(where, once(lambda: each(pipeline.source, EXCHANGE), at=3 if stage == "backfill" else 1)):
        assert not pipeline.run(stage).blocked
    pipeline.run_all(after=stage if stage == "backfill" else "schema_sync", until="replay")
    assert differences(pipeline.source, pipeline.target) == []
    all_through(pipeline, after="replay")


class Died(Exception):
    """No error that a stage would know what to do with."""


def die(passes: Passes) -> None:
    if passes.connections:
        passes.lose()
    raise Died


@pytest.mark.parametrize("rows", matrix("change_log", "wal"))
def test_labels_change_places_and_the_stage_dies_at_each_border(make: Make, at: At, rows: str) -> None:
    """What is noted of it stands on two servers: to and fro, each time with an end at another place."""
    pipeline = make(LABELS, capture={"rows": rows}, backfill={"chunk_bytes": "64kB", "workers": 1})
    pipeline.run_all(until="replay")
    captured = {"change_log": "capture.before_triggers_commit", "wal": "capture.before_published_commit"}[rows]
    for border in (
        "follow.after_flush", "follow.before_events_commit", "follow.before_confirm_commit", "ddl.before_commit",
        "capture.before_stop_commit", "settle.before_capture_again", captured, "settle.before_reload_commit",
        "replay.before_target_commit", "replay.before_source_commit",
    ):  # fmt: skip
        execute(pipeline.source, "UPDATE public.people SET filler = 'y' WHERE id < 300")
        each(pipeline.source, EXCHANGE)
        with at(border) as passes:
            passes.act = once(partial(die, passes))
            with pytest.raises((PgddlError, Died)):
                pipeline.run("replay")
        pipeline.run("replay")
        assert differences(pipeline.source, pipeline.target) == [], border
    all_through(pipeline, after="replay")


def test_a_label_of_a_new_name_has_nothing_read_again(make: Make) -> None:
    pipeline = make(LABELS)
    pipeline.run_all(until="replay")
    execute(pipeline.source, "ALTER TYPE public.mood RENAME VALUE 'good' TO 'fine'")
    assert pipeline.run("replay").figures["rows"] == 0
    assert differences(pipeline.source, pipeline.target) == []
