"""A pipeline once it is read: as JSON, on its way to workers, beside the one that a run recorded, and led back."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from airflow_provider_pgddl.engine.pipeline.key_positions import ORIGIN
from airflow_provider_pgddl.engine.pipeline.model import Pipeline
from airflow_provider_pgddl.engine.pipeline.reading import as_set_up, changed_keys, load_pipeline
from airflow_provider_pgddl.engine.pipeline.tags import CREATE_TAGS, DROP_TAGS
from airflow_provider_pgddl.engine.pipeline.way_back import way_back_of
from tests.unit.pipelines import IN_PLACE, MIGRATE, in_place, migrate


@pytest.mark.parametrize("text", [MIGRATE, IN_PLACE, MIGRATE + "schema: {source_removed_columns: ~, force: true}\n"])
def test_json_round_trips(text: str) -> None:
    first = load_pipeline(text)
    again = load_pipeline(json.loads(json.dumps(first.to_json())))
    assert again == first
    assert again.to_json() == first.to_json()


def test_a_pipeline_travels_to_workers() -> None:
    pipeline = load_pipeline(IN_PLACE)
    assert pipeline.rewrites
    again: Pipeline = pickle.loads(pickle.dumps(pipeline))  # noqa: S301
    assert again == pipeline
    assert again.where("rewrite") == "pipeline, line 3: rewrite"


def test_nothing_of_a_pipeline_changes_after_reading() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_pipeline(MIGRATE).pipeline = "other"


def test_changed_keys_are_named_and_the_gate_workers_throttle_and_timeouts_are_free() -> None:
    recorded = load_pipeline(MIGRATE).to_json()
    free = migrate(
        backfill={"workers": 9, "throttle": {"max_active_backends": 3}},
        swap={"lock_timeout": "10ms", "retries": 3},
        ddl={"lock_timeout": "1s", "retry_for": "1h"},
        spark={"master": "local[2]"},
        schema={"validation": "warn_only", "preserve_columns": {"public.a": ["b"]}},
        tables={"include": ["public.*"], "skip_columns": {"public.a": ["c"]}},
    )
    assert changed_keys(recorded, load_pipeline(free).to_json()) == []
    changed = migrate(
        tables={"include": ["public.*", "billing.*"]}, backfill={"chunk_bytes": "1MB"}, swap={"fence": "lock"}
    )
    assert changed_keys(recorded, load_pipeline(changed).to_json()) == [
        "backfill.chunk_bytes",
        "swap.fence",
        "tables.include",
    ]
    assert changed_keys(recorded, load_pipeline(in_place()).to_json()) == [
        "rewrite.public.orders.alter",
        "rewrite.public.orders.order_by",
        "tables.include",
        "target.conn_id",
    ]


def test_a_recorded_pipeline_may_lack_keys_that_came_later() -> None:
    now = load_pipeline(MIGRATE).to_json()
    recorded = {key: value for key, value in now.items() if key not in ("verify", "replay")}
    assert changed_keys(recorded, now) == []


def test_a_default_that_changed_is_for_new_runs() -> None:
    def recorded_before(tree: str | dict[str, Any]) -> dict[str, Any]:
        recorded = load_pipeline(tree).to_json()
        recorded["ddl"] |= {"create_tags": list(CREATE_TAGS), "drop_tags": list(DROP_TAGS)}
        del recorded["ddl"]["tags"], recorded[ORIGIN]["given"]
        return recorded

    for tree in (MIGRATE, migrate()):
        old, now = recorded_before(tree), load_pipeline(load_pipeline(tree).to_json())  # by way of a job file
        assert "CREATE DOMAIN" in now.ddl.create_tags
        kept = as_set_up(now, old)
        assert (kept.ddl.tags, kept.ddl.create_tags, kept.ddl.drop_tags) == ("pgl_ddl_deploy", CREATE_TAGS, DROP_TAGS)
        assert changed_keys(old, kept.to_json()) == []
        assert as_set_up(now, kept.to_json()) == kept
    asked = load_pipeline(migrate(ddl={"tags": "all"}))
    assert "ddl.tags" in changed_keys(old, as_set_up(asked, old).to_json())
    # What a file gave and gives no more is a change, as it was.
    gave = load_pipeline(migrate(ddl={"scope": "everything"}, backfill={"chunk_bytes": "1MB"})).to_json()
    now = as_set_up(load_pipeline(migrate()), gave)
    assert changed_keys(gave, now.to_json()) == ["backfill.chunk_bytes", "ddl.scope"]


def test_the_lines_of_the_file_are_no_change() -> None:
    assert changed_keys(load_pipeline(MIGRATE).to_json(), load_pipeline("# moved\n\n" + MIGRATE).to_json()) == []


def test_roles_have_their_old_names_on_the_way_back() -> None:
    roles = {"missing_role": {"app": "app_v2", "owner": "owner_v2"}}
    there = load_pipeline(migrate(ddl=roles, swap={"fence": "read_only", "way_back": "back"}))
    back = way_back_of(there)
    assert back.ddl.other_roles == {"app_v2": "app", "owner_v2": "owner"}
    assert way_back_of(back).ddl.other_roles == roles["missing_role"]
