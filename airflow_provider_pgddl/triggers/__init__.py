"""What waits in Airflow's triggerer: ids only, no secret, and no look that blocks the others."""
