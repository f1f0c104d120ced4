"""Moves a shop to a new Postgres, keeps the old one current, and can return to it.

Airflow connections: `shop_pg16` (old), `shop_pg18` (new), `spark_default`. The pipeline files are beside this one;
`pgddl way-back -p migrate_shop_reversibly.yaml` prints the second one.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_pgddl.task_groups import follow, go_back, reversible

SETTINGS = {"catchup": False, "max_active_runs": 1, "tags": ["pgddl"], "doc_md": __doc__}

with DAG("migrate_shop_reversibly", schedule=None, **SETTINGS):
    reversible(group_id="migrate", pipeline="migrate_shop_reversibly.yaml")

# Unpause it once the shop has moved.
with DAG("follow_shop_back", schedule=timedelta(minutes=5), start_date=datetime(2026, 1, 1, tzinfo=UTC), **SETTINGS):
    follow(group_id="follow", pipeline="shop_back.yaml")

# Pause follow_shop_back, then trigger this one.
with DAG("return_shop", schedule=None, **SETTINGS):
    go_back(group_id="go_back", pipeline="shop_back.yaml")
