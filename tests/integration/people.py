"""People whose copy has columns of its own, and whether each of them has kept their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_pgddl.demo.compare import differences
from tests.integration.by_hand import ByHand
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import one

Make = Callable[..., Lifecycle]

# `who` tells rows apart whatever their keys become.
PEOPLE = """
    CREATE SEQUENCE whos;
    CREATE TABLE people (id int PRIMARY KEY, who bigint NOT NULL DEFAULT nextval('whos'), body text);
    INSERT INTO people SELECT n FROM generate_series(1, 20) n;
"""
# The copy's own: values of a person, a default, and what the server numbers.
OWN = """
    ALTER TABLE people ADD COLUMN note text, ADD COLUMN origin text DEFAULT 'd',
        ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY
"""
KEEP = {"keep": ("note", "origin", "number"), "keep_types": ("text", "text", "bigint")}
NOTED = "UPDATE people SET note = 'of ' || who, origin = NULLIF('from ' || who, 'from 7')"


def take_in(hand: ByHand, name: str = "people") -> None:
    """The plan as the gate makes it once the copy has columns of its own."""
    hand.plan(name, **KEEP)
    hand.remember_shapes()


def rows(hand: ByHand) -> dict[int, tuple[Any, ...]]:
    """id → (who, note, origin) of the copy."""
    return {i: rest for i, *rest in map(tuple, hand.pipeline.journal("SELECT id, who, note, origin FROM people"))}  # type: ignore[misc]


def numbers(hand: ByHand) -> dict[int, int]:
    return dict(hand.pipeline.journal("SELECT who, number FROM people"))  # type: ignore[arg-type]


def settled(hand: ByHand, *, new: Sequence[int] = ()) -> None:
    """Both databases have the same rows, each has its own values and those without have none, and nothing waits."""
    (different,) = differences(hand.pipeline.source, hand.pipeline.target) or (None,)
    source = set(hand.pipeline.on_source("SELECT id, who, body FROM people"))
    target = hand.pipeline.journal("SELECT id, who, body, note, origin FROM people")
    assert {row[:3] for row in target} == source, different
    for _, who, _, note, origin in target:
        if who in new:
            assert (note, origin) == (None, "d"), who
        else:
            assert (note, origin) == (f"of {who}", f"from {who}" if who != 7 else None), who
    table = hand.table("people")
    assert one(hand.pipeline.target, f"SELECT count(*) FROM pgddl.kept_{table.id}") == 0


def swap(a: int, b: int) -> str:
    return "; ".join(f"UPDATE people SET id = {new} WHERE id = {old}" for old, new in ((a, -1), (b, a), (-1, b)))


SWAP = swap(1, 2)
