"""Draws the pictures of the documentation: `python docs/pictures.py` writes them into docs/pictures.

`demo.svg` shows a real run, which `demo.json` recorded (`python -m airflow_provider_pgddl.demo.run --record FILE`). The
others are drawings. Nothing but the standard library; the same input makes the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "pictures"
INK, FAINT, LINE, PAPER = "#1f2937", "#6b7280", "#d1d5db", "#ffffff"
BLUE, GREEN, AMBER, RED, VIOLET = "#2563eb", "#059669", "#d97706", "#dc2626", "#7c3aed"
PALE = {BLUE: "#dbeafe", GREEN: "#d1fae5", AMBER: "#fef3c7", RED: "#fee2e2", VIOLET: "#ede9fe", FAINT: "#f3f4f6"}


class Drawing:
    """An SVG of so many pixels, white, so that it can be read on any page."""

    def __init__(self, width: int, height: int, about: str) -> None:
        self._size, self._about, self._parts = (width, height), about, list[str]()

    def rect(self, x: float, y: float, w: float, h: float, fill: str, line: str = "none", round_: float = 4) -> None:
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{round_}" fill="{fill}" '
            f'stroke="{line}"/>'
        )

    def text(
        self, x: float, y: float, text: str, colour: str = INK, size: int = 12, at: str = "start", bold: bool = False
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" text-anchor="{at}"{weight}>'
            f"{escape(text)}</text>"
        )

    def line(self, points: Sequence[tuple[float, float]], colour: str = FAINT, *, dash: str = "", head: bool = False,
             width: float = 1.2) -> None:  # fmt: skip
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        more = (f' stroke-dasharray="{dash}"' if dash else "") + (' marker-end="url(#head)"' if head else "")
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{more}/>')

    def area(self, points: Sequence[tuple[float, float]], fill: str) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polygon points="{path}" fill="{fill}"/>')

    def box(self, x: float, y: float, w: float, text: str, colour: str = FAINT, h: float = 30) -> None:
        self.rect(x, y, w, h, PALE[colour], colour)
        lines = text.split("\n")
        for number, line in enumerate(lines):
            self.text(x + w / 2, y + h / 2 + 4 + 14 * (number - (len(lines) - 1) / 2), line, at="middle")

    def svg(self) -> str:
        width, height = self._size
        fonts = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
            f' role="img" font-family="{fonts}">',
            f"<title>{escape(self._about)}</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"',
            f' orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{FAINT}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>',
            *self._parts,
            "</svg>",
        ]) + "\n"  # fmt: skip


def window() -> str:
    """One window of replay: what its snapshot shows, what it takes, and what it leaves for the next."""
    d = Drawing(860, 400, "A window: keys that its snapshot shows are taken over, all others wait for the next")
    left, right, t = 130, 830, 400
    d.text(20, 28, "One window, from left to right", size=14, bold=True)
    for y, name in ((75, "writer A"), (125, "writer B"), (190, "change log"), (255, "pending keys"), (320, "copy")):
        d.text(20, y + 5, name, FAINT)
        d.line([(left, y + 20), (right, y + 20)], LINE)
    d.rect(170, 62, 150, 26, PALE[GREEN], GREEN)
    d.text(245, 80, "UPDATE key 7 · COMMIT", at="middle", size=11)
    d.rect(300, 112, 240, 26, PALE[AMBER], AMBER)
    d.text(420, 130, "UPDATE key 9 · · · COMMIT", at="middle", size=11)
    d.line([(300, 88), (300, 172)], GREEN, head=True)
    d.rect(262, 177, 56, 26, PALE[GREEN], GREEN)
    d.text(290, 195, "key 7", at="middle")
    d.line([(520, 138), (520, 172)], AMBER, head=True)
    d.rect(492, 177, 56, 26, PALE[AMBER], AMBER)
    d.text(520, 195, "key 9", at="middle")
    d.line([(t, 48), (t, 345)], BLUE, dash="5 4", width=1.6)
    d.text(t, 42, "② snapshot T", BLUE, at="middle", bold=True)
    d.line([(350, 48), (350, 345)], LINE, dash="2 3")
    d.text(344, 360, "① lock", FAINT, at="middle", size=11)
    d.line([(318, 190), (455, 190), (455, 238)], GREEN, head=True)
    d.text(330, 218, "T shows it", GREEN, size=11)
    d.rect(427, 242, 56, 26, PALE[GREEN], GREEN)
    d.text(455, 260, "key 7", at="middle")
    d.text(455, 360, "③ ingest", FAINT, at="middle", size=11)
    d.line([(470, 268), (470, 303)], RED, head=True)
    d.rect(436, 307, 68, 26, PALE[RED], RED)
    d.text(470, 325, "row 7 out", at="middle", size=11)
    d.line([(483, 255), (590, 255), (590, 303)], GREEN, head=True)
    d.rect(545, 307, 90, 26, PALE[GREEN], GREEN)
    d.text(590, 325, "row 7 as of T", at="middle", size=11)
    d.text(590, 360, "④ fill", FAINT, at="middle", size=11)
    d.line([(665, 242), (665, 340)], INK, width=2)
    d.text(665, 360, "⑤ commit", INK, at="middle", size=11, bold=True)
    d.line([(720, 320), (720, 208)], FAINT, head=True)
    d.text(728, 230, "key 7 leaves", size=11)
    d.text(728, 244, "the log", size=11)
    d.text(745, 360, "⑥ acknowledge", FAINT, at="middle", size=11)
    d.line([(548, 190), (820, 190)], AMBER, dash="4 3", head=True)
    d.text(828, 168, "key 9: T does not show it, the next window takes it", AMBER, at="end", size=11)
    d.text(20, 388, "Killed before ⑤: nothing of the window is there, the log is as it was. "
           "Killed between ⑤ and ⑥: the next window takes key 7 once more.", FAINT, 11)  # fmt: skip
    return d.svg()


def ddl() -> str:
    """From a client's command to the target, and where it may wait for a person."""
    d = Drawing(860, 330, "What becomes of a captured DDL event")
    d.box(20, 110, 100, "a client's\nDDL", h=44)
    d.box(160, 110, 100, "queue\nor WAL", h=44)
    d.box(300, 110, 90, "scope?", BLUE, h=44)
    d.box(450, 30, 150, "awaiting_approval", AMBER)
    d.box(450, 117, 150, "pending", BLUE)
    d.box(450, 205, 150, "unhandled", AMBER)
    d.box(300, 275, 90, "skipped")
    d.box(650, 117, 80, "applying", BLUE)
    d.box(760, 117, 80, "applied", GREEN)
    d.box(650, 205, 80, "failed", AMBER)
    d.box(650, 275, 80, "resolved", GREEN)
    for points in (
        [(120, 132), (158, 132)], [(260, 132), (298, 132)], [(390, 132), (448, 132)],
        [(365, 110), (365, 45), (448, 45)], [(365, 154), (365, 220), (448, 220)], [(330, 154), (330, 273)],
        [(525, 60), (525, 115)], [(600, 132), (648, 132)], [(730, 132), (758, 132)],
        [(705, 147), (705, 203)], [(670, 205), (670, 149)], [(690, 235), (690, 273)],
        [(600, 227), (625, 227), (625, 285), (648, 285)], [(500, 235), (500, 290), (392, 290)],
    ):  # fmt: skip
        d.line(points, head=True)
    d.text(140, 100, "event triggers", FAINT, 11, "middle")
    d.text(322, 262, "out", FAINT, 11, "end")
    d.text(372, 100, "in", FAINT, 11)
    d.text(372, 200, "nobody can tell", FAINT, 11)
    d.text(532, 92, "pgddl ddl approve", FAINT, 11)
    d.text(712, 180, "the target refuses", FAINT, 11)
    d.text(662, 180, "retry", FAINT, 11, "end")
    d.text(697, 262, "done by hand", FAINT, 11)
    d.text(404, 306, "not wanted: pgddl ddl skip", FAINT, 11)
    return d.svg()


def gate() -> str:
    """How two catalogs become a verdict."""
    d = Drawing(860, 190, "How the schema gate comes to a verdict")
    d.box(20, 30, 130, "source's catalog")
    d.box(20, 120, 130, "target's catalog")
    d.box(200, 75, 90, "differ?", BLUE)
    d.box(340, 75, 90, "policy", BLUE)
    d.box(545, 20, 100, "compatible", GREEN)
    d.box(545, 75, 100, "warning", AMBER)
    d.box(545, 130, 100, "mismatch", RED)
    d.box(700, 122, 150, "a person: fix, flag\nor pgddl schema sync", h=46)
    for points in (
        [(150, 45), (175, 45), (175, 85), (198, 85)], [(150, 135), (175, 135), (175, 95), (198, 95)],
        [(245, 75), (245, 29), (543, 29)], [(290, 90), (338, 90)], [(430, 90), (543, 90)],
        [(462, 90), (462, 42), (543, 42)], [(462, 90), (462, 145), (543, 145)], [(645, 145), (698, 145)],
        [(775, 168), (775, 180), (245, 180), (245, 107)],
    ):  # fmt: skip
        d.line(points, head=True)
    d.text(252, 60, "no", FAINT, 11)
    d.text(304, 84, "yes", FAINT, 11)
    d.text(470, 84, "let pass", FAINT, 11)
    d.text(470, 58, "harmless", FAINT, 11)
    d.text(470, 138, "data at risk", FAINT, 11)
    d.text(672, 138, "stops", FAINT, 11, "middle")
    return d.svg()


STAGES = ("setup", "snapshot", "backfill", "schema_sync", "replay", "verify", "swap", "cleanup")


def demo(run: dict[str, Any]) -> str:
    """What a run of the demo did when: stages, the copy of each table, the lag, the writers and their longest waits."""
    writers = run["writers"]
    step, ended, longest = writers["step"], writers["ended"], writers["longest_ms"]
    end = step * len(ended)
    left, right = 150, 930
    d = Drawing(960, 530, "A run of the demo: a migration and a rewrite while writers and a developer work")
    moved, rewritten = run["stages"][0][0], run["stages"][-1][0]
    to_and_fro = ", back and there again" if len(run["cut_overs"]) > 1 else ""
    colours = dict(zip(dict.fromkeys(pipeline for pipeline, *_ in run["stages"]), (BLUE, GREEN, VIOLET), strict=False))

    def x(seconds: float) -> float:
        return left + (right - left) * seconds / end

    def lane(y: float, title: str) -> None:
        d.text(20, y, title, INK, 12, bold=True)

    what = f"pgddl demo: a shop moves from Postgres 16 to 18{to_and_fro}, then its key becomes bigint"
    d.text(20, 28, what, size=15, bold=True)
    d.text(20, 47, f"A real run on two busy cores: {run['committed']:,} transactions meanwhile, no row differs", FAINT)
    every = 20 if end < 240 else 60
    for second in range(0, int(end) + 1, every):
        d.line([(x(second), 62), (x(second), 500)], "#eef0f3")
        d.text(x(second), 516, f"{second // 60}:{second % 60:02}", FAINT, 11, "middle")

    for pipeline, first, last in _passages(run):
        d.text((x(first) + x(last)) / 2, 76, pipeline, colours[pipeline], 12, "middle", bold=True)
    for number, stage in enumerate(STAGES):
        y = 84 + 15 * number
        d.text(left - 10, y + 10, stage, FAINT, 11, "end")
        for pipeline, name, start, stop in run["stages"]:
            if name == stage:
                d.rect(x(start), y, max(x(stop) - x(start), 2), 12, colours[pipeline], round_=2)

    lane(222, "rows copied")
    (begun,) = [start for *move, start, _ in run["stages"] if move == [moved, "backfill"]]
    chunks: dict[str, list[tuple[float, int]]] = {}
    for pipeline, table, at, size in run["chunks"]:
        if pipeline == moved:
            chunks.setdefault(table, []).append((at, size))
    largest = sorted(chunks, key=lambda table: -sum(size for _, size in chunks[table]))[:6]
    for number, table in enumerate(largest):
        y = 230 + 15 * number
        d.text(left - 10, y + 10, table.removeprefix("public."), FAINT, 11, "end")
        last = max(at for at, _ in chunks[table])
        d.rect(x(begun), y, x(last) - x(begun), 12, PALE[GREEN], round_=2)
        for at, _ in chunks[table]:
            d.rect(x(at) - 1.5, y, 3, 12, GREEN, round_=1)
        total = sum(size for _, size in chunks[table]) / 2**20
        count = len(chunks[table])
        d.text(x(last) + 6, y + 10, f"{total:.0f} MB in {count} chunk{'s' if count > 1 else ''}", FAINT, 10)

    lane(345, "lag")
    for pipeline, first, last in _passages(run):
        colour = colours[pipeline]
        windows = [
            (taken, done) for name, taken, done, _ in run["windows"] if name == pipeline and first <= taken <= last
        ]
        if len(windows) < 2:
            continue
        most = max(later[1] - this[0] for this, later in pairwise(windows))
        points: list[tuple[float, float]] = []
        for (taken, done), (_, until) in pairwise(windows):
            points += [(x(done), 390 - 40 * (done - taken) / most), (x(until), 390 - 40 * (until - taken) / most)]
        d.area([(points[0][0], 390), *points, (points[-1][0], 390)], PALE[colour])
        d.line(points, colour)
        d.text(points[-1][0], 345, f"≤ {most:.0f} s", colour, 11, "end")
    d.text(left - 10, 390, "by windows", FAINT, 11, "end")

    base, top = 500.0, 425.0
    most = max(ended)
    lane(415, "writers, longest wait")
    d.text(left - 10, top + 8, f"{most / step:.0f} a second", FAINT, 11, "end")
    curve = [(x(step * (i + 0.5)), base - (base - top) * count / most) for i, count in enumerate(ended)]
    d.area([(x(0), base), *curve, (x(end), base)], PALE[BLUE])
    d.line(curve, BLUE)
    for label, moment in _stalls(run, rewritten):
        i = min(int(moment / step), len(longest) - 1)
        worst = max(longest[max(i - 2, 0) : i + 4])
        d.line([(x(moment), 402), (x(moment), base)], RED, dash="4 3")
        d.text(x(moment) - 5, 412, f"{label}: {worst:,} ms", RED, 11, "end", bold=True)
    for at, label, _ in run["lines"]:
        if label == "developer":
            d.area([(x(at), base - 2), (x(at) - 4, base + 6), (x(at) + 4, base + 6)], AMBER)
    d.text(left - 10, base + 4, "▲ DDL", AMBER, 11, "end")
    return d.svg()


def _passages(run: dict[str, Any]) -> list[tuple[str, float, float]]:
    """(pipeline, from, to), from one change of the pipeline at work to the next; cleanups that end are none."""
    found: list[tuple[str, float, float]] = []
    for pipeline, stage, start, stop in run["stages"]:
        if found and found[-1][0] == pipeline:
            found[-1] = (pipeline, found[-1][1], stop)
        elif stage != "cleanup":
            found.append((pipeline, start, stop))
    return found


def _stalls(run: dict[str, Any], rewritten: str) -> list[tuple[str, float]]:
    """The moments at which writers wait."""
    (swapped,) = [stop for *move, _, stop in run["stages"] if move == [rewritten, "swap"]]
    return [*((title, at) for title, at in run["cut_overs"]), ("swap", swapped - 0.5)]


def recorded() -> str:
    return demo(json.loads((FOLDER / "demo.json").read_text(encoding="utf-8")))


PICTURES: dict[str, Callable[[], str]] = {"window": window, "ddl": ddl, "gate": gate, "demo": recorded}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
