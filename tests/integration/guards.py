"""Guards of `engine/rights`: what is attempted, how a guard is taken out, and whether that makes the difference."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest

from airflow_provider_pgddl.engine.errors import PgddlError
from airflow_provider_pgddl.engine.model.plan import Keepers, Plan, make_plan
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session
from tests.integration.sessions import do

Attempt = Callable[[str, Session], bool | None]
Out = Callable[[pytest.MonkeyPatch, Session], None]

# What runs m.f or n.f in a session of ours as another than its author moves a sequence, which no rollback takes back.
GROUND = """
DO $$ BEGIN
    IF to_regrole('c28_owner') IS NULL THEN CREATE ROLE c28_owner; END IF;
    IF to_regrole('c28_other') IS NULL THEN CREATE ROLE c28_other; END IF;
    IF to_regrole('c28_mighty') IS NULL THEN CREATE ROLE c28_mighty IN ROLE pg_read_server_files; END IF;
END $$;
CREATE SCHEMA m AUTHORIZATION c28_owner;
CREATE SCHEMA n AUTHORIZATION c28_other;
CREATE SCHEMA fresh;
CREATE SCHEMA pgddl_copy_m;
GRANT USAGE, CREATE ON SCHEMA pgddl_copy_m TO c28_owner;
GRANT USAGE, CREATE ON SCHEMA m TO c28_mighty;
GRANT USAGE ON SCHEMA n TO PUBLIC;
CREATE SEQUENCE public.ran;
GRANT ALL ON SEQUENCE public.ran TO PUBLIC;
SET ROLE c28_other;
CREATE FUNCTION n.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN
    IF current_user <> 'c28_other' AND current_setting('application_name') LIKE 'pgddl%' THEN
        PERFORM nextval('public.ran');
    END IF;
    RETURN $1;
END $$;
SET ROLE c28_owner;
CREATE FUNCTION m.f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN
    IF current_user <> 'c28_owner' AND current_setting('application_name') LIKE 'pgddl%' THEN
        PERFORM nextval('public.ran');
    END IF;
    RETURN $1;
END $$;
CREATE FUNCTION m.fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM m.f(1); RETURN NULL; END';
CREATE TABLE m.t (id int PRIMARY KEY, a int);
INSERT INTO m.t SELECT i, i FROM generate_series(1, 20) i;
"""


@dataclass(frozen=True)
class Guard:
    attempt: Attempt
    out: Out


def plan(conn: Session, schema: str = "m", name: str = "t", copy: str = "") -> Plan:
    oid = catalog.oid_of(conn, schema, name)
    assert oid is not None
    made = make_plan(catalog.describe(conn, [oid])[oid], copy_schema=copy or schema)
    return replace(made, keepers=Keepers("c28_owner", "c28_owner"))


def run_as_owner(dsn: str, *statements: str) -> None:
    do(dsn, "SET ROLE c28_owner", *statements)


def if_not_kept_out(dsn: str, *statements: str) -> None:
    """By the owner, if no lock of ours is in the way."""
    with suppress(psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
        run_as_owner(dsn, "SET statement_timeout = '300ms'", *statements)


def instead(module: Any, name: str, gives: Any) -> Out:
    def out(patch: pytest.MonkeyPatch, _: Session) -> None:
        patch.setattr(module, name, lambda *_: gives)

    return out


def gains(guard: Guard, dsn: str, conn: Session, monkeypatch: pytest.MonkeyPatch, *, out: bool) -> tuple[bool, object]:
    """Whether the attempt gains something, and what it has ended with."""
    if out:
        guard.out(monkeypatch, conn)
    gained: bool | None = False
    said = None
    try:
        gained = guard.attempt(dsn, conn)
    except (PgddlError, psycopg.Error) as error:
        said = error
    monkeypatch.undo()
    with psycopg.connect(dsn) as admin:
        ran = admin.execute("SELECT is_called FROM public.ran").fetchone() == (True,)
    return bool(gained) or ran, said
