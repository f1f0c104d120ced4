"""What else copies tables from one cluster to another: `psql | psql`, pgcopydb and Spark's JDBC source and sink.

Passwords reach them through the environment, or a file that only its owner can read, and never on a command line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.parallel import spark
from benchmarks.report import DEBIAN_15, PGCOPYDB

JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")
QUIET = ("-X", "-q", "-v", "ON_ERROR_STOP=1")


def psql(old: Cluster, new: Cluster, database: str, tables: list[str], copy_format: str) -> None:
    """One stream through two psql processes, a table after the other, as people do it by hand."""
    for table in tables:
        copy = f"COPY public.{table}", f"(FORMAT {copy_format})"
        with (
            subprocess.Popen(
                [old.bin("psql"), *QUIET, "-c", f"{copy[0]} TO STDOUT {copy[1]}"],
                stdout=subprocess.PIPE,
                env=_libpq(old, database),
            ) as out,
            subprocess.Popen(
                [new.bin("psql"), *QUIET, "-c", f"{copy[0]} FROM STDIN {copy[1]}"],
                stdin=out.stdout,
                env=_libpq(new, database),
            ) as into,
        ):
            assert out.stdout is not None
            out.stdout.close()  # the other psql's end alone, so that this one hears when that is gone
            if into.wait() or out.wait():
                raise SystemExit(f"psql, {table}: failed")


def _libpq(cluster: Cluster, database: str) -> dict[str, str]:
    return {"PATH": os.defpath, "PGHOST": "127.0.0.1", "PGPORT": str(cluster.port), "PGUSER": "postgres",
            "PGDATABASE": database, "PGPASSWORD": cluster.password}  # fmt: skip


def pgcopydb_missing() -> str | None:
    """What has to be installed for pgcopydb 0.10; its pg_dump is 15, so both servers have to be no newer."""
    if not PGCOPYDB.exists():
        return "apt-get install pgcopydb"
    return None if (DEBIAN_15 / "postgres").exists() else "apt-get install postgresql-15"


def pgcopydb(old: Cluster, new: Cluster, database: str, *what: str, split: int | None = None) -> None:
    """One command of pgcopydb. Tables of more than `split` bytes are copied in parts."""
    with tempfile.TemporaryDirectory(prefix="pgddl-bench-") as folder:
        passwords = Path(folder, "pgpass")
        passwords.touch(mode=0o600)
        passwords.write_text("".join(f"127.0.0.1:{c.port}:*:postgres:{c.password}\n" for c in (old, new)))
        env = {"PATH": f"{DEBIAN_15}:{os.defpath}", "HOME": folder, "PGPASSFILE": str(passwords)}
        for side, cluster in (("SOURCE", old), ("TARGET", new)):
            env[f"PGCOPYDB_{side}_PGURI"] = f"postgresql://postgres@127.0.0.1:{cluster.port}/{database}"
        if split is not None:
            env["PGCOPYDB_SPLIT_TABLES_LARGER_THAN"] = str(split)
        done = subprocess.run(
            [PGCOPYDB, *what, "--dir", f"{folder}/work"],
            env=env,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            raise SystemExit(f"pgcopydb {' '.join(what)}: failed\n{done.stdout[-2000:]}")


def start_spark(workers: int) -> None:
    """The session of this process, with the JDBC driver where that is installed, and with Python workers that have
    started: for Spark's own copy and for ours alike."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = spark.retrying(f"local[{workers}]")
    driver = {"spark.jars": str(JDBC_DRIVER)} if JDBC_DRIVER.exists() else {}
    SparkSession.builder.master(master).config(map={**spark.local_conf(master), **driver}).getOrCreate()
    spark.spread(abs, range(workers), workers=workers, app="pgddl bench")


def jdbc(old: Cluster, new: Cluster, database: str, table: str, rows: int, partitions: int) -> None:
    """Reads by ranges of `id`, writes in batches that the driver sends as INSERTs of many rows."""
    from pyspark.sql import SparkSession

    def options(cluster: Cluster) -> dict[str, Any]:
        parts = conninfo_to_dict(cluster.conninfo(database))
        url = f"jdbc:postgresql://127.0.0.1:{cluster.port}/{database}"
        return {
            "url": f"{url}?stringtype=unspecified&reWriteBatchedInserts=true",
            "dbtable": f"public.{table}",
            "driver": "org.postgresql.Driver",
            "user": parts["user"],
            "password": parts["password"],
            "fetchsize": 10_000,
            "batchsize": 10_000,
        }

    ranges = {"partitionColumn": "id", "lowerBound": 1, "upperBound": rows + 1, "numPartitions": partitions}
    session = SparkSession.builder.getOrCreate()
    found = session.read.format("jdbc").options(**options(old), **ranges).load()
    found.write.format("jdbc").options(**options(new)).mode("append").save()
