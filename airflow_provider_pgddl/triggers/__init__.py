"""What waits in Airflow's triggerer."""
