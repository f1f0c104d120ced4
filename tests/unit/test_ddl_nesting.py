"""What ran inside of a command is put behind what the command made; all else stays where it was recorded."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.nested_commands import in_order
from tests.unit.hand_made import event, thing


def command(tag: str, oid: int, kind: str = "table", *, nested: bool = True, xid: str = "800") -> CapturedEvent:
    classid = {"type": "pg_type", "function": "pg_proc"}.get(kind, "pg_class")
    made = [thing(tag, kind, oid, "app", f"o{oid}", classid=classid)]
    return event(tag, f"{tag} o{oid}", made, nested=nested, xid=xid, id=f"{xid}.{tag}.{oid}", names={"o1": "app"})


GRANT = event("GRANT", "grant select on o1 to public", [], nested=True, names={"o1": "app"})
INDEX = event("CREATE INDEX", "create index", [thing("CREATE INDEX", "index", 9, "app", "i", table=1)], nested=True)
MADE, ALTERED = command("CREATE TABLE", 1, nested=False), command("ALTER TABLE", 1)
OTHER = command("ALTER TABLE", 2)
SHELL, INPUT = command("CREATE TYPE", 5, "type"), command("CREATE FUNCTION", 6, "function")

ORDERS = {
    "an alteration within": ([ALTERED, MADE], [MADE, ALTERED]),
    "all that ran within": ([OTHER, ALTERED, INDEX, MADE], [OTHER, MADE, ALTERED, INDEX]),
    "a grant, by the name": ([GRANT, MADE], [MADE, GRANT]),
    "what is about others": ([OTHER, MADE], [OTHER, MADE]),
    "behind what made it": ([MADE, ALTERED, INDEX, OTHER], [MADE, ALTERED, INDEX, OTHER]),
    "of another transaction": (
        [command("ALTER TABLE", 1, xid="799"), MADE], [command("ALTER TABLE", 1, xid="799"), MADE],
    ),
    "a client's own": (
        [command("ALTER TABLE", 1, nested=False), MADE], [command("ALTER TABLE", 1, nested=False), MADE],
    ),
    "a shell type and its functions": ([SHELL, INPUT, SHELL], [SHELL, INPUT, SHELL]),
}  # fmt: skip


@pytest.mark.parametrize(("recorded", "ordered"), ORDERS.values(), ids=ORDERS.keys())
def test_commands_are_put_in_order(recorded: list[CapturedEvent], ordered: list[CapturedEvent]) -> None:
    found = in_order([{**each} for each in recorded])  # type: ignore[typeddict-item]
    assert [each["statement"] for each in found] == [each["statement"] for each in ordered]
    assert all(each.get("within") in (None, MADE["id"]) for each in found)
