"""Failpoints in this process: `at("swap.before_lock", act)` has something happen there, for one test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from airflow_provider_pgddl.engine import failpoints
from airflow_provider_pgddl.engine.failpoints import Connections


class Passes:
    """How often one failpoint was passed; `act(n)` happens at the nth pass, from 1. Turned off by the end of a `with`,
    or of the test."""

    def __init__(self, name: str, act: Callable[[int], object]) -> None:
        self.name, self.act = name, act
        self.times = 0
        self.connections: Connections = ()
        failpoints.turn_on(name, self._pass)

    def _pass(self, connections: Connections) -> None:
        self.times += 1
        self.connections = connections
        self.act(self.times)

    def lose(self) -> None:
        """Within `act`: the connections that are about to commit."""
        failpoints.lose(self.connections)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        failpoints.turn_off(self.name)


class At:
    """The fixture `at`. A test whose failpoint nothing passes has shown nothing, and fails; unless that may be
    (`perhaps`)."""

    def __init__(self) -> None:
        self._all: list[Passes] = []
        self._certain: list[Passes] = []

    def __call__(self, name: str, act: Callable[[int], object] = lambda _: None, *, perhaps: bool = False) -> Passes:
        passes = Passes(name, act)
        self._all.append(passes)
        if not perhaps:
            self._certain.append(passes)
        return passes

    def end(self, *, check: bool) -> None:
        for passes in self._all:
            failpoints.turn_off(passes.name)
        never = [passes.name for passes in self._certain if not passes.times]
        assert not (check and never), f"nothing has passed {', '.join(never)}"


def once(act: Callable[[], object], at: int = 1) -> Callable[[int], None]:
    """For `at`: this at one pass."""

    def at_one(number: int) -> None:
        if number == at:
            act()

    return at_one
