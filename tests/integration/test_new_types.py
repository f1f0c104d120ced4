"""What the new types of a rewrite would break is found before anything is moved, and nobody's code runs for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.errors import EXIT_REFUSED, PreflightRefused
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle
from tests.integration.sessions import do, in_transaction, one

# Everything with `text` in its name is for functions of integer only, and cannot be made once id is bigint.
SCHEMA = """
    CREATE SCHEMA m;
    CREATE FUNCTION m.b(text, int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT $2 > 0';
    CREATE FUNCTION m.any_number(text, bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT $2 > 0';
    CREATE TABLE m.t (id int PRIMARY KEY, name text, part int);
    CREATE TABLE m.other (id int PRIMARY KEY, "Note" varchar(3) COLLATE "C");
    CREATE TABLE m.keyless (id int);
    CREATE POLICY fine ON m.keyless USING (id IN (SELECT id FROM m.t));
    CREATE POLICY rls ON m.t USING (m.b('rls', id));
    CREATE POLICY fine ON m.t USING (m.any_number('rls', id)) WITH CHECK (m.b('rls', part));
    CREATE TRIGGER guard BEFORE UPDATE ON m.t FOR EACH ROW WHEN (m.b('x', old.id))
        EXECUTE FUNCTION suppress_redundant_updates_trigger();
    CREATE TRIGGER fine BEFORE UPDATE OF id, name ON m.t FOR EACH ROW WHEN (new.id > old.part)
        EXECUTE FUNCTION suppress_redundant_updates_trigger();
    CREATE RULE ruled AS ON UPDATE TO m.t WHERE m.b('x', new.id) DO ALSO NOTHING;
    CREATE RULE fine AS ON UPDATE TO m.t WHERE new.id = 7 DO ALSO DELETE FROM m.other WHERE id = new.id;
    CREATE INDEX by_b ON m.t (m.b('x', id));
    CREATE INDEX fine_index ON m.t ((id + 1), part) WHERE m.any_number('x', id);
    CREATE VIEW m.seen AS SELECT m.b('x', id) AS b FROM m.t;
    CREATE VIEW m.listed AS SELECT t.id, t.name, count(*) AS n FROM m.t JOIN m.other o USING (id) GROUP BY t.id;
    CREATE VIEW m.over AS SELECT f.id FROM m.listed f WHERE f.id IN (SELECT id FROM m.t);
    CREATE VIEW m.over_seen AS SELECT m.b('y', f.id) AS b FROM m.listed f;
    CREATE FUNCTION m.body(m.t) RETURNS int BEGIN ATOMIC SELECT count(*)::int FROM m.t WHERE t.id = $1.part; END;
    CREATE POLICY elsewhere ON m.other USING (EXISTS (SELECT FROM m.t WHERE m.b('x', t.id) AND t.id = other.id));
    CREATE POLICY fine ON m.other USING (EXISTS (SELECT FROM m.t WHERE t.id = other.id));
    INSERT INTO m.t VALUES (1, 'a', 2)
"""
BROKEN = {
    "policy rls", "trigger guard", "rule ruled", "index by_b", "VIEW m.seen", "VIEW m.over_seen",
    "POLICY elsewhere ON m.other USING",
}  # fmt: skip


def rewriting(alter: str) -> dict[str, Any]:
    return {"rewrite": {"m.t": {"alter": [alter]}}, "backfill": {"workers": 1}}


@pytest.fixture
def rewrite(pg18: Cluster, database: Database, lifecycle: Callable[..., Lifecycle]) -> Callable[..., Lifecycle]:
    dsn = database(pg18)
    do(dsn, SCHEMA)
    return lambda alter="ALTER COLUMN id TYPE bigint": lifecycle(dsn, **rewriting(alter))


def findings(move: Lifecycle) -> list[dict[str, Any]]:
    found = stages.check(load_pipeline(move.content), move.source, move.source)["findings"]
    return [f for f in found if f["severity"] == "error"]


def test_what_the_new_types_break_is_found_before_anything_is_moved(rewrite: Callable[..., Lifecycle]) -> None:
    move = rewrite()
    before = catalog_lines(move.source)
    found = findings(move)
    assert {f["what"].split(" cannot make ")[-1].split(" for the new")[0] for f in found} == BROKEN
    assert all("m.b(text, bigint) does not exist" in f["what"] for f in found)
    with pytest.raises(PreflightRefused, match="policy rls"):
        stages.plan(load_pipeline(move.content), move.source, move.source)
    assert catalog_lines(move.source) == before
    assert one(move.source, "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'pgddl%'") == 0
    no_type = rewrite("ALTER COLUMN id TYPE m.nothing")
    assert [f["what"] for f in findings(no_type)] == [
        'the swap cannot make the table for the new types: type "m.nothing" does not exist'
    ]
    do(move.source, *(f["fix"] for f in found if f["table"] == "m.t"))
    do(move.source, "DROP VIEW m.seen, m.over_seen", "DROP POLICY elsewhere ON m.other")
    assert findings(move) == []
    move.run_all(until="swap")
    assert one(move.source, "SELECT pg_typeof(id)::text FROM m.t") == "bigint"


KEYED = """
    CREATE SCHEMA m;
    CREATE TABLE m.t (id int PRIMARY KEY, at date NOT NULL, name text);
    CREATE VIEW m.listed AS SELECT t.id, t.name, count(*) AS n FROM m.t GROUP BY t.id;
    CREATE VIEW m.fine AS SELECT t.id, t.at, t.name, count(*) AS n FROM m.t GROUP BY t.id, t.at;
    CREATE MATERIALIZED VIEW m.kept AS SELECT t.name FROM m.t GROUP BY t.id;
    CREATE POLICY own ON m.t USING (EXISTS (SELECT t2.name FROM m.t t2 GROUP BY t2.id))
"""


def test_what_the_key_of_a_partitioned_table_breaks_is_found_as_well(
    pg18: Cluster, database: Database, lifecycle: Callable[..., Lifecycle]
) -> None:
    dsn = database(pg18)
    do(dsn, KEYED)
    by = {"m.t": {"partition_by": {"column": "at", "range": "month"}}}
    move = lifecycle(dsn, rewrite=by, backfill={"workers": 1}, swap={"recreate_materialized_views": True})
    before = catalog_lines(dsn)
    found = findings(move)
    assert {f["what"].split(" cannot make ")[-1].split(" for the new key")[0] for f in found} == {
        "VIEW m.listed", "MATERIALIZED VIEW m.kept USING heap", "policy own",
    }  # fmt: skip
    assert catalog_lines(dsn) == before
    do(dsn, "DROP VIEW m.listed", "DROP MATERIALIZED VIEW m.kept", "DROP POLICY own ON m.t")
    assert findings(move) == []
    move.run_all(until="swap")


PLAIN = """
    CREATE SCHEMA m;
    CREATE TABLE m.t (id int PRIMARY KEY, at date NOT NULL, UNIQUE (id, at));
    CREATE TABLE m.other (id int PRIMARY KEY);
    CREATE TABLE m.third (id int PRIMARY KEY);
    CREATE VIEW m.seen AS SELECT id FROM ONLY m.t;
    CREATE VIEW m.fine AS SELECT t.id FROM m.t, ONLY m.other;
    CREATE POLICY own ON m.t USING (EXISTS (SELECT FROM ONLY m.t t2));
    CREATE POLICY others ON m.other USING (EXISTS (SELECT FROM ONLY m.t));
    CREATE RULE ruled AS ON INSERT TO m.other DO ALSO DELETE FROM ONLY m.t;
    CREATE FUNCTION m.body() RETURNS void BEGIN ATOMIC UPDATE ONLY m.t SET id = id; END;
    CREATE RULE taken AS ON INSERT TO m.other DO ALSO
        INSERT INTO m.t VALUES (new.id, now()) ON CONFLICT (id) DO NOTHING;
    CREATE FUNCTION m.twice() RETURNS void BEGIN ATOMIC
        INSERT INTO m.t VALUES (1, now()) ON CONFLICT (id) DO NOTHING; INSERT INTO m.t VALUES (2, now()); END;
    CREATE FUNCTION m.fine() RETURNS void BEGIN ATOMIC
        INSERT INTO m.t VALUES (1, now()) ON CONFLICT (id, at) DO NOTHING;
        INSERT INTO m.third VALUES (1) ON CONFLICT (id) DO NOTHING; END
"""


def test_what_is_said_of_a_plain_table_is_refused_where_it_is_partitioned(
    pg18: Cluster, database: Database, lifecycle: Callable[..., Lifecycle]
) -> None:
    """It would be made, and find no row of the table, or no index."""
    dsn = database(pg18)
    do(dsn, PLAIN)
    assert findings(lifecycle(dsn, rewrite={"m.t": {}})) == []
    found = findings(lifecycle(dsn, rewrite={"m.t": {"partition_by": {"column": "at", "range": "month"}}}))
    assert {f["what"].split(" reads ONLY")[0].split(" has ON")[0] for f in found} == {
        "VIEW m.seen", "policy own", "POLICY others ON m.other USING", "RULE ruled", "FUNCTION m.body",
        "FUNCTION m.twice", "RULE taken",
    }  # fmt: skip


TYPED = """
    CREATE SCHEMA m;
    CREATE TABLE m.t (id int PRIMARY KEY, no int UNIQUE, code text UNIQUE, up int REFERENCES m.t);
    CREATE TABLE m.o (id int PRIMARY KEY, t int CONSTRAINT o_t REFERENCES m.t (no) ON DELETE CASCADE,
                      code text CONSTRAINT o_code REFERENCES m.t (code), late int);
    ALTER TABLE m.o ADD CONSTRAINT late FOREIGN KEY (late) REFERENCES m.t (no) NOT VALID;
    CREATE INDEX brin ON m.t USING brin (no int4_minmax_multi_ops) WHERE id > 1;
    CREATE INDEX fine ON m.t (no, id);
    CREATE PUBLICATION p FOR TABLE m.t WHERE (id > 5 AND no > 0) WITH (publish = 'insert');
    CREATE PUBLICATION q FOR TABLE m.t WHERE (id > 5)
"""


def test_foreign_keys_row_filters_and_operator_classes_that_new_types_do_not_go_with_are_found(
    pg18: Cluster, database: Database, lifecycle: Callable[..., Lifecycle]
) -> None:
    dsn = database(pg18)
    do(dsn, TYPED)
    before = catalog_lines(dsn)
    one_table = {"m.t": {"alter": ["ALTER COLUMN no TYPE text"]}}
    move = lifecycle(dsn, rewrite=one_table, backfill={"workers": 1})
    found = findings(move)
    told = {f["what"].split(" cannot make ")[-1].split(" for the new types")[0]: f["what"] for f in found}
    assert set(told) == {"foreign key o_t of m.o", "foreign key late of m.o", "index brin", "publication p"}
    assert 'Key columns "t" of the referencing table and "no" of the referenced' in told["foreign key o_t of m.o"]
    both = one_table | {"m.o": {"alter": ["ALTER COLUMN t TYPE text", "ALTER COLUMN late TYPE text"]}}
    left = findings(lifecycle(dsn, rewrite=both))
    assert {f["what"].split(" cannot make ")[-1].split(" for")[0] for f in left} == {"index brin", "publication p"}
    assert catalog_lines(dsn) == before
    do(dsn, *(f["fix"] for f in found))
    assert findings(move) == []
    move.run_all(until="swap")


LATE = "CREATE POLICY late ON m.t USING (m.b('late', id))"


@pytest.mark.parametrize("capture", [{"ddl": "queue"}, {"ddl": "off"}, {"rows": "direct_trigger"}], ids=str)
def test_what_comes_once_a_run_is_under_way_is_found_as_well(
    pg18: Cluster, database: Database, lifecycle: Callable[..., Lifecycle], capture: dict[str, str]
) -> None:
    """By check, and by the swap before it asks for a lock."""
    dsn = database(pg18)
    do(dsn, SCHEMA.partition("CREATE POLICY")[0])
    move = lifecycle(dsn, **rewriting("ALTER COLUMN id TYPE bigint"), capture=capture)
    move.run_all(until="backfill")
    assert findings(move) == []
    do(dsn, LATE)
    move.run_all(until="verify", after="backfill")
    before = catalog_lines(dsn)
    (found,) = findings(move)
    assert (found["code"], found["table"]) == ("new_types", "m.t") and "policy late" in found["what"]
    assert catalog_lines(dsn) == before
    with in_transaction(dsn, "SELECT FROM m.t"):  # whoever asked for a strong lock would wait for it
        refused = move.refused("swap", PreflightRefused)
    assert "policy late" in str(refused) and found["fix"] in str(refused) and refused.exit_code == EXIT_REFUSED
    assert "nothing has been touched" not in str(refused)
    do(dsn, found["fix"])
    if capture.get("ddl") == "off":
        move.run_all(until="verify", after="backfill")
    move.run_all(until="swap", after="verify")
    column = "SELECT atttypid::regtype::text FROM pg_attribute WHERE attrelid = 'm.t'::regclass AND attname = 'id'"
    assert one(dsn, column) == "bigint"
    do(dsn, "CREATE FUNCTION m.b(text, bigint) RETURNS boolean LANGUAGE sql RETURN true", LATE)
    assert findings(move) == [], "it has been swapped"


# Whoever evaluates a constant call of it leaves a trace that no rollback takes away.
CODE = """
    CREATE SCHEMA m AUTHORIZATION {owner};
    SET ROLE {owner};
    CREATE SEQUENCE m.ran;
    CREATE FUNCTION m.b(text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
        $$ BEGIN PERFORM nextval('m.ran'); RETURN true; END $$;
    CREATE DOMAIN m.checked AS bigint CHECK (m.b('x') AND VALUE > 0);
    CREATE DOMAIN m.word AS text CHECK (m.b('x'));
    CREATE TABLE m.t (id int PRIMARY KEY, part int, word m.word);
    CREATE POLICY p ON m.t USING (m.b('x') AND word <> 'a'::m.word);
    CREATE TRIGGER w BEFORE UPDATE ON m.t FOR EACH ROW WHEN (m.b('x') AND new.id = 7)
        EXECUTE FUNCTION suppress_redundant_updates_trigger();
    CREATE RULE r AS ON UPDATE TO m.t WHERE m.b('x') AND new.id = 1 DO ALSO NOTHING;
    CREATE VIEW m.v AS SELECT m.b('x') AS b, id, 'a'::m.word AS w FROM m.t WHERE m.b('x');
    CREATE VIEW m.literal AS SELECT id FROM m.t WHERE ARRAY[word] = '{{a}}'::m.word[];
    CREATE INDEX i ON m.t (part) WHERE m.b('x')
"""


@pytest.mark.parametrize("type_", ["bigint", "m.checked"])
def test_no_code_of_others_runs_to_find_it(
    pg18: Cluster, database: Database, lifecycle: Callable[..., Lifecycle], type_: str
) -> None:
    dsn, owner = database(pg18), f"mallory_{type_[:1]}"
    do(dsn, f"DROP ROLE IF EXISTS {owner}", f"CREATE ROLE {owner}")
    try:
        do(dsn, CODE.format(owner=owner))
        ran = one(dsn, "SELECT last_value FROM m.ran")
        move = lifecycle(dsn, **rewriting(f"ALTER COLUMN id TYPE {type_} USING id"))
        told = [f["what"] for f in findings(move) if f["code"] == "new_types"]
        assert len(told) == 1 and "VIEW m.literal" in told[0] and "wherever it is read" in told[0]
        assert one(dsn, "SELECT last_value FROM m.ran") == ran
    finally:
        do(dsn, f"DROP OWNED BY {owner} CASCADE", f"DROP ROLE {owner}")
