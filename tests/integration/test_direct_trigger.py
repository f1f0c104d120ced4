"""capture.rows: direct_trigger. Once a table's copy is built, its writers write to it themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgddl.engine.capture.direct_function import MOST_ROWS
from airflow_provider_pgddl.engine.errors import StageFailed
from tests.failpoints import At, once
from tests.integration.handed_over import HANDS_ON, UNTAKEN, brings_it, differing, handed_over, logged
from tests.integration.lifecycle import Lifecycle, execute, left_behind, wait_until
from tests.integration.rewrites import OTHERS, REWRITE, SMALL, Shop, copies, load, unaccounted
from tests.integration.sessions import do, in_transaction, one
from tests.table_writers import TableWriters


def test_writers_write_to_the_copy_from_schema_sync_on(lifecycle: Callable[..., Lifecycle], source_dsn: str) -> None:
    move = handed_over(lifecycle, source_dsn)
    for statement in (
        "INSERT INTO public.items (id, u, note, at) VALUES (101, 101, 'ü', '2024-02-03 04:05')",
        "SET timezone = 'Asia/Tokyo'; UPDATE public.items SET note = 'changed', at = '2024-07-01' WHERE id = 5",
        "UPDATE public.items SET id = 1000 WHERE id = 6",
        "DELETE FROM public.items WHERE id = 7",
        "UPDATE public.items SET u = 7, id = 7 WHERE id = 8",
        "INSERT INTO public.items (id, u) VALUES (9, 0) ON CONFLICT (id) DO UPDATE SET note = 'twice'",
        "UPDATE public.items SET no = DEFAULT WHERE id = 11",
        "DELETE FROM public.items WHERE id = 10; INSERT INTO public.items (id, u) VALUES (10, 10)",
        "TRUNCATE public.items RESTART IDENTITY; INSERT INTO public.items (id, u) VALUES (1, 1), (2, 2), (3, 3)",
        "SET session_replication_role = replica; UPDATE public.items SET note = 'replica' WHERE id = 3",
    ):
        execute(source_dsn, statement)
        assert (differing(move), logged(move)) == ([], []), statement
    move.run_all(after="schema_sync")
    assert left_behind(source_dsn) == ["schema pgddl"]  # the audit


@pytest.mark.parametrize("what", UNTAKEN)
def test_what_the_copy_cannot_take_goes_into_the_log(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, what: str
) -> None:
    move = handed_over(lifecycle, source_dsn, HANDS_ON)
    execute(source_dsn, UNTAKEN[what])
    assert logged(move)
    execute(
        source_dsn, "UPDATE public.items SET note = 'later' WHERE id % 10 = 0"
    )  # the copy has no or an old row of some
    brings_it(move)
    move.run_all(after="schema_sync", until="swap")
    assert one(source_dsn, "SELECT count(*) FROM public.items WHERE note = 'LATER'") > 0


def test_a_transaction_writes_no_more_rows_directly_than_its_snapshot_can_hold(
    lifecycle: Callable[..., Lifecycle], source_dsn: str
) -> None:
    """A subtransaction a row: with more than 64, everybody's snapshots overflow."""
    move = handed_over(lifecycle, source_dsn)
    execute(source_dsn, "INSERT INTO public.items (id, u) SELECT i, i FROM generate_series(1001, 2000) i")
    assert len(logged(move)) == 1000 - MOST_ROWS
    assert one(source_dsn, "SELECT count(*) FROM pgddl_copy_public.items WHERE id > 1000") == MOST_ROWS
    execute(source_dsn, "INSERT INTO public.items (id, u) VALUES (3000, 3000)")
    assert len(logged(move)) == 1000 - MOST_ROWS
    brings_it(move)


def test_what_a_client_sets_is_no_count_of_rows(lifecycle: Callable[..., Lifecycle], source_dsn: str) -> None:
    """A few dots are: its rows go into the log the sooner."""
    move = handed_over(lifecycle, source_dsn)
    with psycopg.connect(source_dsn) as client:
        for value in ("garbage", "0" * 5000, "." * 5000 + "x", "x" + ".", "{}", "\n", "null", " " * 40):
            client.execute("SELECT set_config('pgddl.direct', %s, false)", [value])
            client.execute("UPDATE public.items SET note = 'w' || %s WHERE id < 9", [value])
            client.commit()
            assert (logged(move), differing(move)) == ([], []), value
        client.execute("SELECT set_config('pgddl.direct', repeat('.', 5000), false)")
        client.execute("UPDATE public.items SET note = 'logged' WHERE id = 9")
    assert [row[0] for row in logged(move)] == ["U"]
    brings_it(move)


def test_rows_that_are_written_again_by_a_trigger_or_a_function_are_right_in_the_copy(
    lifecycle: Callable[..., Lifecycle], source_dsn: str
) -> None:
    """The inner statement's event comes before the outer one's, whose version of the row is the older."""
    move = handed_over(
        lifecycle, source_dsn,
        "CREATE FUNCTION public.again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.note LIKE 'again%' AND NEW.note <> 'again!' THEN"
        "   UPDATE public.items SET note = 'again!' WHERE id = NEW.id; END IF;"
        " IF NEW.note = 'go' THEN DELETE FROM public.items WHERE id = NEW.id; END IF; RETURN NULL; END $$;"
        "CREATE TRIGGER a AFTER INSERT OR UPDATE ON public.items FOR EACH ROW EXECUTE FUNCTION public.again();"
        "CREATE FUNCTION public.back() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF OLD.note = 'come back' THEN INSERT INTO public.items (id, u, note) VALUES (OLD.id, OLD.u, 'back'); END IF;"
        " RETURN NULL; END $$;"
        "CREATE TRIGGER b AFTER DELETE ON public.items FOR EACH ROW EXECUTE FUNCTION public.back();"
        "CREATE FUNCTION public.bump(k int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
        " UPDATE public.items SET note = 'bumped' WHERE id = k; RETURN 1; END $$;",
    )  # fmt: skip
    for statement in (
        "UPDATE public.items SET note = 'again 1' WHERE id = 1",
        "INSERT INTO public.items (id, u, note) VALUES (101, 101, 'again 2')",
        "UPDATE public.items SET note = 'go' WHERE id = 2",
        "UPDATE public.items SET note = 'come back' WHERE id = 3; DELETE FROM public.items WHERE id = 3",
        "UPDATE public.items SET note = 'outer', wide = CASE id WHEN 4 THEN public.bump(5) END WHERE id IN (4, 5)",
    ):
        execute(source_dsn, statement)
        keys = {key for _, *both in logged(move) for key in both}
        wrong = {key for key, *_ in differing(move)}
        assert wrong <= keys, statement
    brings_it(move)
    # What is right in the copy at once, and not by a window.
    execute(source_dsn, "UPDATE public.items SET note = 'again 3' WHERE id = 20")
    assert (differing(move), logged(move)) == ([], [])


def test_a_truncate_empties_the_copy_in_the_same_transaction(
    lifecycle: Callable[..., Lifecycle], source_dsn: str
) -> None:
    move = handed_over(lifecycle, source_dsn)
    emptied = ("TRUNCATE public.items", "INSERT INTO public.items (id, u) VALUES (1, 1)")
    with in_transaction(source_dsn, "UPDATE public.items SET note = 'x'", *emptied) as conn:
        conn.rollback()
    assert differing(move) == []
    execute(source_dsn, ";".join(emptied))
    assert (differing(move), logged(move)) == ([], [])
    with in_transaction(source_dsn, "LOCK pgddl_copy_public.items IN ACCESS SHARE MODE"):
        do(source_dsn, "TRUNCATE public.items", "INSERT INTO public.items (id, u) VALUES (2, 2)")
    assert [op for op, *_ in logged(move)] == ["X"]
    brings_it(move)


def test_whoever_holds_the_copy_holds_up_no_client(lifecycle: Callable[..., Lifecycle], source_dsn: str) -> None:
    move = handed_over(lifecycle, source_dsn)
    with in_transaction(source_dsn, "LOCK pgddl_copy_public.items"):
        with psycopg.connect(source_dsn) as client:
            client.execute("SET LOCAL lock_timeout = '7s'")
            client.execute("UPDATE public.items SET note = 'held' WHERE id < 50")
            row = client.execute("SHOW lock_timeout").fetchone()
            assert row == ("7s",)
    assert len(logged(move)) == 49
    brings_it(move)


@pytest.mark.parametrize(
    "done", ["DROP TABLE pgddl_copy_public.items", "ALTER TABLE pgddl_copy_public.items DROP COLUMN note",
             "ALTER TABLE pgddl_copy_public.items ADD CHECK (u < 1000)"]
)  # fmt: skip
def test_what_happens_to_the_copy_fails_no_client(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, done: str
) -> None:
    move = handed_over(lifecycle, source_dsn)
    do(source_dsn, done, "UPDATE public.items SET u = 5000 WHERE id = 1", "DELETE FROM public.items WHERE id = 2",
       "INSERT INTO public.items (id, u) VALUES (200, 2000)", "TRUNCATE public.items")  # fmt: skip
    assert logged(move)


def test_what_another_owner_has_put_on_the_copy_is_not_run_by_writers(
    lifecycle: Callable[..., Lifecycle], source_dsn: str
) -> None:
    """No event trigger tells of REASSIGN OWNED."""
    role = "DO $$ BEGIN CREATE ROLE {0}; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
    owned = (
        "".join(role.format(r) for r in ("direct_was", "direct_is")) + "ALTER TABLE public.items OWNER TO direct_was"
    )
    move = handed_over(lifecycle, source_dsn, owned, trusted_roles=["direct_was"])
    execute(source_dsn, "REASSIGN OWNED BY direct_was TO direct_is; GRANT CREATE ON SCHEMA public TO direct_is;"
            "GRANT USAGE ON SCHEMA pgddl_copy_public TO direct_is")  # fmt: skip
    execute(
        source_dsn,
        "SET ROLE direct_is; CREATE FUNCTION public.fires() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE LOG ''as %'', current_user; PERFORM nextval(''public.fired''); RETURN NEW; END';"
        "CREATE SEQUENCE public.fired; GRANT ALL ON SEQUENCE public.fired TO PUBLIC;"
        "CREATE TRIGGER fires BEFORE INSERT OR DELETE ON pgddl_copy_public.items"
        " FOR EACH ROW EXECUTE FUNCTION public.fires();"
        "CREATE TRIGGER empties BEFORE TRUNCATE ON pgddl_copy_public.items EXECUTE FUNCTION public.fires()",
    )
    for statement in ("UPDATE public.items SET u = 5000 WHERE id = 1", "TRUNCATE public.items",
                      "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; TRUNCATE public.items"):  # fmt: skip
        execute(source_dsn, statement)
    assert one(source_dsn, "SELECT is_called FROM public.fired") is False
    assert [op for op, *_ in logged(move)] == ["U", "X", "X"]


def test_serializable_clients_do_not_meet_in_the_copy(lifecycle: Callable[..., Lifecycle], source_dsn: str) -> None:
    """Two that read and write different rows succeed, as they do without us."""
    move = handed_over(lifecycle, source_dsn)
    with psycopg.connect(source_dsn) as one_client, psycopg.connect(source_dsn) as other:
        for client, key in ((one_client, 1), (other, 2)):
            client.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            client.execute("SET LOCAL enable_seqscan = off")
            client.execute("UPDATE public.items SET note = 's' WHERE id = %s", [key])
        one_client.commit()
        other.commit()
    brings_it(move)


def test_a_swap_takes_what_the_copy_did_not_and_the_old_table_has_a_log_again(
    lifecycle: Callable[..., Lifecycle], source_dsn: str
) -> None:
    move = handed_over(lifecycle, source_dsn)
    move.run_all(after="schema_sync", until="verify")
    execute(source_dsn, "UPDATE public.items SET u = u + 1")
    move.run("swap")
    assert move.on_source("SELECT mode FROM pgddl.captured") == [("log",), ("log",)]  # the old one's, and the new one's
    assert one(source_dsn, "SELECT sum(u) FROM public.items") == 5150
    execute(source_dsn, "UPDATE pgddl_old_public.items SET note = 'late' WHERE id = 1")
    assert "written to after the swap" in move.refused("cleanup").what


@pytest.mark.parametrize("emptied", ["before", "at the lock"])
def test_a_truncate_that_the_copy_has_seen_keeps_no_swap_from_happening(
    lifecycle: Callable[..., Lifecycle], source_dsn: str, at: At, capsys: pytest.CaptureFixture[str], emptied: str
) -> None:
    move = handed_over(lifecycle, source_dsn)
    move.run_all(after="schema_sync", until="verify")
    brings_it(move)
    statements = ("TRUNCATE public.items", "INSERT INTO public.items (id, u) VALUES (1, 1)")
    if emptied == "before":
        do(source_dsn, *statements)
    capsys.readouterr()
    late = once(lambda: do(source_dsn, *statements) if emptied == "at the lock" else None)
    with at("swap.before_lock", late) as locks:
        move.run("swap")
    assert ("compared again" in capsys.readouterr().out) == (emptied == "before")  # before, it is as anybody's
    assert locks.times == 1
    assert move.on_source("SELECT id, u FROM public.items") == [(1, 1)]


@pytest.mark.parametrize("before", ["SELECT", "VACUUM (FULL) public.items"], ids=["alone", "behind a new file"])
def test_one_of_the_copy_alone_is_seen(lifecycle: Callable[..., Lifecycle], source_dsn: str, before: str) -> None:
    move = handed_over(lifecycle, source_dsn)
    move.run_all(after="schema_sync", until="verify")
    brings_it(move)
    do(source_dsn, before)
    do(source_dsn, "TRUNCATE pgddl_copy_public.items")
    assert "public.items: at least 100 rows differ" in str(move.refused("swap", StageFailed))


def test_a_reset_leaves_nothing_of_a_direct_trigger(lifecycle: Callable[..., Lifecycle], source_dsn: str) -> None:
    from airflow_provider_pgddl.engine.commands.reset import reset

    move = handed_over(lifecycle, source_dsn)
    reset(move.job("setup").pipeline, source_dsn, source_dsn)
    assert left_behind(source_dsn) == []
    execute(source_dsn, "UPDATE public.items SET u = u + 1; TRUNCATE public.items")


def test_tables_are_rewritten_under_writers_that_write_to_the_copies(
    source_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    load(source_dsn)
    move = lifecycle(source_dsn, rewrite=REWRITE, capture={"rows": "direct_trigger"}, **SMALL)
    shop = Shop([source_dsn], threads=3, rate=90)
    others = TableWriters(
        [source_dsn], OTHERS, truncate=[("public", "tokens"), ("public", "pairs")], threads=3, rate=120
    )
    print(f"seeds {shop.seed} {others.seed}")

    def some_traffic(operations: int = 30) -> None:
        for writers in (shop, others):
            seen = writers.notes.committed.total()
            wait_until(lambda w=writers, n=seen: w.notes.committed.total() > n + operations)

    with shop, others:
        for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay", "replay", "verify", "replay"):
            assert not move.run(stage).blocked
            some_traffic()
        assert move.on_source("SELECT count(*) > 4 FROM pgddl.captured WHERE mode = 'direct'") == [(True,)]
        with shop.quiet(), others.quiet():
            move.run("replay")
            assert [d for d in copies(source_dsn) if d.differs] == []
        some_traffic()
        move.run("verify")
        some_traffic()
        move.run("swap")
        some_traffic()
        move.run("cleanup")
        some_traffic()
    for writers in (shop, others):
        print(writers.notes.committed, writers.notes.refused, writers.notes.retried)
        assert writers.notes.failures == []
        assert not writers.notes.refused
    assert unaccounted(source_dsn) == []
    assert left_behind(source_dsn) == ["schema pgddl"]


def test_clients_that_meet_at_few_rows_fail_no_more_than_without_us(
    source_dsn: str, lifecycle: Callable[..., Lifecycle]
) -> None:
    """Keys and unique values go round among a few rows, in an order that cannot deadlock; every error is ours."""
    move = handed_over(lifecycle, source_dsn, swap={"retries": 500})
    errors: list[str] = []
    over = threading.Event()

    def write(number: int) -> None:
        with psycopg.connect(source_dsn) as conn:
            turn = 0
            while not over.is_set():
                turn += 1
                level = ("READ COMMITTED", "READ COMMITTED", "REPEATABLE READ")[turn % 3]
                try:
                    conn.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
                    conn.execute("SELECT pg_advisory_xact_lock(1)" if turn % 5 == 0 else "SELECT 1")
                    low = 10 * (number * 7 + turn) % 90
                    conn.execute(
                        "SELECT FROM public.items WHERE id > %s AND id <= %s ORDER BY id FOR UPDATE", [low, low + 5]
                    )
                    conn.execute(
                        "UPDATE public.items i SET u = -j.u FROM public.items j"
                        " WHERE i.id > %(low)s AND i.id <= %(low)s + 5 AND j.id = i.id",
                        {"low": low},
                    )
                    conn.execute("DELETE FROM public.items WHERE id = %s", [low + 3])
                    conn.execute("INSERT INTO public.items (id, u) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                                 [low + 3, low + 3])  # fmt: skip
                    conn.commit()
                except psycopg.errors.SerializationFailure:
                    conn.rollback()
                except psycopg.Error as error:
                    errors.append(f"{error.sqlstate} {error}")
                    conn.rollback()

    threads = [threading.Thread(target=write, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert not move.run("replay").blocked
    finally:
        over.set()
        for thread in threads:
            thread.join(120)
    assert errors == []
    brings_it(move)
