"""What an ALTER TYPE does to the texts that values are written as. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from postgast import PgQueryError

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent
from airflow_provider_pgddl.engine.ddl.parse import Node, kind_of, parse, split, statement_node
from airflow_provider_pgddl.engine.errors import StageFailed


def changes_values_as_text(event: CapturedEvent) -> bool:
    """Whether values of a type may be written otherwise from here on: labels of an enum or attributes of a composite
    have other names, or there are others. One more label changes none. Where only a function knows the text, it may."""
    if event["tag"] != "ALTER TYPE":
        return False
    text = _text(event)
    return text is None or re.search(r"\b(rename|attribute)\b", text, re.IGNORECASE) is not None


def reuses_a_text(event: CapturedEvent, earlier: Iterable[CapturedEvent], labels: Collection[str]) -> bool:
    """Whether a value may be written from here on as another was before: a label gets a name that its type has had,
    or a composite loses an attribute. `labels` are those of the type where it has not been altered yet, `earlier` what
    else has been done to types. Servers write values as of now, whatever snapshot reads them, so a row that is copied
    before the target's type has followed would say something else there; a new name would be refused."""
    if not changes_values_as_text(event):
        return False
    text = _text(event)
    mine = {one["objid"] for one in event["objects"]}
    had = {*labels}
    for other in (*earlier, event):
        if mine & {one["objid"] for one in other["objects"]}:
            known = _text(other)
            had |= {old for old, _ in _renamed(known)} if known is not None else set()
    if text is None or re.search(r"\bdrop\s+attribute\b", text, re.IGNORECASE):
        return True
    return any(new in had for _, new in _renamed(text))


def _text(event: CapturedEvent) -> str | None:
    """None where it is not known, or was not kept."""
    text = event["inner"] if event["nested"] else event["statement"]
    return text if text is not None and re.search(r"\balter\b.*\btype\b", text, re.IGNORECASE | re.DOTALL) else None


def _renamed(text: str) -> Iterator[tuple[str, str]]:
    """Old and new label of each RENAME VALUE in a string."""
    try:
        statements = split(text)
    except (PgQueryError, StageFailed):
        return
    for statement in statements:
        node = _read(statement)
        if node is not None and kind_of(node) == "AlterEnumStmt" and node.old_val:
            yield node.old_val, node.new_val


def _read(statement: str) -> Node | None:
    try:
        return statement_node(parse(statement))
    except StageFailed:
        return None
