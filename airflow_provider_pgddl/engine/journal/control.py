"""Pause, resume and cancel: what a person has told a pipeline, in the journal, and the borders where runs obey.

A border lies between two chunks, two windows, two rounds of comparing, and before a stage. A run that holds there has
no transaction open: it keeps its sessions and the pipeline's lock, and nothing that anybody else could wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from airflow_provider_pgddl.engine.errors import Cancelled
from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

_Q = queries("control")

PAUSE = "pause"
LOOK_EVERY = 1.0  # seconds between two looks of a paused run
SHORTEST, LONGEST = 0.5, 5.0  # seconds between two looks of a throttled run: longer each time
SAY_EVERY = 60.0  # seconds after which a hold is said again


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a run does not go on just now; `by` is PAUSE or the key of `backfill.throttle`."""

    by: str
    why: str


@dataclass(frozen=True, slots=True)
class ControlRow:
    """What is recorded; times are aware datetimes. Runs whose token is not above `cancelled_token` are to end."""

    paused_at: datetime | None = None
    paused_why: str | None = None
    cancelled_token: int | None = None
    throttled_token: int | None = None
    throttled_at: datetime | None = None
    throttled_by: str | None = None
    throttled_why: str | None = None

    @property
    def pause(self) -> Hold | None:
        if self.paused_at is None:
            return None
        why = f": {self.paused_why}" if self.paused_why else ""
        return Hold(PAUSE, f"paused since {self.paused_at:%Y-%m-%d %H:%M:%S} UTC{why} (`pgddl resume` lets it go on)")

    def hold_of(self, token: int) -> Hold | None:
        """What holds the run with this token: the pause, or what its throttle has noted."""
        if self.pause or self.throttled_token != token:
            return self.pause
        return Hold(str(self.throttled_by), str(self.throttled_why))


class Control:
    """The one door to what is recorded of control, over one session; each call is a transaction of its own."""

    def __init__(self, conn: Session, pipeline: str):
        self.conn, self.pipeline = conn, pipeline

    def row(self) -> ControlRow:
        row = self.conn.execute(_Q["row"], [self.pipeline], prepare=True).fetchone()
        return ControlRow(*row) if row else ControlRow()

    def pause(self, why: str | None) -> None:
        self.conn.execute(_Q["pause"], [self.pipeline, why])

    def resume(self) -> bool:
        """Whether it was paused."""
        return self.conn.execute(_Q["resume"], [self.pipeline]).rowcount > 0

    def cancel(self) -> None:
        """The runs that have begun by now."""
        self.conn.execute(_Q["cancel"], {"pipeline": self.pipeline})

    def throttled(self, token: int, hold: Hold) -> None:
        self.conn.execute(_Q["throttled"], [self.pipeline, token, hold.by, hold.why])

    def unthrottled(self, token: int) -> None:
        self.conn.execute(_Q["unthrottled"], [self.pipeline, token])

    def under_way(self) -> list[tuple[str, datetime, int]]:
        """(stage, when it began, token) of the runs that are alive."""
        return self.conn.execute(_Q["under_way"], [self.pipeline]).fetchall()


def control_status(control: Control) -> dict[str, Any]:
    """For `status`: the pause, what a live run's throttle waits for, and which stages are under way."""
    row, runs = control.row(), control.under_way()
    throttled = None
    if row.throttled_token in {token for _, _, token in runs}:
        throttled = {"since": row.throttled_at, "by": row.throttled_by, "why": row.throttled_why}
    return {
        "paused_at": row.paused_at,
        "paused_because": row.paused_why,
        "throttled": throttled,
        "under_way": [{"stage": stage, "since": since} for stage, since, _ in runs],
    }


class Told:
    """What is said of a hold: at once when it begins or becomes another, and then every minute."""

    def __init__(self) -> None:
        self._by: str | None = None
        self._at = 0.0

    def line(self, hold: Hold | None) -> str | None:
        """The line to say now; None: nothing."""
        now, was = time.monotonic(), self._by
        if hold is None:
            self._by = None
            return "goes on" if was else None
        if hold.by == was and now - self._at < SAY_EVERY:
            return None
        self._by, self._at = hold.by, now
        return hold.why


class Looks(Protocol):
    """A throttle, which this module need not know."""

    def look(self) -> Hold | None: ...


class Border:
    """Where a run stops if it is told to. `say` gets the reason; without it somebody else says what is recorded."""

    def __init__(
        self, control: Control, token: int, throttle: Looks | None = None, say: Callable[[str], None] | None = None
    ):
        self._control, self._token, self._throttle, self._say = control, token, throttle, say
        self._told = Told()
        self._throttled = False

    def wait(self) -> bool:
        """Returns once nothing holds the run; True if something has. Never call it inside a transaction. Cancelled
        where the run is to end."""
        held, pause = False, SHORTEST
        while hold := self._look():
            held = True
            self._tell(hold)
            time.sleep(LOOK_EVERY if hold.by == PAUSE else pause)
            pause = min(pause * 2, LONGEST)
        self._tell(None)
        return held

    def _look(self) -> Hold | None:
        row = self._control.row()
        if row.cancelled_token is not None and self._token <= row.cancelled_token:
            raise Cancelled(
                "`pgddl cancel` has ended this run; all that it had finished is kept",
                todo="run the stage again when it may go on: it begins where this run has stopped",
            )
        hold = row.pause
        if hold is None and self._throttle is not None:
            hold = self._throttle.look()
        if hold is not None and hold.by != PAUSE:
            self._control.throttled(self._token, hold)
            self._throttled = True
        elif self._throttled:
            self._control.unthrottled(self._token)
            self._throttled = False
        return hold

    def _tell(self, hold: Hold | None) -> None:
        line = self._told.line(hold)
        if line and self._say:
            self._say(line)
