"""Parts of pages that are made from the code as the site is built. Pure: no server, no Airflow."""
