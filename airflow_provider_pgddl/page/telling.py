"""How the page tells times, sizes and a chart."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_provider_pgddl.engine.commands.view import Minute

WIDTH, HEIGHT = 600, 80


def ago(at: datetime | None) -> str:
    """`3 min ago`"""
    return "" if at is None else f"{duration((datetime.now(UTC) - at).total_seconds())} ago"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{max(0, round(seconds / unit))} {name}"
    return f"{round(seconds / 86_400)} days"


def size(number: int) -> str:
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def count(number: int) -> str:
    return f"{number:,}"


def events(command: str) -> list[int]:
    """The DDL event that a command is about, `ddl approve 7`."""
    words = command.split()
    return [int(words[2])] if words[0] == "ddl" and len(words) > 2 and words[2].isdecimal() else []


def line(minutes: Sequence[Minute], figure: str) -> dict[str, Any] | None:
    """The points of a polyline over the last hour, those of the area below it, and its highest value; None where there
    are no two minutes."""
    if len(minutes) < 2:
        return None
    now = datetime.now(UTC)
    values = [float(getattr(minute, figure)) for minute in minutes]
    highest = max(values) or 1.0
    points = []
    for minute, value in zip(minutes, values, strict=True):
        x = WIDTH * (1 - min(3600.0, (now - minute.at).total_seconds()) / 3600)
        points.append(f"{x:.1f},{HEIGHT - (HEIGHT - 4) * value / highest:.1f}")
    first, last = (point.partition(",")[0] for point in (points[0], points[-1]))
    area = f"{first},{HEIGHT} {' '.join(points)} {last},{HEIGHT}"
    return {"points": " ".join(points), "area": area, "highest": max(values), "width": WIDTH, "height": HEIGHT}
