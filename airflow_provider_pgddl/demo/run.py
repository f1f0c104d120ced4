"""A shop moves from Postgres 16 to 18, back and there again; then one of its tables changes its key. Its writers never
stop.

Everything is real and on this machine: two Postgres servers, Airflow running DAGs of `dags_examples`, Spark.
What the engine reports about itself decides nothing here: rows, sequences and structure are compared by `compare`, and
the writers remember what each of their commits left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from airflow_provider_pgddl.demo import record, shop
from airflow_provider_pgddl.demo.airflow_run import Airflow, DagFailed, dags_folder
from airflow_provider_pgddl.demo.clusters import Cluster, ClusterFailed, remove_left
from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs
from airflow_provider_pgddl.demo.crossing import Crossing
from airflow_provider_pgddl.demo.developer import CHANGES, CHANGES_THERE, Developer
from airflow_provider_pgddl.demo.screen import Screen
from airflow_provider_pgddl.demo.surroundings import forget_settings_of_libpq, terminable
from airflow_provider_pgddl.demo.traffic import Notes
from airflow_provider_pgddl.demo.writers import Writers, broken_invariants
from airflow_provider_pgddl.engine.job.folder import own_folder
from airflow_provider_pgddl.engine.parallel import spark

SHOP, BACK, REWRITE = "shop", "shop_back", "rewrite_orders"  # pipelines
STAY = 2000  # transactions on Postgres 18, at the least, before it goes back
STAY_SECONDS = 120.0  # for them


@dataclass(slots=True)
class DagOutcome:
    """What one of the moves came to. `differences` are texts; empty is what everybody hopes for."""

    title: str
    tables: int = 0
    rows: int = 0
    rows_differing: int = 0
    differences: list[str] = field(default_factory=list)
    windows: int | None = None
    window_keys: int | None = None
    stall_ms: float | None = None
    writes: int = 0
    changes: int | None = None
    """Of the schema, by the developer."""
    seconds: float = 0.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="pgddl demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and progress on stderr")
    parser.add_argument(
        "--scale", type=_positive, default=shop.DEFAULT_SCALE, help="size of the shop (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, help="what the writers draw their choices from")
    parser.add_argument("--keep", action="store_true", help="at the end, leave the servers up until Ctrl-C")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what happened when to this file, as JSON")
    args = parser.parse_args(argv)
    screen = Screen(Console(stderr=args.json, highlight=False))
    if missing := spark.why_no_launch(os.environ | spark.launch_env(os.environ, local=True)):
        screen.console.print(f"[red]{escape(str(missing))}[/]")
        return 1
    forget_settings_of_libpq()
    remove_left()
    with terminable():
        try:
            return _demo(args, screen)
        except KeyboardInterrupt:
            screen.console.print("Interrupted; everything that this demo started has been stopped.")
            return 130
        except (DagFailed, ClusterFailed) as failure:
            screen.console.print(f"[red]{escape(str(failure))}[/]", soft_wrap=True)
            return 1


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above zero")
    return int(text)


def _demo(args: argparse.Namespace, screen: Screen) -> int:
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(own_folder("pgddl-demo-home-"))
        screen.title("Two Postgres servers, a shop, and Airflow")
        old, new = stack.enter_context(Cluster(16)), stack.enter_context(Cluster(18))
        screen.say("postgres", f"16 on port {old.port}, 18 on port {new.port}")
        airflow = stack.enter_context(Airflow(home, old, new))
        ready = airflow.start_migration()
        source, target = shop.load(old, scale=args.scale), shop.create_database(new)
        screen.say("shop", f"loaded at scale {args.scale}, {_size(source)}")
        ready()
        screen.say("airflow", "its own database is ready")

        writers = Writers(
            [make_conninfo(dsn, user=shop.APP_ROLE) for dsn in (source, target)],
            seed=args.seed,
            pipeline=SHOP,
            journal=target,
        )
        demo = Demo(source, target, airflow, writers, screen, stack)
        first = demo.crossing("migrate 16 → 18", source, target)
        writers.on_cut_over = first.at_the_cut_over
        screen.follow(writers.start())
        stack.callback(writers.stop)
        stack.callback(airflow.end)  # first of all: a writer may be waiting for a lock that it holds
        screen.say("writers", f"4 applications write to Postgres 16 as {shop.APP_ROLE}, seed {writers.seed}")

        outcomes = [*demo.to_and_fro(first), _rewrite(airflow, target, writers, screen)]
        notes = writers.stop()
        ok = not notes.failures and not any(o.differences or o.rows_differing for o in outcomes)
        _report(screen, outcomes, writers)
        if args.record:
            pipelines = (SHOP, BACK, REWRITE)
            record.write(args.record, screen.began, (target, source), pipelines, demo.cut_overs, notes, screen.lines)
        if args.json:
            print(
                json.dumps(
                    {
                        "ok": ok,
                        "seconds": round(screen.seconds, 1),
                        "seed": writers.seed,
                        "writers": {"committed": notes.committed, "retried": notes.retried, "failures": notes.failures},
                        "moves": [asdict(outcome) for outcome in outcomes],
                    }
                )
            )
        if not ok:
            kept = airflow.keep_logs()
            screen.console.print(
                f"[red]Something is not as it should be.[/] Airflow's logs are in {kept}", soft_wrap=True
            )
        if args.keep:
            _stay(screen, source, target)
        return 0 if ok else 1


class Demo:
    """Both servers, and what goes to and fro between them."""

    def __init__(
        self,
        old: str,
        new: str,
        airflow: Airflow,
        writers: Writers,
        screen: Screen,
        stack: contextlib.ExitStack,
    ) -> None:
        self.old, self.new = old, new
        self._airflow, self._writers, self._screen, self._stack = airflow, writers, screen, stack
        self.cut_overs: list[tuple[str, float]] = []
        self._counted = 0  # transactions up to the last cut-over

    def crossing(self, title: str, source: str, target: str) -> Crossing:
        crossing = Crossing(title, source, target, self._writers)
        self._stack.callback(crossing.close)
        return crossing

    def to_and_fro(self, first: Crossing) -> list[DagOutcome]:
        """As far as it comes: a move that did not come off has no other behind it."""
        screen, writers = self._screen, self._writers
        screen.title("Migrate: Postgres 16 → 18, DAG migrate_shop_reversibly")
        outcomes = [self._cross(first, SHOP, "migrate_shop_reversibly", CHANGES)]
        if not writers.cut_over:
            return outcomes
        screen.title("Back: the old server has stayed current, DAG return_shop")
        back = self.crossing("back to 16", self.new, self.old)
        writers.expect(BACK, self.old, back.at_the_cut_over)
        outcomes.append(self._cross(back, BACK, "return_shop", CHANGES_THERE, stay=True))
        if not writers.cut_over:
            return outcomes
        screen.title("And forward again, DAG move_shop_again")
        again = self.crossing("18 again", self.old, self.new)
        writers.expect(SHOP, self.new, again.at_the_cut_over)
        outcomes.append(self._cross(again, SHOP, "move_shop_again", ()))
        if writers.cut_over:
            screen.title("The old server is let go of, DAG let_go_of_old_shop")
            self._airflow.test("let_go_of_old_shop", screen)
        return outcomes

    def _cross(
        self, crossing: Crossing, pipeline: str, dag: str, changes: Sequence[str], *, stay: bool = False
    ) -> DagOutcome:
        screen, writers, notes = self._screen, self._writers, self._writers.notes
        outcome = DagOutcome(crossing.title)
        began, started = time.time(), time.monotonic()
        crossing.compare_in_background()

        def say(change: str) -> None:
            screen.say("developer", change, "magenta")

        with Developer(crossing.source, crossing.target, pipeline, say, changes) as developer:
            if stay:
                self._stay_there(notes)
            self._airflow.test(dag, screen)
        outcome.changes = developer.done
        if developer.error is not None:
            outcome.differences.append(f"the developer met an error: {developer.error}")
        outcome.seconds = time.monotonic() - started
        if not writers.cut_over:
            outcome.differences.append("the DAG ended, but the writers were not sent to the other server")
            return outcome
        screen.say("compare", "all rows, as they were at the cut-over, while the writers go on")
        results = crossing.results()
        outcome.tables, outcome.rows = len(results), sum(result.rows_target for result in results)
        outcome.rows_differing = sum(result.only_source + result.only_target for result in results)
        outcome.differences += [str(result) for result in results if result.differs]
        outcome.differences += map(str, crossing.sequences())
        outcome.differences += diff_catalogs(catalog_lines(crossing.source), catalog_lines(crossing.target))
        outcome.windows, outcome.window_keys = _windows(crossing.target, pipeline, began)
        outcome.writes, self._counted = crossing.committed - self._counted, crossing.committed
        assert notes.rejected_at is not None
        assert notes.accepted_at is not None
        outcome.stall_ms = 1000 * notes.longest(notes.rejected_at, notes.accepted_at)
        self.cut_overs.append((crossing.title, notes.rejected_at))
        screen.say("compare", _verdict(outcome), "green" if not outcome.differences else "red")
        return outcome

    def _stay_there(self, notes: Notes) -> None:
        until = time.monotonic() + STAY_SECONDS
        while notes.committed.total() < self._counted + STAY and time.monotonic() < until:
            time.sleep(0.2)
        self._screen.say("writers", self._screen.writers_line(), "dim")


def _rewrite(airflow: Airflow, target: str, writers: Writers, screen: Screen) -> DagOutcome:
    screen.title(f"Rewrite in place: the key of shop.orders becomes bigint, DAG {REWRITE}")
    outcome = DagOutcome("rewrite orders", tables=1)
    structure = catalog_lines(target)
    started, before = time.monotonic(), writers.notes.committed.total()
    airflow.test(REWRITE, screen)
    outcome.seconds = time.monotonic() - started
    outcome.writes = writers.notes.committed.total() - before
    with psycopg.connect(target, options="-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=postgres") as conn:
        # The old table stopped at the swap and has nothing to say about later writes: the writers' own ledger has.
        with writers.quiet():
            problems = writers.ledger.check(conn)
            broken = broken_invariants(target)
        row = conn.execute("SELECT count(*) FROM shop.orders").fetchone()
        outcome.rows = row[0] if row else 0
        swapped_at = conn.execute(
            "SELECT extract(epoch FROM cut_over_at)::float8 FROM pgddl.pipelines WHERE pipeline = %s", [REWRITE]
        ).fetchone()
    outcome.rows_differing = len(problems)
    outcome.differences += problems[:10] + broken
    outcome.differences += diff_catalogs(_with_bigint_key(structure), catalog_lines(target))
    outcome.windows, outcome.window_keys = _windows(target, REWRITE)
    if swapped_at is not None and swapped_at[0] is not None:
        # The lock is held for less than this; a writer that waited for it ended right after.
        outcome.stall_ms = 1000 * writers.notes.longest(swapped_at[0] - 0.5, swapped_at[0] + 0.5)
    screen.say("compare", _verdict(outcome), "green" if not outcome.differences else "red")
    return outcome


def _with_bigint_key(lines: list[str]) -> list[str]:
    """What the structure must be after the rewrite: this, and nothing else."""
    changes = {
        "shop.orders column 1 id: integer": "shop.orders column 1 id: bigint",
        "shop.orders_id_seq sequence: integer start 1 min 1 max 2147483647": (
            "shop.orders_id_seq sequence: bigint start 1 min 1 max 9223372036854775807"
        ),
    }
    for old, new in changes.items():
        lines = [new + line[len(old) :] if line.startswith(old) else line for line in lines]
    return lines


def _size(dsn: str) -> str:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("SELECT pg_size_pretty(pg_database_size(current_database()))").fetchone()
    return str(row[0]) if row else ""


def _windows(dsn: str, pipeline: str, since: float = 0) -> tuple[int | None, int | None]:
    with psycopg.connect(dsn) as conn:
        row = conn.execute(
            "SELECT count(*), coalesce(sum(keys), 0)::bigint FROM pgddl.windows"
            " WHERE pipeline = %s AND taken_at >= to_timestamp(%s)",
            [pipeline, since],
        ).fetchone()
    return row or (None, None)


def _verdict(outcome: DagOutcome) -> str:
    what = f"{outcome.rows:,} rows of {outcome.tables} table{'s' if outcome.tables > 1 else ''}"
    if not outcome.differences:
        return f"{what}: none differs, and neither do sequences and structure"
    return "\n".join([f"{what}: {outcome.rows_differing} differ", *outcome.differences[:20]])


def _report(screen: Screen, outcomes: Sequence[DagOutcome], writers: Writers) -> None:
    table = Table(title="What came of it", title_justify="left", show_edge=False, pad_edge=False, title_style="bold")
    table.add_column("")
    for outcome in outcomes:
        table.add_column(outcome.title, justify="right")

    def line(name: str, values: Sequence[object], style: str = "") -> None:
        cells = ("–" if value is None else f"{value:,}" if isinstance(value, int) else str(value) for value in values)
        table.add_row(name, *cells, style=style)

    line("tables", [o.tables for o in outcomes])
    line("rows", [o.rows for o in outcomes])
    bad = any(o.rows_differing for o in outcomes)
    line("rows that differ", [o.rows_differing for o in outcomes], "bold red" if bad else "bold green")
    others = [len(o.differences) if not o.rows_differing else None for o in outcomes]
    line("other differences", others, "red" if any(others) else "")
    line("windows", [o.windows for o in outcomes])
    line("changed rows caught up with", [o.window_keys for o in outcomes])
    line("transactions of the writers meanwhile", [o.writes for o in outcomes])
    line("changes of the schema meanwhile", [o.changes for o in outcomes])
    line("longest write stall at the swap, ms", [o.stall_ms and round(o.stall_ms) for o in outcomes], "bold")
    line("seconds", [round(o.seconds) for o in outcomes])
    screen.console.print()
    screen.console.print(table)
    notes = writers.notes
    again = ", ".join(f"{count} {kind}" for kind, count in notes.retried.items()) or "none"
    screen.console.print(
        f"\nWriters: {notes.committed.total():,} transactions of {len(notes.committed)} kinds, tried again: {again}, "
        f"errors that no application expects: {len(notes.failures)}",
        soft_wrap=True,
    )
    for failure in notes.failures[:10]:
        screen.console.print(f"  [red]{escape(failure)}[/]")
    minutes, seconds = divmod(int(screen.seconds), 60)
    screen.console.print(f"The whole demo took {minutes}:{seconds:02}.")
    folder = dags_folder()
    screen.console.print("\n[bold]What to try next[/]")
    for what, why in (
        (str(folder), "the DAGs that ran just now, with their pipeline files"),
        ("pgddl check -p pipeline.yaml", "what would keep a database of yours from moving, with the SQL to fix it"),
        ("python -m airflow_provider_pgddl.demo.run --keep", "this demo, with the servers left up to look around"),
    ):
        screen.console.print(f"  {what}\n      {why}", soft_wrap=True)


def _stay(screen: Screen, source: str, target: str) -> None:
    screen.title("The servers stay up until Ctrl-C")
    for name, dsn in (("Postgres 16", source), ("Postgres 18", target)):
        parts = conninfo_to_dict(dsn)
        screen.console.print(
            f"  {name}: PGPASSWORD={parts['password']} psql -h {parts['host']} -p {parts['port']} -U {parts['user']}"
            f" {parts['dbname']}",
            soft_wrap=True,
            markup=False,
        )
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
