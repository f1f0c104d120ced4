"""Airflow's own metadata, migrated by its own command while a pipeline follows it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_pgddl.demo.traffic import Connection, Operation
from tests.clients.conftest import Move, run_client, url
from tests.integration.lifecycle import execute, wait_until
from tests.integration.sessions import one
from tests.table_writers import TableWriters

# The oldest that a downgrade leads back to, and what runs of it were worth keeping.
OLD = "2.10.3"
RUNS = """
INSERT INTO dag (dag_id, is_paused, is_active, fileloc, schedule_interval, max_active_tasks,
                 has_task_concurrency_limits, has_import_errors, max_consecutive_failed_dag_runs, dag_display_name)
SELECT 'dag ' || d, d % 2 = 0, true, '/dags/' || d || '.py', '"@daily"', 16, false, false, 0, 'Nº ' || d
  FROM generate_series(1, 20) d;
INSERT INTO log_template (filename, elasticsearch_id, created_at) VALUES ('{{ ti.dag_id }}.log', 'x', now());
INSERT INTO dag_run (dag_id, run_id, execution_date, state, run_type, start_date, queued_at, conf, log_template_id,
                     clear_number, data_interval_start, data_interval_end)
SELECT 'dag ' || d, 'scheduled__' || r, '2024-01-01+00'::timestamptz + r * interval '1 day', 'success', 'scheduled',
       now(), now(), '\\x80057d942e'::bytea, 1, 0, '2024-01-01+00'::timestamptz + r * interval '1 day',
       '2024-01-02+00'::timestamptz + r * interval '1 day'
  FROM generate_series(1, 20) d, generate_series(1, 15) r;
INSERT INTO task_instance (task_id, dag_id, run_id, map_index, state, try_number, max_tries, pool, pool_slots, queue,
                           priority_weight, operator, executor_config, start_date, updated_at)
SELECT 'task_' || t, dag_id, run_id, CASE t WHEN 3 THEN 0 ELSE -1 END, 'success', t, 2, 'default_pool', 1, 'default', t,
       'BashOperator', '\\x80057d942e'::bytea, now(), now()
  FROM dag_run, generate_series(1, 4) t;
INSERT INTO rendered_task_instance_fields (dag_id, task_id, run_id, map_index, rendered_fields)
SELECT dag_id, task_id, run_id, map_index, '{"bash_command": "echo \\"\\""}'
  FROM task_instance WHERE task_id = 'task_2';
INSERT INTO task_reschedule (task_id, dag_id, run_id, map_index, try_number, start_date, end_date, duration,
                             reschedule_date)
SELECT task_id, dag_id, run_id, map_index, 1, now(), now(), 1, now() FROM task_instance WHERE task_id = 'task_3';
INSERT INTO xcom (dag_run_id, task_id, map_index, key, dag_id, run_id, value, timestamp)
SELECT r.id, 'task_1', -1, key, r.dag_id, r.run_id, convert_to(value, 'UTF8'), now()
  FROM dag_run r, (VALUES ('number', '1'), ('text', '"a \\"b\\" c"'), ('list', '[1, null]'), ('not', 'NaN'))
       AS v (key, value);
INSERT INTO log (dttm, dag_id, task_id, map_index, event, execution_date, owner, extra)
SELECT now(), dag_id, task_id, map_index, 'success', now(), 'airflow', '{"a": 1}' FROM task_instance;
INSERT INTO variable (key, val, description, is_encrypted)
SELECT 'v' || i, 'x', NULL, false FROM generate_series(1, 9) i;
INSERT INTO connection (conn_id, conn_type, extra, is_encrypted, is_extra_encrypted)
SELECT 'c' || i, 'postgres', '{}', false, false FROM generate_series(1, 9) i;
INSERT INTO trigger (classpath, kwargs, created_date) SELECT 'a.B', '{}', now() FROM generate_series(1, 9);
INSERT INTO dataset (uri, extra, created_at, updated_at, is_orphaned)
SELECT 's3://bucket/' || i, '{}', now(), now(), false FROM generate_series(1, 9) i;
INSERT INTO dag_schedule_dataset_reference (dataset_id, dag_id, created_at, updated_at)
SELECT id, 'dag ' || id, now(), now() FROM dataset;
INSERT INTO dataset_event (dataset_id, extra, source_dag_id, source_run_id, source_map_index, timestamp)
SELECT id, '{}', 'dag 1', 'scheduled__1', -1, now() FROM dataset;
INSERT INTO dagrun_dataset_event (dag_run_id, event_id) SELECT 1, id FROM dataset_event;
"""
# What no migration changes: a webserver's users. They write in no order, so their transactions touch nothing else.
USERS = [("public", name) for name in ("ab_user", "ab_role", "ab_user_role", "ab_permission")]


class Webserver(TableWriters):
    """Writers of users, and of the audit log, which migrations do alter."""

    def prepare(self, conn: Connection) -> list[Operation]:
        return [*super().prepare(conn), Operation("log", 10.0, log)]


def log(conn: Connection, chance: random.Random) -> None:
    event = chance.choice(["cli", "paused", "trigger"])
    conn.execute("INSERT INTO log (dttm, event, owner, extra) VALUES (now(), %s, 'admin', NULL)", [event])


@pytest.fixture
def airflow_db(tmp_path: Path) -> Callable[..., str]:
    """``airflow_db(dsn, "migrate")``: `airflow db migrate` on that database, with a home of its own."""

    def run(dsn: str, *arguments: str) -> str:
        environment = {
            "AIRFLOW_HOME": str(tmp_path),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url(dsn, "postgresql+psycopg2"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        }
        return run_client([Path(sys.executable).parent / "airflow", "db", *arguments], environment)

    return run


def revision(dsn: str) -> str:
    return str(one(dsn, "SELECT version_num FROM alembic_version"))


def test_airflow_is_migrated_to_the_newest_and_back_while_it_is_followed(
    move: Callable[..., Move], airflow_db: Callable[..., str]
) -> None:
    moved = move()
    source, target = moved.source, moved.target
    airflow_db(source, "migrate", "--to-version", OLD)
    execute(source, RUNS)
    revisions = [revision(source)]
    moved.begin()
    for command in (["migrate"], ["downgrade", "--yes", "--to-version", OLD]):
        with Webserver([source], USERS, rate=40) as writers:
            with moved.following():
                airflow_db(source, *command)
            before = writers.notes.committed.total()
            wait_until(lambda before=before: writers.notes.failures or writers.notes.committed.total() > before + 20)
        hint = f"with the writers' seed {writers.seed}: {dict(writers.notes.committed)}"
        assert writers.notes.failures == [], hint
        assert writers.notes.committed["log"], hint
        assert revision(target) == revision(source) != revisions[-1]
        revisions.append(revision(source))
    moved.end_equal()
    assert revisions[0] == revisions[2] == revision(target)
    assert one(target, "SELECT count(*) FROM task_instance") == 1200
    # There Airflow goes on as it would have on the source.
    airflow_db(target, "migrate")
    assert revision(target) == revisions[1]
