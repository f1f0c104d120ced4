"""Which captured commands are done again on the target, and by which statements. Pure.

Every event gets one Decision. Where a statement could act on the wrong object, or a table could lose its rows without a
word, the verdict is `unhandled`, with its reason:

- SET SCHEMA, or ALTER SCHEMA RENAME, across the border of the scope, both ways: a table that leaves it would go on to
  be filled on the target without its DDL, one that comes in has rows there that nobody copied.
- In place, what takes the table being rewritten away from its name: RENAME, SET SCHEMA, DROP.
- A parent or partition that is out of scope.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import replace

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, TableMeta
from airflow_provider_pgddl.engine.ddl.client_string import Statement, match, read_string
from airflow_provider_pgddl.engine.ddl.decision import WITHIN_REBUILT, Decision
from airflow_provider_pgddl.engine.ddl.event_objects import Target, advance, main_targets
from airflow_provider_pgddl.engine.ddl.grants import map_roles
from airflow_provider_pgddl.engine.ddl.judge import Judge, Texts
from airflow_provider_pgddl.engine.ddl.quoting import for_parser
from airflow_provider_pgddl.engine.ddl.rebuild import shown_by_metadata
from airflow_provider_pgddl.engine.ddl.rules import Rules

__all__ = ["Decision", "Rules", "decide", "map_roles"]


def decide(events: Sequence[CapturedEvent], rules: Rules, versions: MutableMapping[int, TableMeta]) -> list[Decision]:
    """One decision per event, in order. `versions` are the tables before the first event, and after the last behind it.

    Events of one string belong into one call: its statements are told apart by all of them.
    """
    tables = set(rules.tables)
    own = _own_texts(events, dict(versions), rules.major)
    decisions: list[Decision] = []
    rebuilt = set[str]()
    for event, texts in zip(events, own, strict=True):
        judge = Judge(event, rules, versions, tables, *texts)
        decision = judge.decision()
        if event.get("within") in rebuilt and decision.verdict == "apply" and shown_by_metadata(decision.statements):
            decision = replace(decision, verdict="skip", rule=WITHIN_REBUILT, statements=())
        if decision.rebuilt:
            rebuilt.add(event["id"])
        decisions.append(decision)
        judge.advance()
    return decisions


def _own_texts(
    events: Sequence[CapturedEvent], versions: MutableMapping[int, TableMeta], major: int
) -> list[tuple[Texts, list[Target]]]:
    targets = []
    strings: dict[str, tuple[Statement, ...]] = {}
    batches: dict[tuple[str, str], list[int]] = {}
    for number, event in enumerate(events):
        targets.append(main_targets(event, versions))
        advance(event, versions)
        text = event["statement"]
        if text not in strings:
            strings[text] = read_string(for_parser(text, major))
        if not event["nested"]:
            batches.setdefault((event["batch"], text), []).append(number)
    found: dict[int, Statement | str] = {}
    for (_, text), numbers in batches.items():
        some = [events[number] for number in numbers]
        found.update(zip(numbers, match(strings[text], some, [targets[n] for n in numbers]), strict=True))
    own = []
    for number, event in enumerate(events):
        statement = found[number] if number in found else _inner(event, targets[number], major)
        own.append((Texts(strings[event["statement"]], statement), targets[number]))
    return own


def _inner(event: CapturedEvent, targets: Sequence[Target], major: int) -> Statement | str:
    """The text of a command within a function, where the server's context told it."""
    if event["inner"] is None:
        return f"the text of this {event['tag']} within a function is not known"
    # an EXECUTE can have many, whose other events have the same text: this one is told where only one can be it
    (found,) = match(read_string(for_parser(event["inner"], major)), [event], [targets])
    return found.replace("client's string", "text within the function") if isinstance(found, str) else found
