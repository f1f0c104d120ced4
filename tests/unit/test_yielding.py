"""How patient an attempt is that gives way, and how it goes about the next."""

from __future__ import annotations

import time

import pytest

from airflow_provider_pgddl.engine.errors import Busy, GaveWay
from airflow_provider_pgddl.engine.server import giving_way
from airflow_provider_pgddl.engine.server.lock_timeout import process_shown


def test_c36_less_is_tried_each_time_and_what_is_usual_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = list[float]()
    monkeypatch.setattr(time, "sleep", slept.append)
    patience = giving_way.Patience(600, let_wait=0.05)
    efforts = []
    for _ in range(7):
        efforts.append(patience.effort)
        patience.wait(GaveWay("gave way"))
    assert [e.share for e in efforts] == [1, 2, 4, 8, 16, 32, 32]
    assert [e.wait for e in efforts] == [0, 0, 0, 0, 0, 0.05, 0.1], "a little takes as long: others wait for longer"
    for _ in range(3):  # who does not get a lock would not get it with less to do, or more time
        patience.wait(Busy("is locked"))
    assert patience.effort == giving_way.Effort(0.2, 32)
    for _ in range(5):
        patience.wait(GaveWay("gave way"))
    assert patience.effort == giving_way.Effort(giving_way.LONGEST, 32)
    patience.succeeded()
    assert patience.effort == giving_way.Effort(0.0, 16)
    patience.wait(Busy("is locked"))
    assert patience.effort == giving_way.Effort(1.0, 16)  # at once again
    patience.succeeded()
    for share in (8, 4, 2, 1):  # somebody waits each time that we do not insist: more is done all the same
        assert patience.effort == giving_way.Effort(0.0, share)
        patience.wait(GaveWay("gave way"))
        assert patience.effort == giving_way.Effort(1.0, share)
        patience.succeeded()
    for _ in range(2):
        patience.succeeded()
    assert patience.effort == giving_way.POLITE
    for _ in range(6):
        patience.wait(GaveWay("gave way"))
    assert patience.effort == giving_way.Effort(0.1, 32), "it begins anew where it was alone"


def test_c36_only_waiting_counts_as_giving_way(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], list[float]()
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    patience = giving_way.Patience(10)
    with pytest.raises(GaveWay, match="could not get at the table for 10 s: gave way"):
        while True:
            now[0] += 100  # an attempt
            patience.wait(GaveWay("gave way"))
    assert 10 < sum(slept) < 20
    patience, tries = giving_way.Patience(10), 0
    with pytest.raises(GaveWay):
        while tries < 10:
            patience.wait(GaveWay("not to be had"), 3)
            tries += 1
    assert 2 <= tries <= 4


def test_what_it_says_counts_and_names_the_last_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines = [0.0], list[str]()
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    patience = giving_way.Patience(600, lines.append)
    for n in range(1, 26):
        now[0] += 1
        patience.wait(GaveWay(f"reason {n}"))
    assert lines == ["gave way 10 times in 10 s: reason 10", "gave way 20 times in 20 s: reason 20"]
    patience.succeeded()
    assert patience.so_far == "this has been under way for 0 s"


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("TRUNCATE  shop.orders;\nINSERT INTO shop.orders VALUES (1, 'x')", "process 7 (TRUNCATE shop.orders)"),
        ("INSERT INTO cards VALUES (4111, 'x')", "process 7 (INSERT INTO cards VALUES)"),
        ("UPDATE cards SET number = 4111 WHERE id = 5", "process 7 (UPDATE cards SET number = ? WHERE id = ?)"),
        ("ALTER ROLE app PASSWORD 'secret'", "process 7 (ALTER ROLE app PASSWORD)"),
        ("SELECT $body$secret$body$", "process 7 (SELECT)"),
        ("LOCK TABLE " + "t" * 200, "process 7 (LOCK TABLE " + "t" * 89 + ")"),
        ("", "process 7"),
        (None, "process 7"),
    ],
)
def test_of_a_client_s_statement_only_what_has_no_values_is_shown(query: str | None, line: str) -> None:
    assert process_shown(7, query) == line
