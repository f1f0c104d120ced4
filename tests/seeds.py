"""What random tests begin with."""

from __future__ import annotations

import os
import random


def seed(usual: int) -> int:
    """Always the usual one, so that a failure is one of the commit's own; PGDDL_TEST_SEED=random, or a number, for
    others. How threads, writers and stages fall together is new each time anyway."""
    given = os.environ.get("PGDDL_TEST_SEED", str(usual))
    return random.randrange(10**6) if given == "random" else int(given)
