"""A table for the schema policy, whose DDL nobody follows."""

from __future__ import annotations

from typing import Any

# Nobody follows the source's DDL, so every difference is the gate's; some chunks a table, no SparkSession.
UNCAPTURED: dict[str, Any] = {
    "capture": {"ddl": "off"},
    "backfill": {"chunk_bytes": "8kB", "workers": 1},
    "replay": {"until_lag": "60s"},
}


# `who` tells rows apart whatever their keys become.
TABLE = """
    CREATE TABLE {0} (
        id int PRIMARY KEY, who int NOT NULL, code varchar(20) NOT NULL, price numeric(10,2), num int,
        legacy text, ssn text, at timestamp, filler text NOT NULL DEFAULT repeat('x', 400)
    );
    INSERT INTO {0}
    SELECT n, n, 'code ' || n, n + n / 100.0, n, 'l' || n, 's' || n, '2026-01-01'::timestamp + n * interval '0.7 s'
    FROM generate_series(1, 40) n;
"""
