"""What happens right before or after a step of ours, or while one of our transactions stands still."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from airflow_provider_pgddl.engine.journal import lease
from tests.integration.sessions import do

_hooked: list[tuple[str, list[int]]] = []  # by this test, with the calls of each


def end_hooks(*, check: bool) -> None:
    """A step that is called in another module by now is hooked in vain, and its test has shown nothing."""
    never = [name for name, calls in _hooked if not calls]
    _hooked.clear()
    assert not (check and never), f"nothing has called {', '.join(never)}"


def before_each(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, act: Callable[[int], object]) -> list[int]:
    """Has `act(n)` happen right before the n-th call (from 1) of a step of ours; returns the list of calls."""
    step, calls = getattr(where, name), list[int]()

    def hooked(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls) + 1)
        act(calls[-1])
        return step(*args, **kwargs)

    monkeypatch.setattr(where, name, hooked)
    _hooked.append((f"{where.__name__}.{name}", calls))
    return calls


def after_each(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, act: Callable[[int], object]) -> list[int]:
    """Has `act(n)` happen right after the n-th call (from 1) of a step of ours; returns the list of calls."""
    step, calls = getattr(where, name), list[int]()

    def hooked(*args: Any, **kwargs: Any) -> Any:
        result = step(*args, **kwargs)
        calls.append(len(calls) + 1)
        act(calls[-1])
        return result

    monkeypatch.setattr(where, name, hooked)
    _hooked.append((f"{where.__name__}.{name}", calls))
    return calls


def at_calls(dsn: str, statements: Mapping[int, Sequence[str]]) -> Callable[[int], None]:
    """To act with: these statements, in a session of their own, at the calls with these numbers."""

    def act(number: int) -> None:
        if number in statements:
            do(dsn, *statements[number])

    return act


def once(*statements: str, dsn: str, at: int = 1) -> Callable[[int], None]:
    """To act with: these statements at one call."""
    return at_calls(dsn, {at: statements})


class Paused:
    """Stops one of our transactions right before it looks at its token for the last time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, purpose: str) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        check = lease.check

        def wait_and_check(conn: Any, fence: lease.Fence) -> None:
            name = conn.info.get_parameters().get("application_name", "")
            if name.endswith(purpose) and not self.reached.is_set():
                self.reached.set()
                assert self.go_on.wait(60)
            check(conn, fence)

        monkeypatch.setattr(lease, "check", wait_and_check)
