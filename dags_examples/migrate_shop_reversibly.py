"""Moves a shop to a new Postgres, keeps the old one current, and can return to it and move again.

Airflow connections: `shop_pg16` (old), `shop_pg18` (new), `spark_default`. The pipeline files are beside this one;
`pgddl way-back -p migrate_shop_reversibly.yaml` prints the second one.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_pgddl.operators.stages import PgddlCleanupOperator
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

# When the trouble is mended: by the cut-over that went back, the shop's move was born anew.
with DAG("move_shop_again", schedule=None, **SETTINGS):
    go_back(group_id="move_again", pipeline="migrate_shop_reversibly.yaml")

# Once nobody is to go back any more.
with DAG("let_go_of_old_shop", schedule=None, **SETTINGS):
    way_back = PgddlCleanupOperator(task_id="cleanup_shop_back", pipeline="shop_back.yaml")
    way_back >> PgddlCleanupOperator(task_id="cleanup_shop", pipeline="migrate_shop_reversibly.yaml")
