"""Other ways of migrating: by an ordinary role, table by table, with extensions, beside another pipeline, there and
back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, compare_sequences, diff_catalogs, differences
from airflow_provider_pgddl.engine.commands.check import check
from airflow_provider_pgddl.engine.commands.ddl import exceptions
from airflow_provider_pgddl.engine.commands.reset import reset
from airflow_provider_pgddl.engine.commands.status import status
from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle, execute, left_behind
from tests.integration.sessions import one

Lifecycles = Callable[..., Lifecycle]


# Two of the indexes are built only once both have been begun, whatever is said of one of them in between.
MEETING = """
CREATE SEQUENCE public.met;
CREATE FUNCTION public.meet(i integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF i = 1 AND current_setting('application_name') LIKE 'pgddl:%' THEN
        PERFORM nextval('public.met');
        FOR n IN 1..1000 LOOP
            EXIT WHEN pg_sequence_last_value('public.met') >= 2;
            PERFORM pg_sleep(0.02);
        END LOOP;
        ASSERT pg_sequence_last_value('public.met') >= 2, 'nobody came';
    END IF;
    RETURN i;
END $$;
CREATE TABLE public.t (id integer NOT NULL, x integer, v text);
INSERT INTO public.t SELECT i, i, repeat('v', 90) FROM generate_series(1, 20000) i;
CREATE INDEX first ON public.t (public.meet(id));
CREATE INDEX second ON public.t (public.meet(id), x);
ALTER TABLE public.t ADD PRIMARY KEY (id);
ALTER TABLE public.t ADD UNIQUE (x);
CREATE UNIQUE INDEX identity ON public.t (id, x);
ALTER TABLE public.t ALTER x SET NOT NULL, REPLICA IDENTITY USING INDEX identity, CLUSTER ON first;
"""


def test_an_ordinary_role_can_do_it(
    pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, lifecycle: Lifecycles
) -> None:
    dsns = []
    for dsn in (source_dsn, target_dsn):
        with psycopg.connect(dsn, autocommit=True) as conn:
            if conn.execute("SELECT FROM pg_roles WHERE rolname = 'pgddl_mover'").fetchone() is None:
                conn.execute("CREATE ROLE pgddl_mover LOGIN PASSWORD 'mover'")
            conn.execute(sql.SQL("ALTER DATABASE {} OWNER TO pgddl_mover").format(sql.Identifier(conn.info.dbname)))
        dsns.append(make_conninfo(dsn, user="pgddl_mover", password="mover"))
    execute(
        dsns[0],
        """
        CREATE SCHEMA s;
        CREATE TYPE s.mood AS ENUM ('sad', 'ok');
        CREATE TABLE s.a (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, m s.mood, n serial);
        CREATE TABLE s.b (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), a integer REFERENCES s.a);
        CREATE TABLE s.p (id integer, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
        CREATE TABLE s.p1 PARTITION OF s.p DEFAULT;
        CREATE INDEX ON s.b (a);
        CREATE VIEW s.v AS SELECT * FROM s.a;
        CREATE FUNCTION s.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
        CREATE TRIGGER t BEFORE UPDATE ON s.a FOR EACH ROW EXECUTE FUNCTION s.f();
        GRANT SELECT ON s.a TO PUBLIC;
        COMMENT ON TABLE s.b IS 'b';
        INSERT INTO s.a (m) SELECT 'ok' FROM generate_series(1, 1000);
        INSERT INTO s.b (a) SELECT id FROM s.a;
        INSERT INTO s.p SELECT i, '2024-01-01'::date + i FROM generate_series(1, 100) i;
        """,
    )
    structure = catalog_lines(source_dsn)
    # Event triggers take a superuser.
    move = lifecycle(*dsns, tables={"include": ["s.*"]}, capture={"ddl": "off"}, swap={"fence": "read_only"})
    move.run_all(until="backfill")
    execute(dsns[0], "UPDATE s.a SET m = 'sad' WHERE id < 50; TRUNCATE s.p; INSERT INTO s.p VALUES (1, '2024-01-01')")
    move.run_all(after="backfill")
    assert differences(source_dsn, target_dsn) == []
    assert compare_sequences(source_dsn, target_dsn) == []
    assert diff_catalogs(structure, catalog_lines(target_dsn)) == []


def test_tables_go_one_by_one_and_beside_each_other(source_dsn: str, target_dsn: str, lifecycle: Lifecycles) -> None:
    names = [f"public.t{i}" for i in range(4)]
    for name in names:
        execute(source_dsn, f"CREATE TABLE {name} (id integer PRIMARY KEY, x integer UNIQUE)")
        execute(source_dsn, f"INSERT INTO {name} SELECT i, i FROM generate_series(1, 2000) i")
    move = lifecycle(
        source_dsn, target_dsn, tables={"include": ["*.*"]}, backfill={"chunk_bytes": "32kB", "workers": 1}
    )
    move.run_all(until="snapshot")

    def one(name: str) -> None:
        for stage in ("backfill", "schema_sync", "replay", "verify"):
            result = move.run(stage, tables=[name])
            assert set(result.tables) == {name}
            assert result.state == "done" or stage == "replay"
            execute(source_dsn, f"UPDATE {name} SET x = -x WHERE id % 100 = 0; DELETE FROM {name} WHERE id % 100 = 1")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, names))
    assert "verif" in str(move.run_all(after="replay", until="verify"))
    move.run_all(after="verify")
    assert differences(source_dsn, target_dsn) == []
    assert left_behind(source_dsn) == []


def test_indexes_of_one_table_are_built_beside_each_other(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles
) -> None:
    execute(source_dsn, MEETING)
    structure = catalog_lines(source_dsn)
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, backfill={"workers": 2})
    move.run_all()
    assert diff_catalogs(structure, catalog_lines(target_dsn)) == []
    execute(target_dsn, "SELECT 1 / count(*) FROM pg_stats WHERE tablename = 'first'")  # those of an expression


def test_what_refers_to_a_table_that_stays_behind_is_noted_not_lost_track_of(
    source_dsn: str, target_dsn: str, lifecycle: Lifecycles
) -> None:
    execute(
        source_dsn,
        """
        CREATE TABLE stays (id integer PRIMARY KEY);
        CREATE TABLE goes (id integer PRIMARY KEY, s integer REFERENCES stays, d integer);
        CREATE VIEW both_of_them AS SELECT * FROM stays JOIN goes USING (id);
        CREATE VIEW on_view AS SELECT count(*) FROM both_of_them;
        CREATE VIEW goes_only AS SELECT * FROM goes;
        CREATE FUNCTION of_stays(stays) RETURNS integer LANGUAGE sql AS 'SELECT $1.id';
        CREATE SEQUENCE stays_seq OWNED BY stays.id;
        CREATE TABLE also_goes (id integer PRIMARY KEY DEFAULT nextval('stays_seq'));
        INSERT INTO stays VALUES (1);
        INSERT INTO goes VALUES (1, 1, 1);
        INSERT INTO also_goes DEFAULT VALUES;
        """,
    )
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"], "exclude": ["public.stays"]})
    move.run_all()
    assert differences(source_dsn, target_dsn, [("public", "goes"), ("public", "also_goes")]) == []
    assert move.journal("SELECT to_regclass('goes_only') IS NULL, to_regclass('on_view') IS NULL") == [(False, True)]
    skipped = move.journal(
        "SELECT DISTINCT event ->> 'name', note IS NULL FROM pgddl.ddl_events WHERE status = 'skipped' ORDER BY 1"
    )
    assert skipped == [(n, False) for n in ("both_of_them", "goes_s_fkey", "of_stays", "on_view")]


def test_extensions_come_along(pg16: Cluster, source_dsn: str, target_dsn: str, lifecycle: Lifecycles) -> None:
    execute(
        source_dsn,
        """
        CREATE SCHEMA ext;
        CREATE EXTENSION vector SCHEMA ext;
        CREATE TABLE embedding (id integer PRIMARY KEY, v ext.vector(3), vs ext.vector[], h ext.halfvec(2));
        CREATE TABLE by_vector (v ext.vector(2) PRIMARY KEY, x integer);
        CREATE INDEX ON embedding USING hnsw (v ext.vector_l2_ops);
        INSERT INTO embedding SELECT i, format('[%s,1,1e-3]', i)::ext.vector, ARRAY[format('[%s]', i)]::ext.vector[],
            '[1,2]' FROM generate_series(1, 500) i;
        INSERT INTO by_vector SELECT format('[%s,1]', i)::ext.vector, i FROM generate_series(1, 100) i;
        """,
    )
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]}, swap={"fence": "read_only"})
    structure = catalog_lines(source_dsn)
    move.run_all(until="snapshot")
    execute(source_dsn, "UPDATE by_vector SET x = -x, v = v OPERATOR(ext.+) '[1000,0]' WHERE x % 3 = 0")
    move.run_all(after="snapshot")
    assert differences(source_dsn, target_dsn) == []
    assert diff_catalogs(structure, catalog_lines(target_dsn)) == []


def test_types_of_contrib_and_of_other_builds(pg15: Cluster, database: Database, lifecycle: Lifecycles) -> None:
    source, target = database(pg15), database(pg15)
    execute(
        source,
        """
        CREATE SCHEMA ext;
        CREATE EXTENSION citext SCHEMA ext; CREATE EXTENSION hstore SCHEMA ext; CREATE EXTENSION ltree SCHEMA ext;
        CREATE EXTENSION btree_gist SCHEMA ext; CREATE EXTENSION "uuid-ossp" SCHEMA ext; CREATE EXTENSION pg_trgm;
        CREATE TABLE person (mail ext.citext PRIMARY KEY, attributes ext.hstore, path ext.ltree, x xml, n integer);
        CREATE TABLE booking (id uuid PRIMARY KEY DEFAULT ext.uuid_generate_v4(), room integer, during tsrange,
            EXCLUDE USING gist (room ext.gist_int4_ops WITH OPERATOR(pg_catalog.=), during WITH &&));
        CREATE TABLE tree (path ext.ltree PRIMARY KEY, x integer);
        CREATE INDEX ON person USING gin (attributes);
        CREATE INDEX ON person USING gist (path);
        CREATE INDEX ON person USING gin ((mail::text) gin_trgm_ops);
        INSERT INTO person SELECT 'Some' || i || '@Example.org', 'a=>1, "b c"=>NULL', ('Top.A' || i)::ext.ltree,
            '<a b="c">&lt;</a>', i FROM generate_series(1, 300) i;
        INSERT INTO booking (room, during) SELECT i % 10, tsrange('2024-01-01'::timestamp + i * interval '1 h',
            '2024-01-01'::timestamp + (i + 1) * interval '1 h') FROM generate_series(1, 300) i;
        INSERT INTO tree SELECT ('Top.B' || i)::ext.ltree, i FROM generate_series(1, 100) i;
        """,
    )
    structure = catalog_lines(source)
    move = lifecycle(source, target, tables={"include": ["*.*"]}, swap={"fence": "read_only"})
    move.run_all(until="backfill")
    execute(source, "UPDATE person SET mail = upper(mail::text)::ext.citext, n = -n WHERE n % 2 = 0")
    execute(
        source,
        "DELETE FROM person WHERE n % 7 = 0; UPDATE booking SET during = NULL WHERE room = 3;"
        "DELETE FROM tree WHERE x < 9",
    )
    move.run_all(after="backfill")
    assert differences(source, target) == []
    assert diff_catalogs(structure, catalog_lines(target)) == []


def test_databases_may_have_any_name(pg16: Cluster, pg18: Cluster, database: Database, lifecycle: Lifecycles) -> None:
    source, target = (database(c, name=f'O\'Brien \\ "x"=%s {{0}} {c.version}') for c in (pg16, pg18))
    execute(source, "CREATE TABLE a (id integer PRIMARY KEY); INSERT INTO a VALUES (1)")
    lifecycle(source, target, tables={"include": ["*.*"]}).run_all()
    assert differences(source, target) == []


def test_two_pipelines_share_a_source(
    pg18: Cluster, source_dsn: str, target_dsn: str, database: Database, lifecycle: Lifecycles
) -> None:
    execute(source_dsn, "CREATE TABLE a (id integer PRIMARY KEY, n integer)")
    execute(
        source_dsn, "INSERT INTO a SELECT i, i FROM generate_series(1, 500) i; CREATE TABLE b (LIKE a INCLUDING ALL)"
    )
    other_dsn = database(pg18)
    one = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]})
    other = lifecycle(source_dsn, other_dsn, tables={"include": ["public.a"]})
    for stage in ("setup", "snapshot", "backfill", "schema_sync", "replay"):
        one.run(stage)
        other.run(stage)
        execute(source_dsn, "UPDATE a SET n = n + 1 WHERE id % 9 = 0; INSERT INTO b SELECT max(id) + 1, 1 FROM a")
        execute(source_dsn, "DELETE FROM b")
    one.run_all(after="replay")
    assert differences(source_dsn, target_dsn) == []
    execute(source_dsn, "UPDATE a SET n = n + 1 WHERE id % 7 = 0")
    other.run_all(after="replay", until="swap")
    assert differences(source_dsn, other_dsn, [("public", "a")]) == []
    assert "schema pgddl" in left_behind(source_dsn)
    other.run("cleanup")
    assert left_behind(source_dsn) == []


OF_OURS = """
    SELECT array_agg(p.proname::text ORDER BY p.proname)
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname LIKE 'pgddl%'
"""


@pytest.mark.parametrize("rows", ["change_log", "wal"])
def test_there_and_back_and_there_again(source_dsn: str, target_dsn: str, lifecycle: Lifecycles, rows: str) -> None:
    """After cleanup the source has the fence and nothing that captures, until it is taken down."""
    capture = {"rows": rows, "identities": True}

    def moved(here: str, there: str, table: str) -> Lifecycle:
        move = lifecycle(
            here, there, tables={"include": [f"public.{table}"]}, capture=capture, swap={"fence": "read_only"}
        )
        move.run_all(until="replay")
        execute(here, f"UPDATE {table} SET body = body || '!' WHERE id % 3 = 0")
        execute(here, f"ALTER TABLE {table} ADD {move.name} int")
        move.run_all(after="replay")
        return move

    def fenced(dsn: str, *moves: Lifecycle) -> None:
        tables = zip(moves, ("goods", "later"), strict=False)
        fences = {f"trigger pgddl_fence_{move.name} on {table}" for move, table in tables}
        assert set(left_behind(dsn)) == {"schema pgddl", *fences}
        assert one(dsn, OF_OURS) == ["fence"]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            execute(dsn, "DELETE FROM goods")

    execute(
        source_dsn,
        "CREATE TABLE goods (id int PRIMARY KEY, body text); CREATE TABLE later (LIKE goods INCLUDING ALL);"
        "INSERT INTO goods SELECT n, n FROM generate_series(1, 99) n; INSERT INTO later SELECT * FROM goods",
    )
    there = moved(source_dsn, target_dsn, "goods")
    fenced(source_dsn, there)
    # What looks at the source finds nothing to look at.
    pipeline = load_pipeline(there.content)
    assert there.run("cleanup").state == "nothing_to_do"
    assert status(pipeline, source_dsn, target_dsn)["changes_since_cut_over"] == 0
    with pytest.raises(UsageError, match="no DDL is captured"):
        exceptions(pipeline, source_dsn)
    assert check(pipeline, source_dsn, target_dsn)["migrations"][0]["applied"] == [1]
    fenced(source_dsn, there)
    # Another pipeline sets up beside the fence, and leaves it.
    later = moved(source_dsn, target_dsn, "later")
    fenced(source_dsn, there, later)
    reset(load_pipeline(later.content), source_dsn, target_dsn)
    fenced(source_dsn, there)
    reset(load_pipeline(there.content), source_dsn, target_dsn)
    assert left_behind(source_dsn) == []
    execute(source_dsn, "DROP TABLE goods")
    back = moved(target_dsn, source_dsn, "goods")
    fenced(target_dsn, back)
    reset(load_pipeline(back.content), target_dsn, source_dsn)
    execute(target_dsn, "DROP TABLE goods")
    again = moved(source_dsn, target_dsn, "goods")
    fenced(source_dsn, again)
    assert one(target_dsn, "SELECT array_agg(body ORDER BY id) FROM goods WHERE id < 5") == ["1", "2", "3!!!", "4"]
    assert differences(source_dsn, target_dsn) == []


def test_writes_of_every_kind_of_session_are_seen(source_dsn: str, target_dsn: str, lifecycle: Lifecycles) -> None:
    """As a subscriber, with an odd search_path, without rights on the log, prepared, by cascades, through views."""
    execute(
        source_dsn,
        """
        CREATE TABLE a (id integer PRIMARY KEY, n integer);
        CREATE TABLE b (id integer PRIMARY KEY, a integer REFERENCES a ON DELETE CASCADE ON UPDATE CASCADE);
        CREATE VIEW v AS SELECT * FROM a WHERE n < 1000;
        CREATE SCHEMA evil;
        CREATE FUNCTION evil.quote_ident(text) RETURNS text LANGUAGE sql AS 'SELECT NULL';
        CREATE ROLE pgddl_test_writer LOGIN PASSWORD 'writer';
        GRANT ALL ON a, b, v TO pgddl_test_writer;
        INSERT INTO a SELECT i, i FROM generate_series(1, 100) i;
        INSERT INTO b SELECT i, i FROM generate_series(1, 100) i;
        """,
    )
    move = lifecycle(source_dsn, target_dsn, tables={"include": ["*.*"]})
    move.run_all(until="replay")
    execute(
        source_dsn,
        "SET session_replication_role = replica; UPDATE a SET n = -1 WHERE id = 1; DELETE FROM b WHERE id = 1",
    )
    execute(
        source_dsn, "DELETE FROM a WHERE id = 2; UPDATE a SET id = 1003 WHERE id = 3; UPDATE v SET n = 7 WHERE id = 4"
    )
    execute(source_dsn, "SET search_path = evil, pg_catalog; UPDATE public.a SET n = 8 WHERE id = 5")
    execute(make_conninfo(source_dsn, user="pgddl_test_writer", password="writer"), "UPDATE a SET n = 9 WHERE id = 6")
    execute(
        source_dsn,
        "MERGE INTO a USING (VALUES (7), (2007)) s (id) ON a.id = s.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (s.id, 1)",
    )
    execute(source_dsn, "INSERT INTO a VALUES (8, 0), (2008, 0) ON CONFLICT (id) DO UPDATE SET n = 88")
    execute(
        source_dsn,
        "BEGIN; SAVEPOINT s; UPDATE a SET n = 11 WHERE id = 9; ROLLBACK TO s; UPDATE a SET n = 12 WHERE id = 10",
    )
    with psycopg.connect(source_dsn, autocommit=True) as conn:
        conn.execute("BEGIN")
        conn.execute("UPDATE a SET n = 10 WHERE id = 11")
        conn.execute("PREPARE TRANSACTION 'of_test_migrate'")
        move.run("replay")
        conn.execute("COMMIT PREPARED 'of_test_migrate'")
        with conn.cursor().copy("COPY a FROM STDIN") as copy:
            copy.write_row((3000, 1))
    move.run_all(after="schema_sync")
    assert differences(source_dsn, target_dsn) == []
