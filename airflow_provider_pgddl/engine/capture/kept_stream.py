"""A slot's stream that stays open from one reading to the next.

A new one has the server decode once more whatever the slot may not forget, and that begins where the oldest transaction
began that was in progress: with one that is open for minutes each window would take longer than the one before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from airflow_provider_pgddl.engine.capture.slot_stream import SlotStream
from airflow_provider_pgddl.engine.progress import repeating

LEFT_ALONE = 15.0
"""Seconds after which a stream that nobody has taken is closed: a server that shuts down waits for it."""
LOOK_EVERY = 1.0


class KeptStream:
    """A context manager; `taken` is the stream, for one thread at a time. It is opened when it is taken first, and
    after an error, with which it is closed: what comes behind that is to be read from what was confirmed."""

    def __init__(self, make: Callable[[], SlotStream]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._stream: SlotStream | None = None
        self._left_at = 0.0

    @contextmanager
    def taken(self) -> Iterator[SlotStream]:
        with self._lock:
            if self._stream is None:
                self._stream = self._make().__enter__()
            try:
                yield self._stream
            except BaseException as error:
                self._close(error)
                raise
            self._left_at = time.monotonic()

    def close(self) -> None:
        with self._lock:
            self._close(None)

    def _close(self, error: BaseException | None) -> None:
        if self._stream is not None:
            stream, self._stream = self._stream, None
            stream.__exit__(type(error) if error else None, error, None)

    def _close_if_left_alone(self) -> None:
        if self._lock.acquire(blocking=False):  # else it is being read
            try:
                if time.monotonic() - self._left_at > LEFT_ALONE:
                    self._close(None)
            finally:
                self._lock.release()

    def __enter__(self) -> Self:
        self._end = ExitStack()
        self._end.enter_context(repeating("pgddl-kept-stream", LOOK_EVERY, self._close_if_left_alone))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.close()
        with self._lock:
            self._close(value)
