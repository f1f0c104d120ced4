"""Spark's executors as the driver knows them: how many tasks they have room for, and what is missing where they have
none. Asks the JVM of a SparkContext; imports neither pyspark nor what would have to be there on an executor."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import Any

from airflow_provider_pgddl.engine.parallel.spark_settings import is_local

_MASTER = re.compile(r"([^,:/]+|\[[^\]]+\]):(\d+)")
_MESSAGES = "org.apache.spark.deploy.DeployMessages$"


def slots(context: Any) -> int:
    """How many tasks can run beside each other just now."""
    scala = context._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def at_most(context: Any) -> float:
    """How many there may ever be beside each other, whatever comes later."""
    if is_local(context.master):
        return slots(context)
    cores = context.getConf().get("spark.cores.max") if context.master.startswith("spark://") else None
    return int(cores) if cores else math.inf


def missing(context: Any) -> str:
    """Why there is no executor, as far as the cluster's master says it: no worker, workers too small, or taken."""
    with suppress(Exception):  # the master may be gone, and a fork of Spark may be built otherwise
        for host, port in _MASTER.findall(context.master.removeprefix("spark://")):
            with suppress(Exception):  # of several masters one is the leader
                return _of_standalone(context, host, int(port))
    return f"{context.master} has started none"


def _of_standalone(context: Any, host: str, port: int) -> str:
    scala, jvm = context._jsc.sc(), context._jvm
    master = scala.env().rpcEnv().setupEndpointRef(jvm.org.apache.spark.rpc.RpcAddress(host, port), "Master")
    asked = _class(jvm, f"{_MESSAGES}RequestMasterState$").getField("MODULE$").get(None)
    state = master.askSync(asked, jvm.scala.reflect.ClassTag.apply(_class(jvm, f"{_MESSAGES}MasterStateResponse")))
    workers = [w for w in state.workers() if w.state().toString() == "ALIVE"]
    if not workers:
        return f"no worker is registered with {context.master}"
    cores, largest = sum(w.cores() for w in workers), max(w.memory() for w in workers)
    needed = scala.executorMemory()
    if largest < needed:
        return f"an executor needs {needed} MB, and the largest worker has {largest} MB (spark.executor.memory)"
    others = [a.desc().name() for a in state.activeApps() if a.id() != scala.applicationId()]
    taken = f"taken by {', '.join(sorted(others))}" if others else "not given to this application"
    return f"the {cores} cores of {len(workers)} workers are {taken}"


def _class(jvm: Any, name: str) -> Any:
    return jvm.java.lang.Class.forName(name)


# What Spark says where a task could not even begin on an executor, and what that means.
_FAILURES = (
    (r'Cannot run program "([^"]+)"', "executors have no {0} (the Python that they are to use)",
     "install it there, or name another in spark.conf: spark.pyspark.python"),
    (r"PYTHON_VERSION_MISMATCH\]?.*?(?:worker|executor)\D*(\d+\.\d+)\D.*?driver\D*(\d+\.\d+)",
     "executors run Python {0}, the driver Python {1}",
     "let both run the same minor version (spark.conf: spark.pyspark.python)"),
    (r"ModuleNotFoundError: No module named '([^']+)'", "executors lack the Python package {0}",
     "install it there, or let it travel: pgddl pack -o env.tar.gz, and spark.archives"),
)  # fmt: skip


def unable(text: str) -> tuple[str, str] | None:
    """(what, what to do) where an error says that executors cannot run tasks of ours at all."""
    for pattern, what, todo in _FAILURES:
        if found := re.search(pattern, text, re.DOTALL):
            return what.format(*found.groups()), todo
    return None
