"""The page in Airflow: its plugin, what it looks at, and how it is told."""
