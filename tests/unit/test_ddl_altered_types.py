"""Whether rows that were copied meanwhile can say something else than the source's."""

from __future__ import annotations

from typing import Any, cast

import pytest

from airflow_provider_pgddl.engine.ddl.altered_types import changes_values_as_text, reuses_a_text
from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent

MOOD, OTHER = 70, 80


def altered(text: str | None, objid: int = MOOD, *, nested: bool = False, tag: str = "ALTER TYPE") -> CapturedEvent:
    event: dict[str, Any] = {
        "tag": tag, "statement": "SELECT f()" if nested else text, "nested": nested, "inner": text if nested else None,
        "objects": [{"objid": objid}],
    }  # fmt: skip
    return cast(CapturedEvent, event)


@pytest.mark.parametrize(
    ("text", "earlier", "labels", "reused"),
    [
        ("ALTER TYPE mood RENAME VALUE 'good' TO 'fine'", [], ["good", "bad"], False),
        ("ALTER TYPE mood RENAME VALUE 'bad' TO 'good'", [], ["good", "bad"], True),
        # the target has followed the first of both already, and rows may have come between
        ("ALTER TYPE mood RENAME VALUE 'bad' TO 'good'", ["ALTER TYPE mood RENAME VALUE 'good' TO 'fine'"],
         ["fine", "bad"], True),
        ("ALTER TYPE mood RENAME VALUE 'bad' TO 'sad'", ["ALTER TYPE mood RENAME VALUE 'good' TO 'fine'"],
         ["fine", "bad"], False),
        ("ALTER TYPE mood RENAME VALUE 'a' TO 'x'; ALTER TYPE mood RENAME VALUE 'b' TO 'a'", [], ["a", "b"], True),
        ("alter type mood rename value $$it's$$ to 'b\"c'", [], ["b\"c"], True),
        ("ALTER TYPE mood ADD VALUE 'good'", [], ["good"], False),
        ("ALTER TYPE mood RENAME TO good", [], ["good"], False),
        ("ALTER TYPE pair ADD ATTRIBUTE c int", [], [], False),
        ("ALTER TYPE pair DROP ATTRIBUTE a, ADD ATTRIBUTE c int", [], [], True),
        ("ALTER TYPE mood OWNER TO somebody", [], ["good"], False),
    ],
)  # fmt: skip
def test_a_text_that_meant_another_value(text: str, earlier: list[str], labels: list[str], reused: bool) -> None:
    history = [altered(one) for one in earlier]
    assert reuses_a_text(altered(text), history, labels) is reused
    assert reuses_a_text(altered(text, nested=True), history, labels) is reused


def test_other_types_do_not_count() -> None:
    earlier = [altered("ALTER TYPE other RENAME VALUE 'good' TO 'fine'", OTHER)]
    assert not reuses_a_text(altered("ALTER TYPE mood RENAME VALUE 'bad' TO 'good'"), earlier, ["bad"])


def test_where_only_a_function_knows_the_text_it_may_be_any() -> None:
    unknown = altered(None, nested=True)
    assert changes_values_as_text(unknown)
    assert reuses_a_text(unknown, [], [])
    assert not reuses_a_text(altered(None, nested=True, tag="CREATE TYPE"), [], [])
