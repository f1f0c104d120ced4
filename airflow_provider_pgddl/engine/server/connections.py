"""How many connections a run opens on each side, and how many workers both sides have room for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

# Sessions of a run beside its workers', on either side: lease, stage, window, watch, progress, the gate's, a look at
# who is in front, a dump.
OWN_SESSIONS = 8


@dataclass(frozen=True, slots=True)
class Room:
    """How many connections are `free` just now, of as many as `limit` says, which is of the server, or of the database
    or the role where those have fewer left."""

    free: int
    limit: int
    of: Literal["server", "database", "role"]


def sessions_of_a_worker(side: str, *, in_place: bool) -> int:
    """On the source one reads and one watches who waits behind it, on the target one writes; in place one does both."""
    return 2 if in_place or side == "source" else 1


def workers_with_room(wanted: int, source: Session, target: Session, *, in_place: bool) -> int:
    """How many workers, of as many as are wanted, there are connections for just now, at least one; the run's own
    sessions come on top of those that it has open already."""
    rooms = [_for_workers(source) // sessions_of_a_worker("source", in_place=in_place)]
    if not in_place:
        rooms.append(_for_workers(target) // sessions_of_a_worker("target", in_place=False))
    return max(1, min(wanted, *rooms))


def _for_workers(conn: Session) -> int:
    return max(0, room(conn).free - OWN_SESSIONS)


def room(conn: Session) -> Room:
    """Of the server that a session is on, to its role and in its database."""
    rooms = (Room(*row) for row in conn.execute(queries("catalog")["free_connections"]))
    return min(rooms, key=lambda one: one.free)
