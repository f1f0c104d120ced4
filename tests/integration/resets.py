"""A reset, and all that a database has: its structure and its rows."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_pgddl.demo.compare import catalog_lines, user_tables
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from tests.integration.lifecycle import Lifecycle

# Everything in a database that has no schema that catalog_lines looks at, by what Postgres calls it.
OBJECTS = """
SELECT DISTINCT i.type || ' ' || i.identity
  FROM pg_depend d CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, d.objsubid) i
 WHERE d.objid >= 16384 AND i.type NOT LIKE 'toast%%' AND i.identity NOT LIKE 'pg_toast%%'
UNION SELECT concat('owner of ', nspname, ' ', nspowner::regrole, nspacl) FROM pg_namespace WHERE nspname !~ '^pg_t'
UNION SELECT concat('default ', defaclrole::regrole, defaclnamespace, defaclobjtype, defaclacl) FROM pg_default_acl
UNION SELECT 'extension ' || extname FROM pg_extension
UNION SELECT 'comment on ' || i.type || ' ' || i.identity || ': ' || s.description
  FROM pg_description s CROSS JOIN LATERAL pg_identify_object(s.classoid, s.objoid, s.objsubid) i
 WHERE s.objoid >= 16384 OR i.type = 'schema'
"""


def structure(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as conn:
        objects = [line for (line,) in conn.execute(OBJECTS)]
    return [*catalog_lines(dsn), *objects]


def reset(move: Lifecycle, tables: list[str] | None = None) -> list[str]:
    done = stages.reset(load_pipeline(move.content), move.source, move.target, tables)
    return list(done["dropped"])


def rows_of(dsn: str) -> dict[tuple[str, str], Any]:
    """A digest of each table's rows."""
    digest = sql.SQL("SELECT coalesce(sum(hashtextextended(t::text, 0)), 0), count(*) FROM {} t")
    with psycopg.connect(dsn) as conn:
        return {name: conn.execute(digest.format(sql.Identifier(*name))).fetchone() for name in user_tables(conn)}
