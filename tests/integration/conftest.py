"""Fixtures of several files in here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.mallory import Mallory


@pytest.fixture
def mallory() -> Iterator[Mallory]:
    """Take it before the databases: then they are gone before her, and she can go."""
    her = Mallory()
    yield her
    her.leaves()
