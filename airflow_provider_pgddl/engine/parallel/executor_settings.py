"""How a stage deals with Spark's executors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

PAGE = "Spark's page: "  # what a line has that says where it is


@dataclass(frozen=True, slots=True)
class Settings:
    """For how many seconds executors are waited for, whether others may read what passes between them and the driver,
    and who is told of what goes on meanwhile."""

    wait: float = 300.0
    allow_plaintext: bool = False
    say: Callable[[str], None] = print

    def say_page(self, url: str | None) -> None:
        """Where Spark's own page is, if it has one."""
        if url:
            self.say(f"{PAGE}{url}")


DEFAULT = Settings()
