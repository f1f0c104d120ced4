"""What a benchmark found: measures, each a ratio of ours to a peer's in the same run, and what was left out."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from airflow_provider_pgddl.demo.clusters import embedded_binaries

RESULTS = Path(__file__).parent / "results"
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
PEERS = Path(os.environ.get("PEERS", "/nowhere"), "bin")  # what was built from its source
PGCOPYDB, PG_REPACK = (
    next(path for path in (PEERS / debian.name, debian) if path.exists() or path is debian)
    for debian in (Path("/usr/bin/pgcopydb"), DEBIAN_15 / "pg_repack")
)


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of the table. `goal` is the largest ratio of ours to the peer's that is good enough, or the smallest
    where `at_least`; None where nothing was promised. Without a peer `peer` is a limit in the same unit."""

    measure: str
    ours: float
    peer: float
    peer_name: str
    goal: float | None = None
    at_least: bool = False
    unit: str = "s"

    @property
    def ratio(self) -> float:
        return self.ours / self.peer if self.peer else float("inf")

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.ratio >= self.goal if self.at_least else self.ratio <= self.goal

    def to_json(self) -> dict[str, Any]:
        return {
            "measure": self.measure, "ours": round(self.ours, 4), "peer": round(self.peer, 4),
            "peer_name": self.peer_name, "ratio": round(self.ratio, 4), "goal": self.goal, "met": self.met,
            "at_least": self.at_least, "unit": self.unit,
        }  # fmt: skip


@dataclass(slots=True)
class Report:
    """What one benchmark found. `notes` are sentences: peers that are missing, and where time goes."""

    measures: list[Measure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def alternate(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of what each way returns (seconds), all of them in turn in every round: a machine that is busy for a
    while is busy for all."""
    took: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            took.setdefault(name, []).append(way())
    return {name: statistics.median(seconds) for name, seconds in took.items()}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), "")
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "cores": os.cpu_count(),
        "processor": model or platform.processor(),
        "memory_gib": round(memory / 1024**2, 1),
        "system": platform.system(),
        **versions(),
    }


def versions() -> dict[str, str]:
    """Of everything that takes part and is there."""
    found = {"Python": platform.python_version()}
    found |= {name: metadata.version(name) for name in ("psycopg", "pyspark", "apache-airflow")}
    programs = {f"Postgres {n}, embedded": embedded_binaries(n) / "postgres" for n in (16, 18)}
    programs |= {"Postgres 15, Debian": DEBIAN_15 / "postgres", "pg_repack": PG_REPACK, "pgcopydb": PGCOPYDB}
    return found | {name: version(program) for name, program in programs.items() if program.exists()}


def version(program: Path) -> str:
    """What it says of itself, the number alone."""
    said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    number = re.search(r"\d+(\.\d+)+", said.stdout + said.stderr)
    return number[0] if number else ""


def _lines(path: str) -> list[str]:
    return Path(path).read_text(errors="replace").splitlines() if Path(path).exists() else []


def markdown(measures: Sequence[Mapping[str, Any]], notes: Iterable[str], on: Mapping[str, Any]) -> str:
    lines = ["| | ours | peer | | ratio | goal | |", "|---|---:|---:|---|---:|---:|---|"]
    for m in measures:
        goal = "" if m["goal"] is None else f"{'≥' if m['at_least'] else '≤'} {m['goal']:.3g}"
        met = {None: "", True: "met", False: "**missed**"}[m["met"]]
        lines.append(
            f"| {m['measure']} | {m['ours']:,.4g} {m['unit']} | {m['peer']:,.4g} {m['unit']} | {m['peer_name']} "
            f"| {m['ratio']:.2f} | {goal} | {met} |"
        )
    lines += ["", *(f"- {note}" for note in notes)]
    lines += ["", "Measured on " + ", ".join(f"{key} {value}" for key, value in on.items()) + "."]
    return "\n".join(lines) + "\n"


def record(found: Mapping[str, Report], folder: Path = RESULTS) -> Path:
    """Writes latest.json and latest.md, and the notes of the latter into notes.json; what other benchmarks found the
    last time stays in all of them."""
    folder.mkdir(exist_ok=True)
    path, before = folder / "latest.json", list[dict[str, Any]]()
    if path.exists():
        before = [m for m in json.loads(path.read_text()) if m["benchmark"] not in found]
    on = machine()
    now = [{"benchmark": name, **m.to_json(), "machine": on} for name, report in found.items() for m in report.measures]
    measures = sorted([*before, *now], key=lambda m: m["benchmark"])
    path.write_text(json.dumps(measures, indent=1, ensure_ascii=False) + "\n")
    kept = folder / "notes.json"
    notes = json.loads(kept.read_text()) if kept.exists() else {}
    notes |= {name: report.notes for name, report in found.items()}
    kept.write_text(json.dumps(notes, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    path.with_suffix(".md").write_text(markdown(measures, [n for name in sorted(notes) for n in notes[name]], on))
    return path
