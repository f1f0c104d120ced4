"""Everything that works without Airflow: stages, and what they are made of. Imports run down its layers only."""
