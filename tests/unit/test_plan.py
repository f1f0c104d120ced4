"""Plans as the journal keeps them."""

from __future__ import annotations

import json
from dataclasses import replace

from airflow_provider_pgddl.engine.model.plan import Keepers, Plan, PlanColumns, PlanKey, ReversePlan, Split

PLAN = Plan(
    schema="public",
    name="orders",
    oid=7,
    partitioned=False,
    copy_schema="pgddl_copy_public",
    copy_name="orders",
    columns=PlanColumns(
        names=("id", "note"),
        expressions=("id", "NULL"),
        binary=False,
        left_out={"3": "public.orders.ssn"},
        pairs={"id": [1, 1, "bigint"], "note": [0, 2, "text"]},
        kept=("legacy",),
        kept_types=("text",),
    ),
    key=PlanKey(("id",), ("bigint",), ("OPERATOR(pg_catalog.=)",), (False,), True),
    copies={"7": ("pgddl_copy_public", "orders")},
    copy_attributes="abc",
    split=Split("range", "id", "100", True, ("SET (fillfactor = 70)",)),
    order=("note",),
    reverse=ReversePlan({"id": ["id::int", "integer", True]}, "log_shop_8", {"orders_id_seq": "integer"}),
)
# What a version recorded that had no parts, and no way back.
FLAT = {
    "schema": "public", "name": "t", "oid": 1, "partitioned": False, "copy_schema": "public", "copy_name": "t",
    "columns": ["id"], "expressions": ["id"], "binary": True, "key": ["id"], "key_types": ["integer"],
    "key_operators": ["OPERATOR(pg_catalog.=)"], "key_domains": [False], "key_binary": True,
    "copies": {"1": ["public", "t"]},
}  # fmt: skip


def test_a_plan_comes_back_from_the_journal_as_it_was() -> None:
    assert Plan.from_json(json.loads(json.dumps(PLAN.to_json()))) == PLAN


def test_whose_a_table_is_is_looked_at_anew_by_every_stage() -> None:
    found = replace(PLAN, keepers=Keepers("mallory", "mallory"))
    assert Plan.from_json(found.to_json()).keepers == Keepers() and found == PLAN


def test_plans_of_earlier_versions_are_read_and_written_under_the_same_names() -> None:
    plan = Plan.from_json(FLAT)
    assert (plan.columns.names, plan.key.columns, plan.reverse) == (("id",), ("id",), ReversePlan())
    assert plan.to_json().keys() > FLAT.keys()
    assert json.loads(json.dumps({name: plan.to_json()[name] for name in FLAT})) == FLAT
    assert not PlanKey() and plan.key
