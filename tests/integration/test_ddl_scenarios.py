"""What developers run on a source, and what comes of it on the target: every scope, both transports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs
from airflow_provider_pgddl.engine.errors import Retry
from tests.combinations import matrix
from tests.conftest import drop_database
from tests.integration.lifecycle import Lifecycle
from tests.integration.scenarios import (
    GROUPS,
    INCLUDE,
    TABLES,
    WITH_ROWS,
    Scenario,
    lines,
    objects,
    rows,
    scopes,
    strings,
    tables,
    targets,
)

MODULES = (tables, objects, strings, scopes, targets, rows)
SCENARIOS = {name: scenario for module in MODULES for name, scenario in module.SCENARIOS.items()}

# Both clusters have the first two; the source alone has the third, the target alone the fourth.
ROLES, GONE, OTHER = ("pgddl_app", "pgddl_weak"), "pgddl_gone", "pgddl_other"
OURS = "nspname !~ '^(pg_|pgddl)' AND nspname NOT IN ('information_schema', 'public', 'base')"


@dataclass
class World:
    """A source, a target and one pipeline of DDL alone between them, for the scenarios of one group."""

    group: str
    source: str
    target: str
    life: Lifecycle
    here: psycopg.Connection[tuple[Any, ...]]
    there: psycopg.Connection[tuple[Any, ...]]
    unread: bool = False
    different: list[str] = field(default_factory=list)
    """What earlier scenarios left different, with rows."""
    stopped: set[str] = field(default_factory=set)
    """And the tables that they left stopped."""
    blocked: dict[str, str] = field(default_factory=dict)

    def clean(self) -> None:
        """Both sides empty but for a few schemas, unseen by the pipeline, which forgets what it knew."""
        if self.unread:  # an earlier scenario has failed in the middle
            self.life.run("replay")
        if self.group in WITH_ROWS:
            self.there.execute(
                "UPDATE pgddl.ddl_events SET status = 'resolved'"
                " WHERE status IN ('unhandled', 'failed', 'pending', 'awaiting_approval')"
            )
            self.different = []
            self.different = self.compared({})
            self.stopped = set(self.blocked)
            return
        for conn in (self.here, self.there):
            with conn.transaction():
                conn.execute("SET LOCAL pgddl.skip = on")
                conn.execute("SET LOCAL client_min_messages = warning")
                conn.execute("DROP EXTENSION IF EXISTS vector CASCADE")
                conn.execute("DROP PUBLICATION IF EXISTS everything")
                for (schema,) in conn.execute(f"SELECT nspname FROM pg_namespace WHERE {OURS}").fetchall():
                    conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
                conn.execute("CREATE SCHEMA app; CREATE SCHEMA app_two; CREATE SCHEMA other")
                for role in ROLES:
                    conn.execute(f"GRANT ALL ON SCHEMA app, other TO {role}")
        self.there.execute(
            "DELETE FROM pgddl.ddl_events; DELETE FROM pgddl.schema_versions; DELETE FROM pgddl.killed_blockers"
        )

    def compared(self, renames: Mapping[str, str]) -> list[str]:
        schemas: set[str] | None = None
        if GROUPS[self.group].get("scope") != "everything":
            query = "SELECT nspname FROM pg_namespace WHERE nspname ~* '^app'"
            schemas = {name for conn in (self.here, self.there) for (name,) in conn.execute(query)}
        sides = [catalog_lines(dsn, None if schemas is None else sorted(schemas)) for dsn in (self.source, self.target)]
        for old, new in renames.items():
            sides[0] = [line.replace(old, new) for line in sides[0]]
        return list((Counter(diff_catalogs(*sides)) - Counter(self.different)).elements())

    def replay(self, scenario: Scenario | None = None) -> list[str]:
        """What the stage says is stopped."""
        with ExitStack() as stack:
            scenario = scenario or Scenario([])
            if scenario.holding:
                other = stack.enter_context(psycopg.connect(self.target))
                other.execute(scenario.holding.encode())
                stack.callback(other.close)
            changed = {"ddl": {**self.life.content["ddl"], **scenario.ddl}} if scenario.ddl else {}
            if scenario.stops:
                stack.enter_context(pytest.raises(Retry, match=scenario.stops))
            self.blocked = {entry["table"]: entry["reason"] for entry in self.life.run("replay", **changed).blocked}
            return [why for name, why in self.blocked.items() if name not in self.stopped]
        return []

    def events(self, behind: int) -> tuple[list[str], list[str]]:
        """(what became of each event of later transactions, all that was noted with them)."""
        rows = self.there.execute(
            "SELECT status, rebuilt, rule, note, notes FROM pgddl.ddl_events WHERE captured_id IS NOT NULL"
            " AND split_part(captured_id, '.', 1)::bigint > %s ORDER BY seq",
            [behind],
        )
        told, notes = [], []
        for status, rebuilt, rule, note, noted in rows:
            why = note if status in ("failed", "pending", "resolved") or rule == "in scope" else rule
            done = status == "applied"
            told.append(("rebuilt" if rebuilt else "applied") if done else f"{status}: {why}")
            notes += [*noted, *([note] if note else [])]
        return told, notes


@pytest.fixture(scope="module")
def worlds(pg16: Cluster, pg18: Cluster) -> Iterator[Callable[[str, str], World]]:
    """``worlds(group, transport)``: made when first asked for, and kept for the module."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for cluster, absent in ((pg16, OTHER), (pg18, GONE)):
            with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
                for role in {*ROLES, OTHER, GONE} - {absent}:
                    admin.execute(f"CREATE ROLE {role}")
                    stack.callback(_drop_role, cluster, role)

        @cache
        def world(group: str, transport: str) -> World:
            name = f"scenarios_{group.split(maxsplit=1)[0]}_{transport}"
            for cluster in (pg16, pg18):
                with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
                    admin.execute(f"CREATE DATABASE {name}")
                    stack.callback(drop_database, cluster, name)
                    admin.execute(f"GRANT CREATE ON DATABASE {name} TO {ROLES[0]}")
            source, target = pg16.conninfo(name), pg18.conninfo(name)
            rows = group in WITH_ROWS
            life = Lifecycle(
                patch,
                source,
                target,
                tables={"include": INCLUDE if rows else ["base.*"]},
                capture={"ddl": transport},
                ddl={"ddl_only": not rows, **GROUPS[group]},
            )
            _send(source, TABLES if rows else "CREATE SCHEMA base; CREATE TABLE base.kept (id int PRIMARY KEY)")
            life.run_all(until="replay" if rows else "snapshot")
            here, there = (stack.enter_context(psycopg.connect(dsn, autocommit=True)) for dsn in (source, target))
            return World(group, source, target, life, here, there)

        yield world


def _drop_role(cluster: Cluster, role: str) -> None:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
        admin.execute(f"DROP ROLE {role}")


def _send(dsn: str, strings: str | Sequence[str]) -> int:
    """What an application sends, all through one session; returns the last transaction's id."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for string in lines(strings):
            refused = pytest.raises(psycopg.Error) if string.startswith("!") else nullcontext()
            with refused:
                conn.execute(string.removeprefix("!").encode())
        conn.execute("RESET SESSION AUTHORIZATION")
        row = conn.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
        return int(row[0])


def _waits(told: str) -> bool:
    return told.startswith(("failed", "unhandled", "awaiting_approval"))


def _as_expected(told: Sequence[str], expected: Sequence[str]) -> bool:
    """The same status in each place, and the words of why in what is told."""
    pairs = [(one.split(": ", 1), other.split(": ", 1)) for one, other in zip(told, expected, strict=False)]
    return len(told) == len(expected) and all(
        one[0] == other[0] and other[-1] in one[-1 if len(other) > 1 else 0] for one, other in pairs
    )


def _each_with_words(found: Sequence[str], words: Sequence[str]) -> bool:
    return len(found) == len(words) and all(word in line for line, word in zip(found, words, strict=True))


@pytest.mark.parametrize("transport", matrix("queue", "wal"))
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(worlds: Callable[[str, str], World], name: str, transport: str) -> None:
    scenario = SCENARIOS[name]
    world = worlds(scenario.group, transport)
    world.clean()
    world.unread = True
    behind = _send(world.source, scenario.before)
    if scenario.target or scenario.holding:
        world.life.run("replay")
        _send(world.target, scenario.target)
    _send(world.source, scenario.run)
    blocked = world.replay(scenario)
    world.unread = False
    told, notes = world.events(behind)
    expected = lines(scenario.expect)
    assert _as_expected(told, expected), f"{told} {notes}"
    if scenario.blocked is None:
        assert bool(blocked) == (not scenario.stops and any(map(_waits, told))), blocked
    else:
        assert bool(blocked) == bool(scenario.blocked) and scenario.blocked in "".join(blocked), blocked
    earlier = world.events(0)[0]
    assert not [each for each in earlier[: len(earlier) - len(told)] if each.startswith(("failed", "unhandled"))]
    for words in lines(scenario.notes):
        assert any(words in note for note in notes), notes
    if scenario.then:
        _send(world.target, scenario.by_hand)
        blocked = world.replay()
        told, notes = world.events(behind)
        assert _as_expected(told, lines(scenario.then)), f"{told} {notes}"
        assert bool(blocked) == any(map(_waits, told)), blocked
    found = world.compared(scenario.renames)
    if isinstance(scenario.differs, str):
        assert found and all(scenario.differs in line for line in found), found
    else:
        assert _each_with_words(found, scenario.differs), found
    if scenario.check is not None:
        query, value = scenario.check
        assert world.life.journal(query) == [(value,)]
    assert world.life.on_source("SELECT what, statement FROM pgddl.exceptions WHERE resolved_at IS NULL") == []


def test_no_name_is_taken_twice() -> None:
    assert len(SCENARIOS) == sum(len(module.SCENARIOS) for module in MODULES)
