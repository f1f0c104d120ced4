"""A mismatch at any moment, while an application goes on writing: in the middle of a backfill, between two stages,
during verify, and right before the swap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_provider_pgddl.engine.errors import PreflightRefused
from airflow_provider_pgddl.engine.following import row_comparison
from airflow_provider_pgddl.engine.rows import chunks
from airflow_provider_pgddl.engine.swapping import across
from tests.integration.calls import before_each
from tests.integration.lifecycle import wait_until
from tests.integration.sessions import do
from tests.integration.stories import ADDED, LOSSY, REQUIRED, MadeStory, columns, writes

CHECKED = "Target has constraint 'short' that source does not have: CHECK ((length(phase) < 1000))"
# Where a mismatch arises, what is done, and what is said then: a chunk sees its table changed, or its copy; and what
# neither shows is seen by the timer.
IN_THE_MIDDLE = {
    "source": (ADDED, ["ALTER TABLE users ADD COLUMN phone_number varchar DEFAULT 'none'"]),
    "source, left out": (ADDED, ["ALTER TABLE users ADD COLUMN phone_number varchar DEFAULT 'none'"]),
    "target": (
        REQUIRED,
        [
            "ALTER TABLE users ADD COLUMN created_by_system text NOT NULL DEFAULT ''",
            "ALTER TABLE users ALTER created_by_system DROP DEFAULT",
        ],
    ),
    "timer": (CHECKED, ["ALTER TABLE users ADD CONSTRAINT short CHECK (length(phase) < 1000)"]),
}


@pytest.mark.parametrize("where", IN_THE_MIDDLE)
def test_a_mismatch_in_the_middle_of_a_backfill_stops_its_table_there(
    story: MadeStory, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    error, statements = IN_THE_MIDDLE[where]
    on_source = where.startswith("source")
    told = story(
        {"users": "filler text NOT NULL DEFAULT repeat('x', 400)"},
        until="snapshot",
        unfollowed="statement_left_out" if where == "source, left out" else "capture_off",
        backfill={"chunk_bytes": "16kB", "workers": 1},
        schema={"validation_interval": "50ms" if where == "timer" else "1h"},
    )
    copy, copied = chunks._Worker._copy, list[str]()

    def changed_and_copied(worker: chunks._Worker, claimed: Sequence[chunks._Chunk], watch: Any) -> Any:
        copied.extend(chunk.table.plan.name for chunk in claimed)
        if copied.count("users") == 3 and told.application.phase == "before":
            (told.on_source if on_source else told.on_target)(*statements)
            if where == "timer":
                wait_until(lambda: told.history("users")[-1:] == [("mismatch", True, error)])
        return copy(worker, claimed, watch)

    monkeypatch.setattr(chunks._Worker, "_copy", changed_and_copied)
    result = told.move.run("backfill")
    assert result.exit_code == 3
    assert [(b["table"], b["reason"]) for b in result.blocked] == [("public.users", error)]
    assert copied.count("users") == 3
    assert dict(told.move.journal("SELECT table_name, state FROM pgddl.tables")) == {
        "users": "created",
        "others": "backfilled",
    }
    assert told.move.run("schema_sync").exit_code == 3
    report = told.closed(users=error, looked=where != "source, left out")["users"]
    assert error in str(told.move.refused("swap", PreflightRefused))
    assert copied.count("users") == 3
    told.fix(report)
    told.open("users", users="warning" if where == "target" else "compatible")
    assert copied.count("users") > 3
    told.move.run("verify")
    if on_source:
        # The fix lets rows go on; what applications will miss on the target is asked for before they come there.
        refusal = str(told.move.refused("swap", PreflightRefused))
        assert "DEFAULT 'none'" in refusal
        assert "make the target the same (of a table DEFAULT, NOT NULL and CHECK too)" in refusal
        do(told.move.target, "ALTER TABLE users ALTER phone_number SET DEFAULT 'none'")
    told.move.run("swap")


def test_a_mismatch_between_two_stages_is_met_by_the_next(story: MadeStory) -> None:
    """After the indexes are built, and before the first window."""
    told = story(
        {"added": "", "renamed": "name text", "retyped": "price integer", "required": "", "checked": ""},
        until="schema_sync",
        values={"renamed": "name = 'n'"},
    )
    told.on_source(
        "ALTER TABLE added ADD COLUMN phone_number varchar",
        "ALTER TABLE renamed RENAME COLUMN name TO full_name",
        "ALTER TABLE retyped ALTER price TYPE numeric(10,2)",
        then=[
            *writes("added", "phone_number = '1'"),
            *writes("renamed", "full_name = 'full'"),
            *writes("retyped", "price = 19.99"),
            *writes("required"),
            *writes("checked"),
        ],
    )
    told.on_target(
        *(statement.replace("users", "required") for statement in IN_THE_MIDDLE["target"][1]),
        *(statement.replace("users", "checked") for statement in IN_THE_MIDDLE["timer"][1]),
    )
    reports = told.closed(
        added=ADDED,
        renamed="Source has renamed column 'name' to 'full_name', target has not",
        retyped=LOSSY.replace("products", "retyped"),
        required=REQUIRED,
        checked=CHECKED,
    )
    for report in reports.values():
        told.fix(report)
    told.open(*reports, required="warning")
    for table in ("added", "renamed", "retyped", "checked"):
        assert columns(told.move.target, table) == columns(told.move.source, table)
    told.move.run_all(after="replay", until="swap")


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_mismatch_during_verify_or_right_before_the_swap_keeps_it_from_happening(
    story: MadeStory, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    told = story({"users": ""})
    move = told.move

    def statements(number: int) -> tuple[list[str], str]:
        if side == "source":
            error = f"Source has new column 'late_{number}' not in target"
            return [
                f"ALTER TABLE users ADD COLUMN late_{number} text",
                f"UPDATE users SET late_{number} = 'given' WHERE id < 200",
            ], error
        error = f"Target has new column 'late_{number}' (NOT NULL, no DEFAULT)"
        return [
            f"ALTER TABLE users ADD COLUMN late_{number} text NOT NULL DEFAULT ''",
            f"ALTER TABLE users ALTER late_{number} DROP DEFAULT",
        ], error

    def change(number: int) -> None:
        (told.on_source if side == "source" else told.on_target)(*statements(number)[0])

    with monkeypatch.context() as while_comparing:
        before_each(while_comparing, row_comparison, "one_window", lambda n: change(1) if n == 1 else None)
        result = move.run("verify")
    assert result.exit_code == 3
    assert [b["table"] for b in result.blocked] == ["public.users"]
    assert "others" in str(result.tables)
    assert statements(1)[1] in str(move.refused("swap", PreflightRefused))
    told.fix(told.closed(users=statements(1)[1])["users"])
    move.run_all(after="schema_sync", until="verify")

    change(2)
    assert statements(2)[1] in str(move.refused("swap", PreflightRefused))
    told.fix(told.closed(users=statements(2)[1])["users"])
    told.open("users", users="warning" if side == "target" else "compatible")
    move.run("verify")

    dsn = move.source if side == "source" else move.target
    with monkeypatch.context() as while_swapping:
        before_each(while_swapping, across, "refuse_unready", lambda n: do(dsn, *statements(3)[0]) if n == 1 else None)
        assert statements(3)[1] in str(move.refused("swap", PreflightRefused))
    told.fix(told.gate()["public.users"])
    move.run_all(after="schema_sync", until="swap")
    assert told.arrived("users") == {"before", "during", "after"}
    assert move.journal("SELECT cut_over_at IS NOT NULL FROM pgddl.pipelines") == [(True,)]
