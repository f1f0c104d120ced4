"""Borders without a server: what is said, and in which order a run obeys."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import cast

import pytest

from airflow_provider_pgddl.engine.errors import Cancelled
from airflow_provider_pgddl.engine.journal import control
from airflow_provider_pgddl.engine.journal.control import PAUSE, Border, Control, ControlRow, Hold, Told

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
BUSY = Hold("max_active_backends", "throttled: 90 sessions are active")


class Journalled:
    """What the journal says at one look after the other, and what a run has noted in it."""

    def __init__(self, *rows: ControlRow) -> None:
        self.rows, self.noted = list(rows), list[Hold | None]()

    def row(self) -> ControlRow:
        return self.rows.pop(0)

    def throttled(self, token: int, hold: Hold) -> None:
        self.noted.append(hold)

    def unthrottled(self, token: int) -> None:
        self.noted.append(None)


class Throttled:
    """A throttle that says this at one look after the other."""

    def __init__(self, *holds: Hold | None) -> None:
        self.holds = list(holds)

    def look(self) -> Hold | None:
        return self.holds.pop(0)


@pytest.fixture(autouse=True)
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(control.time, "sleep", slept.append)
    return slept


def border(journal: Journalled, throttle: Throttled | None = None, said: list[str] | None = None) -> Border:
    return Border(cast(Control, journal), 7, throttle, None if said is None else said.append)


def test_nothing_holds_a_run_that_nobody_has_paused(sleeps: list[float]) -> None:
    journal = Journalled(ControlRow())
    assert border(journal, Throttled(None)).wait() is False
    assert (sleeps, journal.noted) == ([], [])


def test_a_pause_comes_before_the_throttle_and_is_said_once(sleeps: list[float]) -> None:
    paused, said = ControlRow(paused_at=NOON, paused_why="the report"), list[str]()
    journal, throttle = (
        Journalled(ControlRow(), paused, paused, ControlRow(), ControlRow()),
        Throttled(BUSY, BUSY, None),
    )
    assert border(journal, throttle, said).wait() is True
    assert said == [
        BUSY.why,
        "paused since 2026-03-01 12:00:00 UTC: the report (`pgddl resume` lets it go on)",
        BUSY.why,
        "goes on",
    ]
    assert journal.noted == [BUSY, None, BUSY, None]
    assert throttle.holds == []  # it was not asked while paused
    assert sleeps == [control.SHORTEST, control.LOOK_EVERY, control.LOOK_EVERY, 4.0]


def test_a_throttled_run_looks_less_and_less_often(sleeps: list[float]) -> None:
    border(Journalled(*[ControlRow()] * 8), Throttled(*[BUSY] * 7, None)).wait()
    assert sleeps == [0.5, 1, 2, 4, 5, 5, 5]


@pytest.mark.parametrize(("cancelled", "ends"), [(None, False), (6, False), (7, True), (8, True)])
def test_a_cancel_ends_the_runs_that_had_begun(cancelled: int | None, ends: bool) -> None:
    journal = Journalled(ControlRow(cancelled_token=cancelled))
    if not ends:
        assert border(journal).wait() is False
        return
    with pytest.raises(Cancelled) as caught:
        border(journal).wait()
    assert (caught.value.exit_code, caught.value.retryable) == (1, False)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301


def test_a_paused_run_can_be_cancelled() -> None:
    with pytest.raises(Cancelled):
        border(Journalled(ControlRow(paused_at=NOON), ControlRow(paused_at=NOON, cancelled_token=7))).wait()


def test_a_hold_is_said_again_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(control.time, "monotonic", lambda: now[0])
    told = Told()
    lines = []
    for now[0] in (0.0, 1.0, 59.0, 60.0, 119.0, 121.0):
        lines.append(told.line(Hold(PAUSE, "paused")))
    assert lines == ["paused", None, None, "paused", None, "paused"]
    assert told.line(BUSY) == BUSY.why
    assert told.line(None) == "goes on"
    assert told.line(None) is None


def test_what_another_run_waits_for_is_none_of_ours() -> None:
    row = ControlRow(throttled_token=7, throttled_by="query", throttled_why="throttled: it says so")
    assert row.hold_of(7) == Hold("query", "throttled: it says so")
    assert row.hold_of(8) is None
