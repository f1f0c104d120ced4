"""What becomes of each key of the pipeline file after setup."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.errors import UsageError
from airflow_provider_pgddl.engine.job.same_config import refuse_reset_keys, require_same_config
from airflow_provider_pgddl.engine.pipeline.later import KEYS, later_of
from airflow_provider_pgddl.engine.pipeline.reading import KeyChange, differences, load_pipeline
from docs.generated import pipeline_file

FILE = {"pipeline": "shop", "source": {"conn_id": "a"}, "target": {"conn_id": "b"}, "tables": {"include": ["s.*"]}}


def test_every_key_of_the_model_is_in_the_one_table() -> None:
    assert KEYS.keys() == {key for key, _, _ in pipeline_file.leaves()}
    assert [key for key, later in KEYS.items() if later.how != "free" and not later.why] == []


def test_keys_of_one_tables_section_are_of_one_kind() -> None:
    """A place in a file does not tell where its table's name ends."""
    kinds: dict[str, set[str]] = {}
    for key, later in KEYS.items():
        if ".<table>" in key:
            kinds.setdefault(key.partition(".<table>")[0], set()).add(later.how)
    assert kinds and all(len(found) == 1 for found in kinds.values())


def test_a_place_belongs_to_its_key() -> None:
    assert later_of('tables.where.s."T"') is KEYS["tables.where"]
    assert later_of("rewrite.s.t.alter").how == "reconfigure"
    assert later_of("schema.overrides.s.t.skip_columns").how == "free"
    assert later_of("tables.wherever").how == "reset"


def test_all_that_differs_is_told_with_both_values() -> None:
    now = load_pipeline({**FILE, "tables": {"include": ["s.a"]}, "backfill": {"workers": 2}})
    found = differences(load_pipeline(FILE).to_json(), now.to_json())
    assert found == [KeyChange("backfill.workers", 4, 2), KeyChange("tables.include", ["s.*"], ["s.a"])]
    assert [one.to_json()["how"] for one in found] == ["free", "reconfigure"]


def test_a_changed_key_names_the_command_or_the_reason() -> None:
    recorded = load_pipeline(FILE).to_json()
    with pytest.raises(UsageError, match=r"tables\.include changed since setup .*\n.*pgddl reconfigure -p"):
        require_same_config(load_pipeline({**FILE, "tables": {"include": ["s.a"]}}), recorded)
    with pytest.raises(UsageError, match=r"capture\.rows \(.*\) changed since setup"):
        require_same_config(load_pipeline({**FILE, "capture": {"rows": "wal", "ddl": "queue"}}), recorded)
    refuse_reset_keys(load_pipeline(FILE), ["tables.where.s.t", "ddl.scope"])
