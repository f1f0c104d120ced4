"""Lines of progress are about the work, and never end it, nor tell anybody of an error of their own."""

from __future__ import annotations

import threading

import psycopg
import pytest

from airflow_provider_pgddl.engine import progress


def test_a_line_whose_session_was_ended_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0.01)
    asked, again = list[float](), threading.Event()

    def line(seconds: float) -> str:
        asked.append(seconds)
        if len(asked) == 1:
            raise psycopg.errors.AdminShutdown("terminating connection due to administrator command")
        if len(asked) > 2:
            again.set()
        return "half of it"

    with progress.reporting("backfill", line):
        assert again.wait(10)
    told = capsys.readouterr()
    assert told.out.startswith("pgddl backfill: half of it\n")
    assert not told.err


@pytest.mark.parametrize(
    ("value", "told"),
    [(0, "0"), (999.4, "999"), (999.6, "1k"), (12_340, "12.3k"), (999_400, "999k"), (999_600, "1M"), (1e9, "1G"),
     (999.6e9, "1T"), (5e15, "5P")],
)  # fmt: skip
def test_an_amount_has_three_digits_and_a_unit(value: float, told: str) -> None:
    assert progress.amount(value) == told


def test_what_stands_behind_a_line_break_is_no_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Names may have them, and what reads our lines goes by how they begin."""
    progress.say("backfill", "shop.a\rpgddl backfill: b\r\npgddl backfill: done is blocked\nby c")
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "pgddl backfill: shop.a" and all(line.startswith("  ") for line in others) and len(others) == 3
