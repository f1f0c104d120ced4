"""How many connections a run opens on each side, and how many workers both sides have room for."""

from __future__ import annotations

from airflow_provider_pgddl.engine.server.connect import Session
from airflow_provider_pgddl.engine.sql import queries

# Sessions of a run beside its workers', on either side: lease, stage, window, watch, progress, the gate's, a look at
# who is in front, a dump.
OWN_SESSIONS = 8


def sessions_of_a_worker(side: str, *, in_place: bool) -> int:
    """On the source one reads and one watches who waits behind it, on the target one writes; in place one does both."""
    return 2 if in_place or side == "source" else 1


def room_for_workers(source: Session, target: Session) -> int:
    """How many workers there are connections for just now, at least one; the run's own sessions come on top of those
    that it has open already. In place `target` is `source`."""
    in_place = source is target
    rooms = [_free(source) // sessions_of_a_worker("source", in_place=in_place)]
    if not in_place:
        rooms.append(_free(target) // sessions_of_a_worker("target", in_place=False))
    return max(1, min(rooms))


def _free(conn: Session) -> int:
    row = conn.execute(queries("catalog")["free_connections"]).fetchone()
    return max(0, int(row[0]) - OWN_SESSIONS) if row else 0
