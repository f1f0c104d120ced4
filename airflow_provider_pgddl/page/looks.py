"""Looking at servers that may be slow or dead, for a page that may not be: it waits for a while, and says so."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Looked:
    """What was seen, and `age` seconds ago; or `error`, why nothing was, with what was seen last, if anything."""

    seen: Any = None
    age: float = 0.0
    error: str | None = None


TOO_LONG = 30.0  # seconds
MOST_STUCK = 3


class Lookout:
    """One thread for each thing that is looked at, however many people ask; who asks meanwhile gets what that sees.
    `patience` is in seconds. A look that takes longer than TOO_LONG is waited for no more, as what it waits for may be
    gone with nobody saying so; another one begins, unless MOST_STUCK have not ended yet."""

    def __init__(self, patience: float):
        self._patience = patience
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, tuple[float, Future[Looked]]] = {}
        self._running: Counter[Hashable] = Counter()
        self._last: dict[Hashable, tuple[float, Any]] = {}

    async def look(self, key: Hashable, at: Callable[[], Any], *, fresh: float = 0.0) -> Looked:
        """`at()` is called in a thread, unless what it saw last is at most `fresh` seconds old."""
        known = self._last.get(key)
        if known is not None and time.monotonic() - known[0] <= fresh:
            return Looked(known[1], time.monotonic() - known[0])
        future = self._begin(key, at)
        try:
            looked = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), self._patience)
        except TimeoutError:
            return self._failed(key, f"has not answered within {self._patience:g} s")
        return looked if looked.error is None else self._failed(key, looked.error)

    def forget(self, key: Hashable) -> None:
        """What was seen is not so any more."""
        with self._lock:
            self._last.pop(key, None)
            self._under_way.pop(key, None)

    def _failed(self, key: Hashable, why: str) -> Looked:
        at, seen = self._last.get(key, (time.monotonic(), None))
        return Looked(seen, time.monotonic() - at, why)

    def _begin(self, key: Hashable, at: Callable[[], Any]) -> Future[Looked]:
        with self._lock:
            began, future = self._under_way.get(key, (0.0, None))
            is_over = future is None or future.done() or time.monotonic() - began > TOO_LONG
            if is_over and self._running[key] < MOST_STUCK:
                future = Future()
                self._under_way[key] = time.monotonic(), future
                self._running[key] += 1
                threading.Thread(target=self._run, args=(key, at, future), name="pgddl-page", daemon=True).start()
            return future or Future()  # which nobody will answer

    def _run(self, key: Hashable, at: Callable[[], Any], future: Future[Looked]) -> None:
        try:
            looked = Looked(at())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the page tells it
            looked = Looked(error=told(error))
        with self._lock:
            self._running[key] -= 1
            if looked.error is None and self._under_way.get(key, (0.0, None))[1] is future:  # else it was forgotten
                self._last[key] = (time.monotonic(), looked.seen)
        future.set_result(looked)


def told(error: BaseException) -> str:
    """Our errors in their own words; of others, whose texts may show anything, their kind."""
    from airflow_provider_pgddl.engine.errors import PgddlError

    return str(error) if isinstance(error, PgddlError) else f"cannot be looked at ({type(error).__name__})"
