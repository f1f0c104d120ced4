"""Assets: how tables are named, and that a stage that is done stays so whatever comes of telling."""

from __future__ import annotations

import pytest
from airflow.sdk import Asset

from airflow_provider_pgddl.assets import place, uri


@pytest.mark.parametrize(
    ("conninfo", "server"),
    [
        ("host=db18 dbname=shop", "postgres://db18:5432"),
        ("host=a,b port=6000,6001 dbname=shop", "postgres://a:6000"),
        ("host=/run/postgresql dbname=shop", "postgres://localhost:5432"),
        ("hostaddr=10.0.0.1 dbname=shop", "postgres://10.0.0.1:5432"),
        ("host=::1 dbname=shop port=6000", "postgres://[::1]:6000"),
        ("postgresql://u@[fd12::5]/shop", "postgres://[fd12::5]:5432"),
        ("hostaddr=fe80::1%eth0 dbname=shop", "postgres://[fe80::1%eth0]:5432"),
    ],
)
def test_a_server_is_named_so_that_airflow_takes_it(conninfo: str, server: str) -> None:
    assert place(conninfo, "app", "orders") == (server, "shop.app.orders")
    assert Asset(uri(conninfo, "app", "orders")).uri == f"{server}/shop/app/orders"
