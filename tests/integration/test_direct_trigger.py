"""capture.rows: direct_trigger. Once a table's copy is built, its writers write to it themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.integration.lifecycle import Lifecycle, execute, left_behind

ITEMS = """
CREATE TABLE public.items (
    id int PRIMARY KEY, u int NOT NULL UNIQUE, note text, at timestamp,
    double int GENERATED ALWAYS AS (u * 2) STORED, no int GENERATED ALWAYS AS IDENTITY);
INSERT INTO public.items (id, u, note, at) SELECT i, i, 'n' || i, '2020-01-01' FROM generate_series(1, 100) i;
"""
REWRITE = {
    "public.items": {
        "alter": ["ALTER COLUMN id TYPE bigint", "ALTER COLUMN note TYPE text USING upper(note)",
                  "ALTER COLUMN at TYPE timestamptz"]
    }
}  # fmt: skip
AS_REWRITTEN = "SELECT id::bigint, u, upper(note), at AT TIME ZONE 'UTC', double, no FROM public.items"
AS_COPIED = "SELECT id, u, note, at, double, no FROM pgddl_copy_public.items"


def rewriting(lifecycle: Callable[..., Lifecycle], dsn: str, schema: str = ITEMS, **options: Any) -> Lifecycle:
    execute(dsn, schema)
    capture = {"rows": "direct_trigger", **options.pop("capture", {})}
    move = lifecycle(dsn, **({"rewrite": REWRITE} | options), capture=capture)
    move.run_all(until="schema_sync")
    return move


def mode(move: Lifecycle, table: str = "public.items") -> str:
    return str(move.on_source("SELECT mode FROM pgddl.captured WHERE root = %s::regclass", [table])[0][0])


def logged(move: Lifecycle, table: str = "public.items") -> list[tuple[Any, ...]]:
    log = move.on_source("SELECT log_table FROM pgddl.captured WHERE root = %s::regclass", [table])[0][0]
    return move.on_source(f"SELECT op, old_1, new_1 FROM pgddl.{log}")


def differing(move: Lifecycle) -> list[tuple[Any, ...]]:
    return move.on_source(f"({AS_REWRITTEN} EXCEPT {AS_COPIED}) UNION ALL ({AS_COPIED} EXCEPT {AS_REWRITTEN})")


def test_writers_write_to_the_copy_from_schema_sync_on(lifecycle: Callable[..., Lifecycle], source_dsn: str) -> None:
    move = rewriting(lifecycle, source_dsn)
    assert mode(move) == "direct"
    for statement in (
        "INSERT INTO public.items (id, u, note, at) VALUES (101, 101, 'ü', '2024-02-03 04:05')",
        "SET timezone = 'Asia/Tokyo'; UPDATE public.items SET note = 'changed', at = '2024-07-01' WHERE id = 5",
        "UPDATE public.items SET id = 1000 WHERE id = 6",
        "DELETE FROM public.items WHERE id = 7",
        "UPDATE public.items SET u = 7, id = 7 WHERE id = 8",
        "INSERT INTO public.items (id, u) VALUES (9, 0) ON CONFLICT (id) DO UPDATE SET note = 'twice'",
        "BEGIN; DELETE FROM public.items WHERE id = 10; INSERT INTO public.items (id, u) VALUES (10, 10); COMMIT",
    ):
        execute(source_dsn, statement)
        assert differing(move) == [], statement
    assert logged(move) == []
    move.run_all(after="schema_sync")
    assert left_behind(source_dsn) == ["schema pgddl"]  # the audit
