"""Workers as processes against two servers behind a proxy that adds latency: chunks a second, CPU, statements.

    python -m benchmarks.many_workers [SECONDS [WORKERS ...]]

What grows with the number of workers, and what it costs the servers: docs/explanation/scale.md counts on from there.
Each worker is the function that a Spark task runs, in a process of its own, with chunks of one page, so that all but
the rows themselves is what is measured. Whether it is the machine that holds the rate: cores used by all of it
together, and the part of its time that a worker, or a proxy, is ready to go on and waits for a core. The last line is
the most workers once more, of which none asks five times a second who waits behind it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.job.file import Job
from airflow_provider_pgddl.engine.journal.lease import Lease
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.rows.chunks import Share, copy_chunks
from airflow_provider_pgddl.engine.rows.throttle import limits
from airflow_provider_pgddl.engine.server import giving_way
from airflow_provider_pgddl.engine.stages import backfill

LATENCY = 0.005  # seconds from a worker to a server and back
PAGES = 24_000
# One row a page.
TABLE = f"""
CREATE TABLE public.t (id int PRIMARY KEY, v text STORAGE PLAIN);
INSERT INTO public.t SELECT i, repeat('x', 7000) FROM generate_series(1, {PAGES}) i;
CREATE TABLE public.wide (id int PRIMARY KEY, {", ".join(f"column_{n} numeric(10, 2) DEFAULT 0" for n in range(29))});
"""
WAITS = """
SELECT wait_event_type || ': ' || wait_event, count(*)::int FROM pg_stat_activity
WHERE application_name LIKE 'pgddl:%:copy' AND wait_event_type IN ('Lock', 'LWLock', 'IO') GROUP BY 1
"""
COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
DONE = "SELECT count(done_at) FROM pgddl.chunks"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What one side says, half the latency later, in order."""
    loop = asyncio.get_running_loop()
    while data := await reader.read(1 << 16):
        loop.call_later(LATENCY / 2, writer.write, data)
    loop.call_later(LATENCY / 2, writer.close)


@contextmanager
def proxy(port: int) -> Iterator[tuple[int, int]]:
    """A port that leads to another one on loopback, and takes longer; and the process that it is of."""
    ready = multiprocessing.get_context("fork").SimpleQueue()

    async def serve() -> None:
        async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_pump(reader, back), _pump(there, writer), return_exceptions=True)

        server = await asyncio.start_server(join, "127.0.0.1", 0, backlog=512)
        ready.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    process = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(serve()), daemon=True)
    process.start()
    try:
        yield ready.get(), process.pid or 0
    finally:
        process.terminate()
        process.join()


def through(dsn: str, port: int) -> str:
    return make_conninfo("", **{**conninfo_to_dict(dsn), "port": port})


def cpu(cluster: Cluster) -> float:
    """Seconds that the processes of a server have used, those that have ended included."""
    (pid,) = [
        p.pid
        for p in psutil.process_iter(["cmdline"])
        if str(cluster.port) in " ".join(p.info["cmdline"] or []) and "postgres" in (p.info["cmdline"] or [""])[0]
    ][:1]
    postmaster = psutil.Process(pid)
    times = [postmaster.cpu_times(), *(p.cpu_times() for p in postmaster.children())]
    return sum(t.user + t.system for t in times) + times[0].children_user + times[0].children_system


def cores(pids: Sequence[int]) -> float:
    """Seconds that these processes have used."""
    return sum(t.user + t.system for t in (psutil.Process(pid).cpu_times() for pid in pids))


def kept_waiting(pids: Sequence[int]) -> float:
    """Seconds that the main threads of these processes were ready to run, and had no core."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) for pid in pids) / 1e9


def count(dsn: str, query: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(query.encode()).fetchone()
    return int(row[0]) if row else 0


def work_of(source: str, target: str) -> tuple[Share, ExitStack]:
    """A pipeline up to its ledger, and what a worker gets of it; the stack holds its lease."""
    os.environ.update(MANY_SOURCE=source, MANY_TARGET=target)
    pipeline = load_pipeline({
        "pipeline": "many_workers", "source": {"dsn": "${MANY_SOURCE}"}, "target": {"dsn": "${MANY_TARGET}"},
        "tables": {"include": ["public.*"]}, "backfill": {"chunk_bytes": "8kB", "workers": 64},
    })  # fmt: skip
    for stage in ("setup", "snapshot"):
        stages.run(Job(stage, pipeline))
    stack = ExitStack()
    held = Lease(target, pipeline.pipeline, "backfill", None)
    stack.enter_context(held)
    held.take()
    context = Context(Job("backfill", pipeline), held, stack)
    tables = backfill._lay_out(context, context.tables())
    work = Share(
        source,
        target,
        False,
        context.name,
        held.token,
        tuple(backfill._to_copy(context, t) for t in tables),
        600.0,
        limits(pipeline),
    )
    return work, stack


def _one(work: Share, stop: Any) -> None:
    os.setpgid(0, 0)
    copy_chunks(work, stop)


def at_once(
    work: Share, workers: int, seconds: float, clusters: Sequence[Cluster], proxies: Sequence[int], target: str
) -> list[str]:
    """A line of the table."""
    fork = multiprocessing.get_context("fork")
    stop = fork.Event()
    processes = [fork.Process(target=_one, args=(work, stop)) for _ in range(workers)]
    for process in processes:
        process.start()
    time.sleep(3.0)  # until all have their sessions
    pids = [process.pid or 0 for process in processes]

    def counters() -> list[float]:
        used = [*(cpu(c) for c in clusters), cores(pids), cores(proxies)]
        waited = [kept_waiting(pids) / workers, kept_waiting(proxies) / len(proxies)]
        return [time.monotonic(), *used, *waited, count(target, DONE), count(target, COMMITS)]

    before, held = counters(), Counter[str]()
    with psycopg.connect(target, autocommit=True) as conn:
        while (took := time.monotonic() - before[0]) < seconds:
            held.update({str(event): n for event, n in conn.execute(WAITS).fetchall()})
            time.sleep(0.1)
    took, *used, of_worker, of_proxy, done, commits = [n - was for n, was in zip(counters(), before, strict=True)]
    stop.set()
    for process in processes:
        process.join()
    of_servers = f"{sum(used[:2]) / done * 1000:.1f}" if done else "-"
    by_whom = [f"{each / took:.2f}" for each in (*used, sum(used))]
    waiting = ", ".join(f"{event} {n / (took / 0.1):.1f}" for event, n in held.most_common(3))
    return [
        str(workers), f"{done / took:.0f}", f"{done / took / workers:.1f}", *by_whom, f"{of_worker / took:.0%}",
        f"{of_proxy / took:.0%}", of_servers, f"{commits / took:.0f}", waiting,
    ]  # fmt: skip


def statements(work: Share, clusters: Sequence[Cluster], chunks: int = 40) -> Counter[str]:
    """How many statements each kind of session sends a chunk, by the servers' logs; the watcher's are by the second."""
    told = [make_conninfo(dsn, options="-c log_statement=all") for dsn in (work.source_dsn, work.target_dsn)]
    logs = [c.log for c in clusters]
    sizes = [log.stat().st_size for log in logs]
    stop, before = threading.Event(), count(work.target_dsn, DONE)
    worker = threading.Thread(target=copy_chunks, args=(replace(work, source_dsn=told[0], target_dsn=told[1]), stop))
    worker.start()
    while count(work.target_dsn, DONE) < before + chunks:
        time.sleep(0.05)
    stop.set()
    worker.join()
    done = count(work.target_dsn, DONE) - before
    found = Counter[str]()
    for log, size in zip(logs, sizes, strict=True):
        with log.open("rb") as file:
            file.seek(size)
            text = file.read().decode()
        found.update(re.findall(r"pgddl:many_workers:\d+:(\w+) LOG:  (?:statement|execute)", text))
    return Counter({kind: round(number / done) for kind, number in found.items()})


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    numbers = [int(n) for n in sys.argv[2:]] or [1, 8, 16, 32, 64]
    settings = {"max_connections": "400", "shared_buffers": "256MB", "autovacuum": "off"}
    with Cluster(16, settings=settings) as source, Cluster(18, settings=settings) as target, ExitStack() as stack:
        there, here = source.conninfo(), target.conninfo()
        with psycopg.connect(there) as conn:
            conn.execute(TABLE.encode())
        work, leased = work_of(there, here)
        stack.enter_context(leased)
        sizes = {table.plan.name: len(pickle.dumps(table)) for table in work.tables}
        print(f"a task of backfill gets of each table so many bytes: {sizes} (columns: 2, 30)")
        print(f"statements a chunk: {dict(statements(work, [source, target]))}")
        ports = [stack.enter_context(proxy(c.port)) for c in (source, target)]
        proxies = [pid for _, pid in ports]
        slow = replace(work, source_dsn=through(there, ports[0][0]), target_dsn=through(here, ports[1][0]))
        head = ["workers", "chunks/s", "each", "cores: source", "target", "workers", "proxies", "all",
                "a worker waits for a core", "a proxy", "ms of the servers a chunk", "commits/s on the target",
                "sessions of workers on the target that wait, on average"]  # fmt: skip
        print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
        for number, look_every in [*((n, giving_way.LOOK_EVERY) for n in numbers), (max(numbers), 3600.0)]:
            giving_way.LOOK_EVERY = look_every
            line = at_once(slow, number, seconds, [source, target], proxies, here)
            print(f"| {' | '.join(line)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
