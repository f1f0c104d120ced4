"""`pgddl ddl …`: what the engine answers, and how people are told. Imported by `cli` when one of these is called."""

from __future__ import annotations

import argparse
import getpass
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from airflow_provider_pgddl.engine.commands import ddl
from airflow_provider_pgddl.engine.errors import EXIT_BLOCKED, EXIT_DONE, PgddlError, UsageError
from airflow_provider_pgddl.engine.pipeline.model import Pipeline

Found = Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """`found` is what --json prints; `lines()` says it to people; `waits`: somebody has to do something; `errors` are
    what went wrong with a part of it, told in both."""

    found: Found
    lines: Callable[[], Iterable[str]]
    waits: bool = False
    errors: Sequence[PgddlError] = ()

    @property
    def exit_code(self) -> int:
        if self.errors:
            return self.errors[0].exit_code
        return EXIT_BLOCKED if self.waits else EXIT_DONE


@dataclass(frozen=True)
class Asked:
    """What a command was called with: its pipeline, both connection strings, and its arguments."""

    pipeline: Pipeline
    source: str
    target: str
    args: argparse.Namespace


def listed(asked: Asked) -> Answer:
    """Events that are not over, or those of some statuses."""
    statuses = asked.args.status or (None if asked.args.all else ddl.OPEN)
    found = ddl.listed(asked.pipeline, asked.target, statuses)
    return Answer(found, lambda: _events(found), bool(found["waiting_for_a_person"]))


def show(asked: Asked) -> Answer:
    """One event, whole."""
    found = ddl.show(asked.pipeline, asked.target, asked.args.id)
    return Answer(found, lambda: _one(found))


def approve(asked: Asked) -> Answer:
    """Some events, or all that wait for approval."""
    if bool(asked.args.ids) == asked.args.all:
        raise UsageError("which events?", todo="name them (`pgddl ddl list` shows them), or give --all")
    return _decided(ddl.approve(asked.pipeline, asked.target, asked.args.ids, who()))


def retry(asked: Asked) -> Answer:
    """Failed events again, on the target, now."""
    return _decided(ddl.retry(asked.pipeline, asked.source, asked.target, asked.args.id))


def resolve(asked: Asked) -> Answer:
    """Done by hand."""
    return _decide(asked, "resolved")


def skip(asked: Asked) -> Answer:
    """Left out."""
    return _decide(asked, "skipped")


def _decide(asked: Asked, status: Literal["resolved", "skipped"]) -> Answer:
    pipeline, source, target, args = asked.pipeline, asked.source, asked.target, asked.args
    return _decided(ddl.record_decision(pipeline, source, target, args.id, status, args.note, who()))


def enable(asked: Asked) -> Answer:
    """Capture for this pipeline goes on."""
    return _switch(asked, True)


def disable(asked: Asked) -> Answer:
    """What is run on the source from here on is not for this pipeline."""
    return _switch(asked, False)


def _switch(asked: Asked, enabled: bool) -> Answer:
    found = ddl.set_enabled(asked.pipeline, asked.source, enabled)
    says = "DDL is followed" if enabled else "DDL that is run on the source from here on is left out"
    return Answer(found, lambda: [f"{found['pipeline']}: {says}"])


def preview(asked: Asked) -> Answer:
    """The scope's rules on the schemas and tables that the source has now."""
    found = ddl.preview(asked.pipeline, asked.source)
    return Answer(found, lambda: _preview(found))


def exceptions(asked: Asked) -> Answer:
    """What the event triggers could not record."""
    found = ddl.exceptions(asked.pipeline, asked.source, resolved=asked.args.all)
    return Answer(found, lambda: _exceptions(found), bool(found["unresolved"]))


def resolve_exception(asked: Asked) -> Answer:
    """Somebody has seen to it."""
    pipeline, source, target, args = asked.pipeline, asked.source, asked.target, asked.args
    found = ddl.resolve_exception(pipeline, source, target, args.id, args.note, who())
    return Answer(
        found,
        lambda: [f"exception {args.id} is resolved; {_left(found['unresolved'], 'exception')}"],
        bool(found["unresolved"]),
    )


def killed(asked: Asked) -> Answer:
    """Sessions that stood in the way of a statement."""
    found = ddl.killed(asked.pipeline, asked.target, reported=asked.args.all, report=asked.args.report)
    return Answer(found, lambda: _killed(found))


def who() -> str:
    """Who decides: for the record of the decision."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


# --- for people -----------------------------------------------------------------------------------------------------


def _decided(found: Found) -> Answer:
    def lines() -> Iterator[str]:
        for event in found["changed"]:
            yield f"{event['id']}: {event['status'].replace('_', ' ')}: {first_line(event['statement'])}"
            if event["status"] == "failed" and event["reason"]:
                yield f"  {first_line(event['reason'])}"
        if not found["changed"]:
            yield "nothing to do"
        waiting = found["waiting_for_a_person"]
        if waiting:
            yield f"{_left(len(waiting), 'event')} for a person: {', '.join(map(str, waiting))} (`pgddl ddl list`)"

    return Answer(found, lines, bool(found["waiting_for_a_person"]))


def _events(found: Found) -> Iterator[str]:
    rows = [
        [
            str(event["id"]),
            event["status"],
            age(event["recorded_at"]),
            event["tag"],
            ", ".join(event["touches"][:2]) + (" …" if len(event["touches"]) > 2 else ""),
            first_line(event["statement"]),
        ]
        for event in found["events"]
    ]
    table = aligned(["ID", "STATUS", "AGE", "COMMAND", "ON", "STATEMENT"], rows)
    if rows:
        yield next(table)
    for event, line in zip(found["events"], table, strict=False):
        yield line
        for key in ("reason", "todo"):
            if event[key]:
                yield f"      {'→ ' if key == 'todo' else ''}{first_line(event[key])}"
    counts = ", ".join(f"{number} {status.replace('_', ' ')}" for status, number in found["counts"].items() if number)
    yield f"{found['pipeline']}, run {found['run']}: {counts or 'no DDL has been captured yet'}"


def _one(found: Found) -> Iterator[str]:
    event, captured = found["event"], found["event"]["captured"]
    yield f"event {event['id']}: {event['status'].replace('_', ' ')}, {event['tag']}"
    if event["todo"]:
        yield f"→ {event['todo']}"
    path = f", search_path {', '.join(captured['path'])}" if "path" in captured else ""
    at = f", at {event['lsn']}" if event["lsn"] else ""
    facts = {
        "rule": event["rule"],
        "note": event["note"],
        "about": ", ".join(event["touches"]),
        "run": f"{captured.get('at') or captured.get('happened_at')} by {captured.get('role')}{path}",
        "captured": f"as {event['captured_id']}{at}; in the journal since {event['recorded_at']}",
        "applied": event["applied_at"],
    }
    yield from (f"{key + ':':<10}{value}" for key, value in facts.items() if value)
    yield from _block("notes", event["notes"])
    rebuilt = " (rebuilt from the source's catalog)" if event["rebuilt"] else ""
    yield from _block(f"for the target{rebuilt}", ";\n".join(event["statements"]).splitlines())
    if captured.get("statement"):
        inside = ", from inside of which it was run" if captured.get("nested") else ""
        yield from _block(f"the client's string{inside}", captured["statement"].splitlines())
    yield from _block("on the source", [line for change in event["changes"] for line in _change(change)])
    yield from _block("attempts", [_attempt(one) for one in event["attempts"]])
    yield from _block("signalled", [f"{k['signal']} of process {k['pid']} ({k['usename']})" for k in event["killed"]])


def _attempt(one: Found) -> str:
    said = f": {first_line(one['message'])}" if one["message"] else ""
    return f"{one['number']}, {one['started_at']}: {one['outcome'] or 'not ended'}{said}"


def _change(change: Found) -> Iterator[str]:
    """One table's difference (TableDiff) in short lines."""
    name = ".".join(change["after"] or change["before"])
    if change["created"] or change["dropped"]:
        yield f"{name}: {'created' if change['created'] else 'dropped'}"
        return
    for what in ("columns", "constraints", "indexes"):
        one = {"columns": "column", "constraints": "constraint", "indexes": "index"}[what]
        yield from (f"{name}: {one} {made['name']} added" for made in change[f"{what}_added"])
        yield from (f"{name}: {one} {gone['name']} dropped" for gone in change[f"{what}_dropped"])
        for both in change[what]:
            yield f"{name}: {one} {both['after']['name']}: {', '.join(_was(both, key) for key in both['changed'])}"
    for key, value in change.items():
        if isinstance(value, Mapping) and "before" in value:
            yield f"{name}: {_was(value, key)}"


def _was(pair: Found, key: str) -> str:
    before, after = pair["before"], pair["after"]
    if isinstance(before, Mapping) and key in before and isinstance(after, Mapping) and key in after:
        before, after = before[key], after[key]
        if key == "name":
            return f"was {before}"
    elif isinstance(before, Mapping) or isinstance(after, Mapping):
        return key
    return f"{key.replace('_', ' ')} {_shown(before)} → {_shown(after)}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None or value in ("", []) else str(value)


def _block(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"{title}:"
        yield from (f"  {line}" for line in lines)


def _preview(found: Found) -> Iterator[str]:
    pattern = f", pattern {found['pattern']}" if found["pattern"] and not found["by_table"] else ""
    scope = "in place: these tables" if found["in_place"] else f"scope {found['scope']}{pattern}"
    yield f"{found['pipeline']}: capture.ddl {found['capture']}, {scope}"
    if not found["by_table"]:
        yield from _block("schemas", found["schemas"] or ["none"])
        yield from _block("other schemas", found["other_schemas"])
    yield from _block("tables", found["tables"] or ["none"])
    yield from _block("other tables", found["other_tables"])
    lists = ["blocked_tags"]
    if not found["in_place"]:  # every other command counts there
        lists = ["create_tags", "drop_tags", "blocked_tags", "exclude_alter_table_subcommands"]
    for key in lists:
        yield f"{key}: {', '.join(found[key]) or 'none'}"


def _exceptions(found: Found) -> Iterator[str]:
    rows = [
        [
            str(row["id"]),
            age(row["happened_at"]),
            row["tag"] or "-",
            row["role"] or "-",
            row["sqlstate"] or "-",
            first_line(row["what"]),
        ]
        for row in found["exceptions"]
    ]
    table = aligned(["ID", "AGE", "COMMAND", "ROLE", "SQLSTATE", "WHAT"], rows)
    if rows:
        yield next(table)
    for row, line in zip(found["exceptions"], table, strict=False):
        yield line
        if row["statement"]:
            yield f"      {first_line(row['statement'])}"
        if row["resolved_at"]:
            yield f"      resolved: {row['note']}"
    yield _left(found["unresolved"], "exception") + (
        ": do by hand on the target what was not recorded, then `pgddl ddl resolve-exception ID --note …`"
        if found["unresolved"]
        else ""
    )


def _killed(found: Found) -> Iterator[str]:
    rows = [
        [
            str(row["id"]),
            age(row["signalled_at"]),
            str(row["pid"]),
            row["usename"] or "-",
            row["signal"] + ("" if row["succeeded"] else " (had ended)"),
            str(row["event_id"] or "-"),
            first_line(row["query"] or ""),
        ]
        for row in found["killed"]
    ]
    yield from aligned(["ID", "AGE", "PID", "USER", "SIGNAL", "EVENT", "QUERY"], rows) if rows else ()
    yield f"{len(rows)} session{'' if len(rows) == 1 else 's'}" + (", now reported" if found["reported"] else "")


def _left(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'} left"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table in columns; on a terminal the last one gets what is left of its width."""
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head) - 1)]
    room = shutil.get_terminal_size((160, 24)).columns if sys.stdout.isatty() else 160
    room = max(20, room - sum(widths) - 2 * len(widths))
    for row in [head, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, cut(row[-1], room)]).rstrip()


def first_line(text: str) -> str:
    """The first line that says something, and … where there is more."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return "" if not lines else lines[0] + (" …" if len(lines) > 1 else "")


def cut(text: str, room: int) -> str:
    """At most so many characters, and … where there were more."""
    return text if len(text) <= room else text[: room - 1] + "…"


def age(at: Any, now: datetime | None = None) -> str:
    """How long ago, in its largest unit: `3 min`."""
    if at is None:
        return "-"
    then = at if isinstance(at, datetime) else datetime.fromisoformat(str(at))
    seconds = max(0, int(((now or datetime.now(UTC)) - then).total_seconds()))
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
