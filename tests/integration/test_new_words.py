"""Names that are keywords of a newer grammar (C34): an older server prints them bare, and clients write them so."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.ddl.quoting import _BROUGHT, identifier
from tests.combinations import matrix
from tests.conftest import Database
from tests.integration.lifecycle import Lifecycle, execute

Lifecycles = Callable[..., Lifecycle]

# What 16 takes bare; 15 takes system_user as well.
BEFORE = """
CREATE TABLE words (id int PRIMARY KEY, json_value int CHECK (json_value > 0), merge_action text, json json,
                    {user} text, CHECK ({user} <> ''), EXCLUDE USING btree (merge_action WITH =));
CREATE FUNCTION f(json json) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE TYPE json_table AS (json_scalar int, {user} text);
CREATE VIEW json_query AS SELECT json_value AS json_exists, {user} FROM words WHERE json_value > 1;
INSERT INTO words VALUES (1, 2, 'a', '{{}}', 'me');
"""
AFTER = (
    "CREATE FUNCTION g(json json, OUT json_value int) LANGUAGE sql AS 'SELECT 1'",
    "ALTER TABLE words ADD json_exists json DEFAULT '{{}}', ADD json_object int, ADD CHECK ({user} <> 'x')",
    "CREATE TABLE merge_action (json_value int PRIMARY KEY, {user} json_table, CHECK (({user}).json_scalar > 0))",
    "CREATE VIEW json_scalar AS SELECT json_value, {user} FROM merge_action",
    "DO $$ BEGIN CREATE TABLE json_serialize (json json, {user} int PRIMARY KEY CHECK ({user} > 0)); END $$",
    "DO $$ BEGIN EXECUTE format('ALTER TABLE %s ADD CHECK ({user} <> %L)', 'words', 'y'); END $$",
    "CREATE TABLE json_query_2 AS SELECT 1 AS json_value, 2 AS {user}",
    "ALTER TABLE json_query_2 ADD PRIMARY KEY (json_value)",
    "ALTER TABLE words RENAME merge_action TO json_array",
    "DROP FUNCTION f(json json)",
    "INSERT INTO words (id, json_value, {user}) VALUES (2, 3, 'you')",
)

# Versions print the same definition with and without quotes.
FACTS = """
SELECT 'column', table_name || '.' || column_name, data_type FROM information_schema.columns
WHERE table_schema = 'public'
UNION ALL SELECT 'constraint', conname, replace(pg_get_constraintdef(c.oid), '"', '') FROM pg_constraint c
          WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
UNION ALL SELECT 'function', proname, proargnames::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT 'attribute', attname, format_type(atttypid, NULL) FROM pg_attribute
          WHERE attrelid = 'json_table'::regclass
ORDER BY 1, 2, 3
"""


@pytest.mark.parametrize("versions", matrix("16 to 18", "15 to 16", "15 to 18"))
def test_words_that_became_keywords_move_and_follow(
    pg15: Cluster, pg16: Cluster, pg18: Cluster, database: Database, lifecycle: Lifecycles, versions: str
) -> None:
    clusters = {15: pg15, 16: pg16, 18: pg18}
    older, newer = map(int, versions.split(" to "))
    source, target = database(clusters[older]), database(clusters[newer])
    user = "system_user" if older == 15 else '"system_user"'
    execute(source, BEFORE.format(user=user))
    move = lifecycle(source, target, tables={"include": ["public.*"]}, ddl={"scope": "everything"})
    move.run_all(until="schema_sync")
    with psycopg.connect(source, autocommit=True) as client:
        for statement in AFTER:
            client.execute(statement.format(user=user).encode())
    move.run_all(after="schema_sync", until="swap")
    assert move.on_source(FACTS) == move.journal(FACTS)
    assert differences(source, target) == []


@pytest.mark.parametrize("version", [15, 16, 18])
def test_the_words_are_those_of_the_servers(pg15: Cluster, pg16: Cluster, pg18: Cluster, version: int) -> None:
    with psycopg.connect({15: pg15, 16: pg16, 18: pg18}[version].conninfo()) as conn:
        known = {w for (w,) in conn.execute("SELECT word FROM pg_get_keywords() WHERE catcode <> 'U'")}
    since = {word for major, words in _BROUGHT.items() if major > version for word in words}
    assert not known & since
    with psycopg.connect(pg18.conninfo()) as conn:
        newest = {w for (w,) in conn.execute("SELECT word FROM pg_get_keywords() WHERE catcode <> 'U'")}
    assert newest - known == since
    assert all(identifier(word) != word for word in newest)
