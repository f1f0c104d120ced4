"""reset after any stage leaves both databases as they were; of one table, all others as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import catalog_lines, diff_catalogs, user_tables
from airflow_provider_pgddl.engine import stages
from airflow_provider_pgddl.engine.pipeline import load_pipeline
from airflow_provider_pgddl.engine.stages import STAGES
from tests.integration.lifecycle import Lifecycle, left_behind, psql, wait_until
from tests.integration.test_dump import NASTY, make_roles
from tests.integration.test_migrate import EVERYTHING

SMALL = {"backfill": {"chunk_bytes": "32kB", "workers": 1}}

CHOSEN = {"include": ["*.*"], "schema_only": ["shop.virtual_key"]}

# Everything in a database that has no schema that catalog_lines looks at, by what Postgres calls it.
OBJECTS = """
SELECT DISTINCT i.type || ' ' || i.identity
  FROM pg_depend d CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, d.objsubid) i
 WHERE d.objid >= 16384 AND i.type NOT LIKE 'toast%%' AND i.identity NOT LIKE 'pg_toast%%'
UNION SELECT 'owner of ' || nspname || ' ' || nspowner::regrole || coalesce(' ' || nspacl::text, '') FROM pg_namespace
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


def run_until(move: Lifecycle, stage: str) -> None:
    for each in STAGES[: STAGES.index(stage) + 1]:
        assert not move.run(each).blocked


@pytest.mark.parametrize("stage", ["setup", "snapshot", "schema_sync", "verify"])
def test_a_migration_of_everything_is_undone(
    pg16: Cluster, pg18: Cluster, source_dsn: str, target_dsn: str, lifecycle: Callable[..., Lifecycle], stage: str
) -> None:
    for cluster in (pg16, pg18):
        make_roles(cluster)
    psql(pg16, source_dsn, NASTY.read_text(encoding="utf-8") + EVERYTHING)
    before, there, rows = structure(source_dsn), structure(target_dsn), rows_of(source_dsn)
    move = lifecycle(source_dsn, target_dsn, tables=CHOSEN, **SMALL)
    run_until(move, stage)
    reset(move)
    assert diff_catalogs(there, structure(target_dsn)) == []
    assert diff_catalogs(before, structure(source_dsn)) == []
    assert rows_of(source_dsn) == rows
    for dsn in (source_dsn, target_dsn):
        wait_until(lambda dsn=dsn: left_behind(dsn) == [])
