"""Each guard against code of others, taken out once: she gains something then, so the other tests would see it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.engine.apply import as_client, dependents, dump_events
from airflow_provider_pgddl.engine.apply import target_alterations as aligning
from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.following import direct_trigger
from airflow_provider_pgddl.engine.model.plan import Keepers
from airflow_provider_pgddl.engine.preflight import foreign_code as preflight_of_code
from airflow_provider_pgddl.engine.preflight import rewriting
from airflow_provider_pgddl.engine.rights import alter_as_owner, foreign_code, wall
from airflow_provider_pgddl.engine.server.connect import PINNED, Session, _pinning
from airflow_provider_pgddl.engine.swapping import follow_ups
from tests.integration.attempts import Attempt, rewritten
from tests.integration.lifecycle import Lifecycle
from tests.integration.mallory import Mallory
from tests.integration.mallory_kinds import BY_NAME

Make = Callable[..., Lifecycle]
Out = Callable[[pytest.MonkeyPatch], None]


UNTIL_REPLAY = ("setup", "snapshot", "backfill", "schema_sync", "replay")


def _as_ourselves(patch: pytest.MonkeyPatch) -> None:
    def run(conn: Session, role: str, *statements: Any, settings: Any = None) -> int:
        return max(conn.execute(statement).rowcount for statement in statements)

    patch.setattr(wall, "run", run)


def _by_set_role(patch: pytest.MonkeyPatch) -> None:
    def run(conn: Session, role: str, *statements: Any, settings: Any = None) -> int:
        conn.execute("SELECT pg_catalog.set_config('role', %s, true)", [role])
        rows = max(conn.execute(statement).rowcount for statement in statements)
        conn.execute("SELECT pg_catalog.set_config('role', 'none', true)")
        return rows

    patch.setattr(wall, "run", run)


def _nothing_found(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(foreign_code, "foreign_code", lambda *_: {})


def _unnested(patch: pytest.MonkeyPatch) -> None:
    """As if a domain within an array or a composite were one as any other."""
    found = foreign_code.foreign_code

    def unnested(*args: Any) -> Any:
        return {oid: [replace(c, nested=False) for c in code] for oid, code in found(*args).items()}

    patch.setattr(foreign_code, "foreign_code", unnested)


def _all_plain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(foreign_code, "_PLAIN", re.compile(".*", re.DOTALL))


def _forgotten(*without: str) -> Out:
    def out(patch: pytest.MonkeyPatch) -> None:
        forget = wall._Q["forget"]
        for statement in without:
            forget = forget.replace(f"{statement};\n", "")
        patch.setitem(wall._Q, "forget", forget)

    return out


def _found_first(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(PINNED, "search_path", "")
    _pinning.cache_clear()
    patch.setitem(wall._Q, "left", "SELECT 'nothing' WHERE false")


def _deferred(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wall, "_deferred", lambda _: None)


def _handed_over(patch: pytest.MonkeyPatch) -> None:
    """As if her tables were ours, once a direct trigger is to write to them."""
    of_the_log = direct_trigger._of_the_log

    def ours(context: Any) -> list[Any]:
        return [replace(t, plan=replace(t.plan, keepers=Keepers())) for t in of_the_log(context)]

    patch.setattr(direct_trigger, "_of_the_log", ours)
    patch.setattr(foreign_code, "code_of_live", lambda *_: (set(), {}))
    patch.setattr(foreign_code, "hold_code_of_copies", lambda *_: (set(), {}))


def _altered_by_us(patch: pytest.MonkeyPatch) -> None:
    def alter(conn: Session, statement: str, trusted: Sequence[str]) -> None:
        conn.execute(statement)

    for module in (alter_as_owner, dump_events, aligning, dependents, follow_ups):
        patch.setattr(module, "alter", alter)


def _probed_by_us(patch: pytest.MonkeyPatch) -> None:
    def execute(conn: Session, role: str, statement: Any, *reads: Any) -> int:
        return conn.execute(statement).rowcount

    patch.setattr(rewriting.as_owner, "execute", execute)


def _trusted_clients(patch: pytest.MonkeyPatch) -> None:
    """Nor is looked whose code is on the table, as it is for clients that are trusted."""
    patch.setattr(as_client, "untrusted", lambda *_: set())
    patch.setattr(as_client, "keeper_of", lambda *_: alter_as_owner.Keeper("", False))


def _made_by_us(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(alter_as_owner, "_author", lambda *_: "")


def _planned_by_us(patch: pytest.MonkeyPatch) -> None:
    """As if nothing but what an ALTER TABLE brings was ever computed."""
    patch.setattr(
        alter_as_owner, "_evaluates", lambda command: alter_as_owner.action_name(command) in alter_as_owner._BRING
    )


@dataclass(frozen=True)
class Guard:
    """`out` takes it out; `kinds` are tables on which that is seen by the end of `stages`, with what she leaves."""

    out: Out
    kinds: Sequence[str]
    stages: Sequence[str] = UNTIL_REPLAY
    leaves: str = ""
    rows: str = "change_log"


GUARDS = {
    "rows are written behind the wall": Guard(_as_ourselves, ["check", "generated"]),
    "SET ROLE is no wall": Guard(_by_set_role, ["check", "generated"]),
    "code is looked for": Guard(_nothing_found, ["check", "index_constant"]),
    "domains within other types are refused": Guard(
        _unnested, ["domain_in_array", "domain_in_composite", "range_key"], (*UNTIL_REPLAY, "verify", "swap")
    ),
    "USING runs as the owner": Guard(_all_plain, ["using"]),
    "cursors are closed": Guard(_forgotten("CLOSE ALL"), ["check"], leaves="held cursor"),
    "temporary objects are found last, and end it": Guard(_found_first, ["check"], leaves="temporary types"),
    "deferred triggers end it": Guard(_deferred, ["check"], leaves="deferred trigger"),
    "no direct trigger": Guard(_handed_over, ["check", "generated"], rows="direct_trigger"),
    "keys are validated as the owner": Guard(_altered_by_us, ["foreign_key"], (*UNTIL_REPLAY, "verify", "swap")),
    "generated columns are planned as their author": Guard(_made_by_us, ["generated_constant"], ("setup", "snapshot")),
    "constraints are planned as the owner": Guard(_planned_by_us, ["made_not_null"], ("setup", "snapshot")),
    "orders are tried as the owner": Guard(_probed_by_us, ["ordered"], ("setup",)),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_without_it_she_gains_something(
    mallory: Mallory, pg16: Cluster, source_dsn: str, lifecycle: Make, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    taken = GUARDS[guard]
    mallory.joins(pg16).moves_in(source_dsn)
    kinds = [BY_NAME[name] for name in taken.kinds]
    mallory.makes(source_dsn, kinds)
    move = lifecycle(source_dsn, rewrite=rewritten(kinds), capture={"rows": taken.rows})
    attempt = Attempt(mallory, move, kinds)
    taken.out(monkeypatch)
    gained: list[str] = []
    for stage in taken.stages:
        if taken.leaves:
            mallory.leaves_behind(source_dsn, taken.leaves)
        with suppress(PgddlError, psycopg.Error):  # she may well break something, too
            move.run(stage)
            mallory.writes(source_dsn, kinds, 1)
        gained = mallory.escalations(source_dsn)
        if gained:
            break
    assert gained, f"without the guard nothing came of it: {guard}"
    assert attempt.kinds == kinds


def test_without_the_wall_around_clients_her_ddl_gains_something(
    mallory: Mallory,
    pg16: Cluster,
    pg18: Cluster,
    source_dsn: str,
    target_dsn: str,
    lifecycle: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mallory.joins(pg16, pg18).moves_in(source_dsn)
    mallory.visits(target_dsn)
    kinds = [BY_NAME["check"]]
    mallory.makes(source_dsn, kinds)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["m.*"], "schema_only": ["lair.*"]})
    attempt = Attempt(mallory, move, kinds)
    _trusted_clients(monkeypatch)
    for stage in UNTIL_REPLAY:
        attempt.stage(stage)
    relation = kinds[0].relation
    mallory.does(source_dsn, f"ALTER TABLE {relation} ADD CHECK (m.evil(id, 'check') > 0)")
    move.run("replay")
    assert mallory.escalations(source_dsn, target_dsn)


@pytest.mark.parametrize("guard", ["missing_authors", "unmade"])
def test_what_preflight_does_not_say_is_refused_later(
    mallory: Mallory,
    pg16: Cluster,
    pg18: Cluster,
    source_dsn: str,
    target_dsn: str,
    lifecycle: Make,
    monkeypatch: pytest.MonkeyPatch,
    guard: str,
) -> None:
    """These two only say it in time: whatever is done nevertheless stops at the statement."""
    mallory.joins(pg16, *([pg18] if guard == "unmade" else [])).moves_in(source_dsn)
    mallory.visits(target_dsn)
    kinds = [BY_NAME["check"] if guard == "missing_authors" else BY_NAME["partition_key"]]
    mallory.makes(source_dsn, kinds)
    monkeypatch.setattr(preflight_of_code, guard, lambda _: iter(()))
    tables = {"include": ["m.*"], "schema_only": ["lair.*"], "keyless": "copy_at_swap"}
    move = lifecycle(source_dsn, target_dsn, tables=tables)
    attempt = Attempt(mallory, move, kinds)
    attempt.may_stop = True
    with suppress(PgddlError):
        for stage in (*UNTIL_REPLAY, "swap"):
            attempt.stage(stage)
    assert "swap" not in move.results
    attempt.gained_nothing()
