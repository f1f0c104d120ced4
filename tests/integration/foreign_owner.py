"""A table whose owner we do not trust, with functions of its owner's and of a third role's."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgddl.engine.server.connect import Session
from tests.integration.sessions import do

ROLES = """
DO $$ BEGIN
    IF to_regrole('c28_owner') IS NULL THEN CREATE ROLE c28_owner; END IF; -- other files have some of them
    IF to_regrole('c28_other') IS NULL THEN CREATE ROLE c28_other; END IF;
    IF to_regrole('c28_pipeline') IS NULL THEN
        CREATE ROLE c28_pipeline LOGIN PASSWORD '%s' IN ROLE c28_owner;
    END IF;
END $$;
CREATE SCHEMA m AUTHORIZATION c28_owner;
CREATE SCHEMA n AUTHORIZATION c28_other;
SET ROLE c28_other;
CREATE FUNCTION n.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $1; END';
GRANT USAGE ON SCHEMA n TO PUBLIC;
SET ROLE c28_owner;
CREATE FUNCTION m.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $1; END';
CREATE FUNCTION m.fine(text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN true; END';
CREATE TABLE m.t (id int PRIMARY KEY, a int);
INSERT INTO m.t SELECT i, i FROM generate_series(1, 20) i;
"""


def as_owner(dsn: str, *statements: str) -> None:
    do(dsn, "SET ROLE c28_owner", *statements)


def one_of(conn: Session, query: str) -> Any:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]
