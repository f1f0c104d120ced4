"""What a demo has around it: signals that end it in order, and an environment without a person's own settings."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and a closed terminal end a demo as Ctrl-C does: in order, with nothing left running."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    kept = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def forget_settings_of_libpq() -> None:
    """Settings of a person's environment are for other servers: `PGSSLMODE=require` is met by none of a demo's."""
    for name in [name for name in os.environ if name.startswith("PG") and not name.startswith("PGDDL_")]:
        del os.environ[name]
