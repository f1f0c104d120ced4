"""How a stage deals with Spark's executors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """For how many seconds executors are waited for, whether others may read what passes between them and the driver,
    and who is told of what goes on meanwhile."""

    wait: float = 300.0
    allow_plaintext: bool = False
    say: Callable[[str], None] = print


DEFAULT = Settings()
