"""The journal's tables and those on a source, by the comments in the migrations that make them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_SQL = Path(__file__).parents[2] / "airflow_provider_pgddl" / "engine" / "sql"
_BEGIN = re.compile(r"(CREATE TABLE|ALTER TABLE) pgddl\.(\w+)\s*(.*)", re.DOTALL)
# Tables whose migration says nothing above them.
_ABOUT = {
    "pipelines": "One row a pipeline: its file, its run, and how far it is.",
    "stage_runs": "Each run of a stage, with its result. A row without an end is under way, or was killed.",
    "tables": "The tables of a run, each with its plan and its state.",
    "chunks": "The ledger of backfill: ranges of blocks or of values, claimed by workers one by one.",
    "schema_status": "The last verdict of the schema gate on each table.",
    "windows": "Each window of replay.",
    "verifications": "The ranges that verify has compared, or will.",
    "finished": "The statements of the source's dump that `follow.finish` brought the last time.",
    "follow_ups": "What is still to be run once a swap has committed.",
    "table_identities": "Tables by a number that survives dump and restore, where an oid does not.",
    "column_identities": "Their columns, in the same way.",
}
_WORDS = ("PRIMARY", "UNIQUE", "CHECK", "FOREIGN", "CONSTRAINT", "EXCLUDE")


def tables(folder: str) -> str:
    """Markdown of one set of migrations (`journal`, `core`): each table with its columns as they are after the last."""
    about: dict[str, str] = {}
    columns: dict[str, dict[str, tuple[str, str]]] = {}
    for script in sorted((_SQL / folder).glob("*.up.sql")):
        for comment, statement in _statements(script.read_text(encoding="utf-8")):
            if not (match := _BEGIN.match(statement)):
                continue
            verb, table, rest = match.groups()
            added = _columns(rest)
            if verb == "CREATE TABLE":
                about[table], columns[table] = _ABOUT.get(table) or comment, {}
            elif len(added) == 1 and not added[0][2]:
                added = [(added[0][0], added[0][1], comment)]
            elif comment and added:
                about[table] = f"{about[table]} {comment}".strip()
            for name, kind, why in added:
                columns.setdefault(table, {})[name] = kind, why
    lines = []
    for table, found in columns.items():
        lines += [f"### {table}", "", about.get(table, ""), ""]
        if not found:
            continue
        lines += ["| Column | Type | |", "|---|---|---|"]
        lines += [f"| `{name}` | {kind} | {why} |" for name, (kind, why) in found.items()]
        lines.append("")
    return "\n".join(lines)


def _statements(text: str) -> Iterator[tuple[str, str]]:
    """(the comment above it, the statement) of a script, as far as statements are told by a line that ends them."""
    comment: list[str] = []
    statement: list[str] = []
    for line in text.splitlines():
        code = line.partition("-- ")[0].rstrip()
        if not statement and line.startswith("--"):
            comment.append(line.lstrip("- "))
        elif statement or code:
            statement.append(line)
            if code.endswith(";"):
                yield " ".join(comment).strip(), "\n".join(statement)
                comment, statement = [], []
        else:
            comment = []
    if statement:
        yield " ".join(comment).strip(), "\n".join(statement)


def _columns(text: str) -> list[tuple[str, str, str]]:
    """(column, type, comment) of a CREATE TABLE's list or of an ALTER TABLE's ADDs."""
    found = []
    for line in text.splitlines():
        body, _, why = line.partition("-- ")
        body = re.sub(r"^(ADD COLUMN|ADD)\s+", "", body.strip().lstrip("(").strip(" ;"))
        match = re.match(r"([a-z_]+)\s+([a-z0-9_]+(?:\[\])?)(?=[\s,]|$)", body)
        if match and match[1].upper() not in _WORDS and match[2] not in ("type", "column"):
            # Modules that landed migrations name have moved since.
            why = re.sub(r"^[\w/]+\.py[:,] ", "", why.strip())
            found.append((match[1], match[2], why.replace("|", "\\|")))
    return found
