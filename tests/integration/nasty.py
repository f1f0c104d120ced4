"""The database of nasty.sql: its roles, and rows for it."""

from __future__ import annotations

from pathlib import Path

import psycopg
from psycopg import sql

from airflow_provider_pgddl.demo.clusters import Cluster

NASTY = Path(__file__).parent / "nasty.sql"

ROLES = ("pgddl_test_app", "pgddl_test_owner")

# Rows in its tables.
EVERYTHING = """
SET session_replication_role = replica; -- an owner without rights on its own table fails foreign keys
INSERT INTO shop.customers (email, place, parent_id, tags)
    SELECT i || '@example.org', ROW('street', NULL, 'zip@x')::shop.address, CASE WHEN i > 1 THEN 7 END, '{a,NULL}'
      FROM generate_series(1, 40) i;
INSERT INTO shop.orders (customer_id, note, price, amount, valid)
    SELECT 7 + 3 * (i % 40), 'note ' || i, i, 2, format('[%s,%s)', i, i + 1)::shop.span FROM generate_series(0, 99) i;
UPDATE shop.customers SET favourite_order = id % 50 + 1;
INSERT INTO shop.events SELECT i, '2023-12-01+00'::timestamptz + i * interval '1 day', chr(97 + i % 4), i % 90 + 1
    FROM generate_series(1, 100) i;
INSERT INTO shop.hashed SELECT i, i FROM generate_series(1, 50) i;
INSERT INTO shop.animal SELECT i, 'animal' FROM generate_series(1, 30) i;
INSERT INTO shop.dog SELECT i, 'dog' FROM generate_series(1, 30) i;
INSERT INTO shop.typed SELECT i, 'city', i || '@x' FROM generate_series(1, 30) i;
INSERT INTO shop.virtual_key SELECT i, i, i FROM generate_series(1, 30) i;
REFRESH MATERIALIZED VIEW shop.cached;
"""


def make_roles(cluster: Cluster) -> None:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
        for role in ROLES:
            if admin.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).fetchone() is None:
                admin.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
