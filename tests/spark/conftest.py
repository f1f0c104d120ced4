"""One Spark session for all tests of a module that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def one_session() -> Iterator[None]:
    """Workers find the tests' modules; the JVM goes with the last test."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(REPOSITORY))
    yield
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        gateway = SparkContext._gateway
        SparkContext._active_spark_context.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(20)
        SparkContext._gateway = SparkContext._jvm = None
    patch.undo()
