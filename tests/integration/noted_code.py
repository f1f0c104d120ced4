"""A table of Mallory's whose code leaves a line that says as whom it ran."""

from __future__ import annotations

import psycopg
from psycopg.conninfo import make_conninfo

from tests.integration.lifecycle import execute

ROLE = """
DO $$ BEGIN CREATE ROLE mallory LOGIN PASSWORD 'mallory'; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
"""
# What runs `m.note()` leaves a line that says as whom.
SCHEMA = """
CREATE SCHEMA m AUTHORIZATION mallory;
SET ROLE mallory;
CREATE TABLE m.seen (who text);
GRANT INSERT ON m.seen TO PUBLIC;
CREATE FUNCTION m.note() RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO m.seen VALUES (current_user);
    RETURN true;
END $$;
CREATE FUNCTION m.evil(anyelement) RETURNS bool LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN m.note(); END $$;
CREATE FUNCTION m.fired() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM m.note(); RETURN NULL; END $$;
CREATE TABLE m.t (id int PRIMARY KEY, note text);
INSERT INTO m.t SELECT i, 't' || i FROM generate_series(1, 50) i;
RESET ROLE;
"""


def as_mallory(dsn: str, statements: str) -> None:
    execute(make_conninfo(dsn, user="mallory", password="mallory"), statements)


def others(dsn: str) -> list[str]:
    """Who but mallory has run code of hers."""
    with psycopg.connect(dsn) as conn:
        return [who for (who,) in conn.execute("SELECT DISTINCT who FROM m.seen WHERE who <> 'mallory'").fetchall()]
