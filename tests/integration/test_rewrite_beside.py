"""A rewrite with no more rights than it takes, and beside others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import diff_catalogs
from airflow_provider_pgddl.engine.commands.check import check
from airflow_provider_pgddl.engine.job.context import Context
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.stages import swap
from airflow_provider_pgddl.engine.swapping.follow_ups import FollowedUp, follow_up
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle, execute
from tests.integration.resets import reset, structure
from tests.integration.rewritten_orders import ORDERS, TO_BIGINT, differing, dump, old_is_gone
from tests.integration.sessions import Underway, do, in_transaction, one, wait_for, waits

Make = Callable[..., Lifecycle]

# --- with no more rights than it takes --------------------------------------------------------------------------------

MINIMUM = """
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['minimum_owner', 'minimum_reader', 'minimum_mover'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
            EXECUTE format('CREATE ROLE %I LOGIN PASSWORD %L', wanted, 'minimum');
        END IF;
    END LOOP;
    EXECUTE format('GRANT CREATE ON DATABASE %I TO minimum_mover, minimum_owner', current_database());
END
$$;
REVOKE minimum_reader FROM minimum_mover;
GRANT minimum_owner TO minimum_mover;
CREATE SCHEMA works;
GRANT USAGE, CREATE ON SCHEMA works TO minimum_owner, minimum_mover;
GRANT USAGE ON SCHEMA works TO minimum_reader;
SET ROLE minimum_owner;
CREATE TABLE works.kinds (code text PRIMARY KEY);
CREATE FUNCTION works.look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TABLE works.items (
    id serial PRIMARY KEY, kind text REFERENCES works.kinds, n int, no int GENERATED ALWAYS AS IDENTITY,
    parent int REFERENCES works.items);
CREATE TABLE works.parts (item int REFERENCES works.items ON DELETE CASCADE);
CREATE INDEX ON works.items (n);
CREATE STATISTICS works.some ON kind, n FROM works.items;
CREATE TRIGGER look AFTER UPDATE ON works.items FOR EACH ROW EXECUTE FUNCTION works.look();
CREATE VIEW works.seen AS SELECT id, n FROM works.items;
CREATE FUNCTION works.first(works.items) RETURNS int LANGUAGE sql AS 'SELECT $1.n';
CREATE PUBLICATION minimum FOR TABLE works.items (id, n) WHERE (id > 0);
CREATE POLICY everybody ON works.kinds USING (EXISTS (SELECT FROM works.items));
COMMENT ON TABLE works.items IS 'items';
GRANT SELECT ON works.items TO minimum_reader WITH GRANT OPTION;
GRANT UPDATE (n) ON works.items TO PUBLIC;
GRANT USAGE ON SEQUENCE works.items_id_seq TO minimum_reader;
INSERT INTO works.kinds VALUES ('a');
INSERT INTO works.items (kind, n) SELECT 'a', n FROM generate_series(1, 50) n;
INSERT INTO works.parts SELECT id FROM works.items;
SET ROLE minimum_reader;
GRANT SELECT ON works.items TO PUBLIC;
RESET ROLE;
"""


def test_a_role_with_the_rights_that_preflight_asks_for_swaps_and_reverts(
    pg16: Cluster, database: Database, lifecycle: Make
) -> None:
    dsn = database(pg16)
    execute(dsn, MINIMUM)
    before, objects = dump(pg16, dsn), structure(dsn)
    do(dsn, "REVOKE CREATE ON SCHEMA works FROM minimum_owner")
    mover = make_conninfo(dsn, user="minimum_mover", password="minimum")
    alter = {"alter": ["ALTER COLUMN id TYPE bigint", "ALTER COLUMN n TYPE bigint"]}
    move = lifecycle(mover, rewrite={"works.items": alter}, capture={"ddl": "off"}, backfill={"workers": 1})

    def lacking() -> set[str]:
        return {f["fix"] for f in check(load_pipeline(move.content), mover, mover)["findings"]}

    lacked = lacking()
    assert lacked == {
        "GRANT CREATE ON SCHEMA works TO minimum_owner;", "GRANT minimum_reader TO minimum_mover;",
    }  # fmt: skip
    do(dsn, *lacked)
    assert lacking() == set()
    move.run_all(until="swap")
    changed = [line for line in differing(before, dump(pg16, dsn)) if "pgddl" not in line]
    assert sorted(changed) == [
        "+     id bigint NOT NULL", "+     n bigint",
        "-     AS integer", "-     id integer NOT NULL", "-     n integer",
    ]  # fmt: skip
    move.run("revert")
    reset(move)
    assert differing(before, dump(pg16, dsn)) == []
    assert diff_catalogs(objects, structure(dsn), ignore=["RI_ConstraintTrigger"]) == []
    do(dsn, "REVOKE minimum_reader FROM minimum_mover")


# --- beside others ----------------------------------------------------------------------------------------------------


def test_a_queued_alter_table_is_neither_overtaken_nor_waited_for_without_end(
    pg16: Cluster, database: Database, lifecycle: Make
) -> None:
    """pg_repack and whoever alters the table can wait for each other for good."""
    dsn = database(pg16)
    execute(dsn, ORDERS)
    move = lifecycle(dsn, rewrite={"public.orders": TO_BIGINT}, backfill={"workers": 1})
    move.run_all(until="verify")
    waiting = (
        "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted"
        " AND a.application_name LIKE 'pgddl:%%' AND a.datname = current_database()"
        " AND waitstart < now() - interval '2 s'"
    )
    with in_transaction(dsn, "SELECT count(*) FROM orders") as reader:
        with Underway(lambda: do(dsn, "ALTER TABLE orders ADD late int DEFAULT 7")) as altering:
            wait_for(lambda: waits(dsn, "AccessExclusiveLock", "public.orders"), altering)
            error = move.refused("swap", swap={"retries": 3}, ddl={"retry_for": "1s"})
            assert error.retryable
            assert not altering.over
            with Underway(lambda: move.run("swap")) as swapping:
                assert one(dsn, waiting) == 0
                reader.commit()
                altering.finish()
                swapping.finish()
    assert one(dsn, "SELECT count(*) FROM orders WHERE late = 7") == 60
    assert one(dsn, "SELECT pg_typeof(id)::text FROM orders LIMIT 1") == "bigint"
    assert old_is_gone(move)


def test_a_swap_that_is_killed_right_behind_its_commit_is_taken_back_or_finished(
    pg18: Cluster, database: Database, lifecycle: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = database(pg18)
    execute(dsn, ORDERS + "ALTER TABLE customers ADD o int CONSTRAINT to_orders REFERENCES orders;")
    before = [line for line in structure(dsn) if "RI_ConstraintTrigger" not in line]
    move = lifecycle(dsn, rewrite={"public.orders": TO_BIGINT}, backfill={"workers": 1})

    class Killed(BaseException):
        pass

    def die(context: Context) -> FollowedUp:
        if context.row().cut_over_at is not None:
            raise Killed
        return follow_up(context)  # where a revert was killed

    added = []
    for then in ("revert", "swap"):
        move.run_all(until="verify", after="schema_sync" if added else None)
        with monkeypatch.context() as dying:
            dying.setattr(swap, "follow_up", die)
            with pytest.raises(Killed):
                move.run("swap")
        assert one(dsn, "SELECT pg_typeof(id)::text FROM orders LIMIT 1") == "bigint"
        added.append(1000 + len(added))
        do(dsn, f"INSERT INTO orders VALUES ({added[-1]}, 'behind it')", f"DELETE FROM orders WHERE id = {len(added)}")
        do(dsn, f"INSERT INTO customers VALUES ({added[-1]}, 'x', {added[-1]})")
        assert "has not been finished" in move.refused("cleanup").what
        assert move.run(then).state == "done"
        assert move.on_source("SELECT id FROM orders WHERE id > 60 OR id < 4 ORDER BY 1") == [
            *((n,) for n in range(1 + len(added), 4)), *((n,) for n in added)
        ]  # fmt: skip
        assert one(dsn, "SELECT bool_and(convalidated) FROM pg_constraint WHERE contype = 'f'") is True
        if then == "revert":
            assert diff_catalogs(before, structure(dsn), ignore=["RI_ConstraintTrigger", "pgddl"]) == []
    assert old_is_gone(move)


def test_bloat_goes_and_sequences_go_on(pg18: Cluster, database: Database, lifecycle: Make) -> None:
    dsn = database(pg18)
    identities = {
        "up": "INCREMENT 3 CACHE 2", "down": "START -1 INCREMENT -2 MINVALUE -9000000 MAXVALUE -1", "fresh": "START 50",
        "round": "MINVALUE 1 MAXVALUE 500 CYCLE", "short": "MAXVALUE 1210",
    }  # fmt: skip
    columns = ", ".join(f"{n} int GENERATED BY DEFAULT AS IDENTITY ({o})" for n, o in identities.items())
    do(
        dsn,
        f"CREATE TABLE t (id serial PRIMARY KEY, unused serial, {columns}, body text)",
        "INSERT INTO t (unused, fresh, body) SELECT 0, 0, repeat('x', 900) FROM generate_series(1, 1200)",
        "DELETE FROM t WHERE id % 50 <> 0",
    )
    position = "SELECT last_value FROM t_{}_seq"
    last = {name: one(dsn, position.format(name)) for name in identities}
    size = one(dsn, "SELECT pg_table_size('t') + pg_indexes_size('t')")
    move = lifecycle(dsn, rewrite={"public.t": {}}, backfill={"workers": 1})
    move.run_all()
    assert one(dsn, "SELECT count(*) FROM t") == 24
    assert one(dsn, "SELECT pg_table_size('t') + pg_indexes_size('t')") < size / 5
    drawn = {name: one(dsn, f"SELECT nextval('t_{name}_seq')") for name in ("id", "unused", *identities)}
    assert (drawn["id"], drawn["unused"]) == (1201, 1)
    assert (drawn["round"], drawn["short"]) == (last["round"] + 1, last["short"] + 1), "as little as there is left"
    assert drawn["up"] > last["up"]
    assert drawn["up"] % 3 == last["up"] % 3
    assert drawn["down"] < last["down"]
    assert drawn["fresh"] >= last["fresh"]
