"""What a snapshot shows."""

from __future__ import annotations

import random

import pytest

from airflow_provider_pgddl.engine.capture.snapshot_visibility import Snapshot

EPOCH = 2**32


def test_a_snapshot_shows_what_had_ended() -> None:
    snapshot = Snapshot.parse("10:20:10,14,15")
    assert snapshot == Snapshot(10, 20, frozenset({10, 14, 15}))
    assert [xid for xid in range(3, 25) if snapshot.shows(xid)] == [*range(3, 10), 11, 12, 13, 16, 17, 18, 19]


def test_a_snapshot_with_nothing_in_progress() -> None:
    snapshot = Snapshot.parse("20:20:")
    assert snapshot.in_progress == frozenset()
    assert snapshot.shows(19) and not snapshot.shows(20)


@pytest.mark.parametrize("text", ["", "10", "10:20", "a:b:c", "1:2:3:4", "10:20:x"])
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        Snapshot.parse(text)


@pytest.mark.parametrize(
    ("xmax", "xid", "widened"),
    [
        (800, 799, 799),
        (800, 900, 900),  # began after the snapshot
        (800, EPOCH - 5, EPOCH - 5),  # there is nothing before the first epoch
        (EPOCH + 800, 799, EPOCH + 799),
        (EPOCH + 800, EPOCH - 5, EPOCH - 5),  # before the border
        (EPOCH + 3, 3, EPOCH + 3),
        (EPOCH - 5, EPOCH - 6, EPOCH - 6),
        (EPOCH - 5, 3, EPOCH + 3),  # behind the border
        (7 * EPOCH - 5, 3, 7 * EPOCH + 3),
        (7 * EPOCH + 5, EPOCH - 1, 7 * EPOCH - 1),
        (7 * EPOCH, EPOCH // 2 - 1, 7 * EPOCH + EPOCH // 2 - 1),
        (7 * EPOCH, EPOCH // 2 + 1, 7 * EPOCH - EPOCH // 2 + 1),
    ],
)
def test_a_transaction_is_given_the_epoch_nearest_to_the_snapshot(xmax: int, xid: int, widened: int) -> None:
    assert Snapshot(xmax - 2, xmax, frozenset()).widen(xid) == widened


def test_widening_undoes_cutting() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(10_000):
        xmax = chance.randrange(1, 5) * EPOCH + chance.randrange(-1000, 1000)
        xid = xmax + chance.randrange(-(2**31) + 1, 2**31)
        assert Snapshot(xmax, xmax, frozenset()).widen(xid % EPOCH) == xid
