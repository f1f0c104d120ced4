"""One Spark session for all tests of a module that ask for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.conftest import REPOSITORY
from tests.dags.conftest import airflow
from tests.spark.cluster_pipeline import SECRET
from tests.spark.standalone import ENCRYPTED, Standalone

__all__ = ["airflow"]


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


@pytest.fixture(scope="session")
def cluster() -> Iterator[Standalone]:
    """Two workers of one core each, for all tests that ask for it; who kills some of it, or needs it busy, starts
    one of their own."""
    with Standalone(workers=2, conf=ENCRYPTED) as standalone:
        os.environ[SECRET] = ENCRYPTED["spark.authenticate.secret"]
        yield standalone
