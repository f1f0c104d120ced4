"""How a stage deals with Spark's executors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_pgddl.engine.pipeline.spark import Needs

PAGE = "Spark's page: "  # what a line has that says where it is


@dataclass(frozen=True, slots=True)
class Settings:
    """For how many seconds executors are waited for, what the connection between them and the driver
    has to have, and who is told of what goes on meanwhile."""

    wait: float = 300.0
    needs: Needs = "encryption"
    say: Callable[[str], None] = print

    def say_page(self, url: str | None) -> None:
        """Where Spark's own page is, if it has one."""
        if url:
            self.say(f"{PAGE}{url}")


DEFAULT = Settings()
