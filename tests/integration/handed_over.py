"""Items that are rewritten, whose writers write to the copy, and what they cannot write there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.sessions import one

ITEMS = """
CREATE TABLE public.items (
    id int PRIMARY KEY, u int NOT NULL UNIQUE, note text, at timestamp, wide int DEFAULT 1,
    double int GENERATED ALWAYS AS (u * 2) STORED, no int GENERATED ALWAYS AS IDENTITY);
INSERT INTO public.items (id, u, note, at) SELECT i, i, 'n' || i, '2020-01-01' FROM generate_series(100, 1, -1) i;
"""
ALTER = [
    "ALTER COLUMN id TYPE bigint",
    "ALTER COLUMN note TYPE text USING upper(note)",
    "ALTER COLUMN at TYPE timestamptz",
]
AS_REWRITTEN = "SELECT id::bigint, u, upper(note), at AT TIME ZONE 'UTC', double, no FROM public.items"
AS_COPIED = "SELECT id, u, note, at, double, no FROM pgddl_copy_public.items"


def handed_over(lifecycle: Callable[..., Lifecycle], dsn: str, more: str = "", **options: Any) -> Lifecycle:
    """A rewrite of `items` whose writers write to the copy."""
    execute(dsn, ITEMS + more)
    capture = {"rows": "direct_trigger", **options.pop("capture", {})}
    move = lifecycle(dsn, rewrite={"public.items": {"alter": ALTER}}, capture=capture, **options)
    move.run_all(until="schema_sync")
    assert mode(move) == "direct"
    return move


def mode(move: Lifecycle) -> str:
    return str(one(move.source, "SELECT mode FROM pgddl.captured WHERE root = 'public.items'::regclass"))


def logged(move: Lifecycle) -> list[tuple[Any, ...]]:
    (log,) = move.on_source("SELECT log_table FROM pgddl.captured WHERE root = 'public.items'::regclass")[0]
    return move.on_source(f"SELECT op, old_1, new_1 FROM pgddl.{log} ORDER BY at")


def differing(move: Lifecycle, source: str = AS_REWRITTEN, copy: str = AS_COPIED) -> list[tuple[Any, ...]]:
    return move.on_source(f"({source} EXCEPT ALL {copy}) UNION ALL ({copy} EXCEPT ALL {source})")


def brings_it(move: Lifecycle) -> None:
    """What the copy did not take comes by a window, and the writers write to it again."""
    assert not move.run("replay").blocked
    assert (mode(move), logged(move), differing(move)) == ("direct", [], [])


# Row 2 takes the value while its change is still on its way to the copy.
HANDS_ON = """
CREATE FUNCTION public.hand_on() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN UPDATE public.items SET u = OLD.u WHERE id = 2; RETURN NULL; END $$;
CREATE TRIGGER a AFTER UPDATE ON public.items FOR EACH ROW WHEN (NEW.u = 500) EXECUTE FUNCTION public.hand_on();
"""
UNTAKEN = {
    "a unique value handed from row to row": "UPDATE public.items SET u = 500 WHERE id = 1",
    "many of them": "UPDATE public.items SET u = u + 1",
    "more rows than go": "INSERT INTO public.items (id, u) SELECT i, i FROM generate_series(200, 300) i",
    "a kept snapshot": "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; UPDATE public.items SET u = -1 WHERE id = 1",
    "a serializable one": "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; DELETE FROM public.items WHERE id < 5",
    "many keys that change": "UPDATE public.items SET id = -id; UPDATE public.items SET id = id - 1",
}
