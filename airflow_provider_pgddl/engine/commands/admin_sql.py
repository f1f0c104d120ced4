"""check --admin-sql: what an administrator runs once, so that the pipeline's role need be no superuser: rights, and
the core set with its event triggers. Reads only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from psycopg import sql

from airflow_provider_pgddl.engine.capture import granted
from airflow_provider_pgddl.engine.journal import migrations
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.selection import matches
from airflow_provider_pgddl.engine.preflight.facts import Facts, Side
from airflow_provider_pgddl.engine.preflight.findings import Finding
from airflow_provider_pgddl.engine.server import catalog
from airflow_provider_pgddl.engine.server.connect import Session, connect
from airflow_provider_pgddl.engine.sql import queries

# What a finding's fix says of rights and roles; all else is no administrator's.
_OF_RIGHTS = ("GRANT ", "ALTER ROLE ", "CREATE ROLE ", "CREATE EXTENSION ", "CREATE SCHEMA ")
# Made by every table of the set that a pipeline's role works with.
_GRANTS = """
GRANT USAGE, CREATE ON SCHEMA pgddl TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON pgddl.captures, pgddl.captured, pgddl.exceptions TO {role};
GRANT SELECT, DELETE ON pgddl.ddl_queue, pgddl.ddl_hold TO {role};
GRANT SELECT ON pgddl.ddl_token, pgddl.migrations TO {role};
GRANT SELECT, INSERT, DELETE ON pgddl.fence_passes TO {role};
GRANT EXECUTE ON FUNCTION pgddl.pass_fences(), pgddl.return_passes() TO {role};
"""
# Functions that our event triggers call where they are there: nobody else may make them.
_NO_IDENTITIES = """
CREATE FUNCTION pgddl.identify_relations(relations oid[]) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION pgddl.forget_relations(relations oid[]) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION pgddl.with_identities(described jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
"""
_DROP_NO_IDENTITIES = """
DROP FUNCTION IF EXISTS pgddl.identify_relations(oid[]), pgddl.forget_relations(oid[]), pgddl.with_identities(jsonb);
"""
_HERS = """
DO $$
BEGIN
    IF NOT (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user) THEN
        RAISE 'run this as a superuser';
    ELSIF EXISTS (SELECT FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_roles r ON r.oid = n.nspowner
                  WHERE n.nspname = 'pgddl' AND NOT r.rolsuper) THEN
        RAISE 'schema pgddl belongs to a role that is no superuser' USING HINT = 'pgddl reset its pipelines first';
    END IF;
END
$$;
"""
_UNUSED = """
DO $$
BEGIN
    IF EXISTS (SELECT FROM pgddl.captures) THEN
        RAISE 'pipelines capture here' USING HINT = 'run their cleanup, or pgddl reset, first';
    END IF;
END
$$;
"""
_HANDED_OVER = """
DO $$
DECLARE relation regclass;
BEGIN
    FOR relation IN
        SELECT c.oid FROM pg_catalog.pg_class c
        WHERE c.relnamespace = 'pgddl'::pg_catalog.regnamespace AND c.relkind IN ('r', 'S')
          AND c.relname NOT IN ({ours})
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d  -- which goes with its table
                          WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid
                            AND d.deptype IN ('a', 'i'))
    LOOP
        EXECUTE pg_catalog.format('ALTER TABLE %s OWNER TO {role}', relation);
    END LOOP;
END
$$;
"""


def admin_sql(pipeline: Pipeline, source_dsn: str, target_dsn: str, *, undo: bool = False) -> str:
    """One script for psql, a part a server, of what is missing, or with `undo` of what takes it away again. Nothing
    but a comment where nothing is."""
    from airflow_provider_pgddl.engine.preflight import preflight

    name = pipeline.pipeline
    with (
        connect(source_dsn, purpose="check", pipeline=name) as source,
        connect(target_dsn, purpose="check", pipeline=name) as target,
    ):
        selection = matches(pipeline, catalog.table_names(source), partitions=catalog.partitions(source))
        sides = [Side("source", source), *([] if pipeline.in_place else [Side("target", target)])]
        if undo:
            parts = [_undo_part(pipeline, side, [*selection.rows]) for side in sides]
        else:
            findings = preflight(pipeline, source, target, selection.rows)
            parts = [_part(pipeline, side, findings) for side in sides]
    return "\n".join(parts)


def _heading(side: Side, what: str) -> str:
    info = side.conn.info
    return (
        f"-- pgddl, the {side.where}: database {side.server['database']} on {info.host}:{info.port}\n"
        f"-- {what}\n"
    )  # fmt: skip


def _part(pipeline: Pipeline, side: Side, findings: Sequence[Finding]) -> str:
    mine = [f for f in findings if f.where == side.where and f.severity == "error"]
    lines = [line for f in mine for line in (f.fix or "").splitlines() if line.startswith(_OF_RIGHTS)]
    lines = [line for line in lines if not _comes_with_membership(side, line, lines)]
    sets = _may_have_sets(pipeline, side) and any(f.code == "event_triggers" for f in mine)
    by_slot = "wal" in (pipeline.capture.rows, pipeline.capture.ddl)
    if sets and side.where == "source" and not (pipeline.in_place or by_slot):
        # The one schema that would be made there is in the sets.
        lines = [line for line in lines if not line.startswith("GRANT CREATE ON DATABASE ")]
    if not (lines or sets):
        return _heading(side, f"nothing is missing for role {side.server['role']}")
    body = "".join(f"{line}\n" for line in dict.fromkeys(lines))
    if sets:
        body = "".join([*_sets(pipeline, side), *([body] if body else [])])
    what = f"read it, and run it once as a superuser, with psql: it gives role {side.server['role']} what it lacks"
    return f"{_heading(side, what)}BEGIN;\nSET LOCAL search_path = '';\n{body}COMMIT;\n"


def _may_have_sets(pipeline: Pipeline, side: Side) -> bool:
    """With a way back either server is a source in its turn."""
    return side.where == "source" or pipeline.swap.way_back is not None


def _has_journal(pipeline: Pipeline) -> bool:
    """Whether a server with the core set has a journal as well."""
    return pipeline.in_place or pipeline.swap.way_back is not None


def _comes_with_membership(side: Side, line: str, lines: Sequence[str]) -> bool:
    """Whether a role that ours is to become a member of has that right already."""
    found = re.fullmatch(r"GRANT (USAGE|SELECT) ON (SCHEMA |SEQUENCE |)(.+) TO \S+;", line)
    if found is None:
        return False
    grants = (re.fullmatch(r"GRANT (\S+) TO \S+;", other) for other in lines)
    roles = [grant[1] for grant in grants if grant is not None]
    kind = {"SCHEMA ": "schema", "SEQUENCE ": "sequence", "": "table"}[found[2]]
    return side.rows("any_role_may", roles=roles, kind=kind, name=found[3], privilege=found[1]) == [(True,)]


def _sets(pipeline: Pipeline, side: Side) -> Iterator[str]:
    """The core set as its owner makes it, with the event triggers; the journal's too where it is to be there, for one
    ledger is in the schema of both."""
    conn, q = side.conn, queries("migrations")
    yield _HERS
    if not granted.schema_exists(conn):
        bootstrap = q["bootstrap"].replace("CREATE SCHEMA IF NOT EXISTS", "CREATE SCHEMA")
        yield f"{bootstrap};\n"
    identities = pipeline.capture.identities
    yield from _ups(conn, "core")
    yield _DROP_NO_IDENTITIES if identities else ""
    if identities:
        yield from _ups(conn, "injector")
    elif not migrations.state(conn, "injector")["applied"]:
        yield _NO_IDENTITIES.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
    yield f"{queries('ddl_log')['english_context']};\n"
    if not granted.known_event_triggers(conn):
        yield f"{queries('ddl_log')['event_triggers']};\n"
    yield _GRANTS.replace("{role}", side.role)
    if identities:
        yield f"GRANT SELECT ON pgddl.table_identities, pgddl.column_identities TO {side.role};\n"
        yield "ALTER FUNCTION pgddl.identify_relations(oid[]) SECURITY DEFINER;\n"
    if _has_journal(pipeline):
        yield from _ups(conn, "journal")
        yield _hand_over(conn, side.role)


def _ups(conn: Session, set_name: str) -> Iterator[str]:
    pending = migrations.state(conn, set_name)["pending"]
    for m in migrations.migrations(set_name):
        if m.version in pending:
            values = sql.SQL(", ").join(sql.Literal(v) for v in (m.set_name, m.version, m.name, m.checksum, m.down))
            yield f"\n{m.up.rstrip().rstrip(';')};\n"
            insert = sql.SQL("INSERT INTO pgddl.migrations (set_name, version, name, checksum, down) VALUES ({});\n")
            yield insert.format(values).as_string(conn)


def _hand_over(conn: Session, role: str) -> str:
    """The journal's tables are the pipeline's own: nothing of the core set reads them."""
    ours = sql.SQL(", ").join(map(sql.Literal, granted.CORE_TABLES)).as_string(conn)
    return _HANDED_OVER.replace("{ours}", ours).replace("{role}", role.replace("%", "%%").replace("'", "''"))


def _undo_part(pipeline: Pipeline, side: Side, tables: Sequence[tuple[str, str]]) -> str:
    body = ""
    if _may_have_sets(pipeline, side) and granted.is_granted(side.conn):
        body = _UNUSED
        for name, _ in granted.known_event_triggers(side.conn):
            body += f"DROP EVENT TRIGGER {name};\n"
        for set_name in ("journal", "injector", "core") if _has_journal(pipeline) else ("injector", "core"):
            applied = migrations.state(side.conn, set_name)["applied"]
            downs = [m.down for m in reversed(migrations.migrations(set_name)) if m.version in applied]
            body += "".join(f"\n{down.rstrip().rstrip(';')};\n" for down in downs)
        body += f"{_DROP_NO_IDENTITIES}DROP TABLE pgddl.migrations;\nDROP SCHEMA pgddl;\n"
    body += "".join(f"{line}\n" for line in _revokes(Facts(pipeline, [side], tables), side))
    if not body:
        return _heading(side, f"role {side.server['role']} has nothing that could be taken away")
    what = f"what role {side.server['role']} has been given and this pipeline uses: leave in what it needs elsewhere"
    return f"{_heading(side, what)}BEGIN;\nSET LOCAL search_path = '';\n{body}COMMIT;\n"


def _revokes(facts: Facts, side: Side) -> Iterator[str]:
    for statement, name in side.rows("given", owners=sorted({relation.owner for relation in facts.relations})):
        quoted = side.name(name) if name else ""
        yield statement.format(name=quoted, role=side.role, database=side.name(side.server["database"]))
