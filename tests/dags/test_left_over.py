"""A swap that has committed and left something to a person shows it, and holds nothing up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_pgddl.demo.clusters import Cluster
from tests.conftest import Database
from tests.dags.conftest import Airflow
from tests.integration.lifecycle import Lifecycle, execute

pytestmark = pytest.mark.airflow

FOLDER = Path(__file__).parent / "folder"
VIOLATED = """
CREATE TABLE public.p (id int PRIMARY KEY);
CREATE TABLE public.c (id int PRIMARY KEY, p int REFERENCES public.p);
SET session_replication_role = replica;
INSERT INTO public.c VALUES (1, 5);
"""


def test_a_swap_that_left_a_foreign_key_not_valid_shows_it_and_cleanup_goes_on(
    airflow: Airflow, pg18: Cluster, database: Database, lifecycle: Callable[..., Lifecycle]
) -> None:
    source, target = database(pg18), database(pg18)
    execute(source, VIOLATED)
    move = lifecycle(source, target, tables={"include": ["public.*"]}, capture={"ddl": "off"})
    move.run_all(until="verify")
    assert [entry["table"] for entry in move.run("swap").blocked] == ["public.c"]
    ends = {move.content[side]["dsn"][2:-1]: dsn for side, dsn in (("source", source), ("target", target))}
    with airflow.shell(FOLDER, PGDDL_TEST_LEFT_OVER=json.dumps(move.content), **ends) as shell:
        shell.start("dags", "test", "left_over")
        said = shell.until("=== airflow ended with ")
    states = airflow.states("left_over")
    assert states.pop("move.swap") == "skipped", said
    assert set(states.values()) == {"success"}, states
    assert "swap left public.c to you" in said
    assert 'ALTER TABLE "public"."c" VALIDATE CONSTRAINT "c_p_fkey"' in said
    assert move.journal("SELECT finished_at IS NOT NULL FROM pgddl.pipelines") == [(True,)]
