"""Drift and match: what a changed table is called, and what passes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_pgddl.engine.model.tables import Column, Key, Leaf, Table, fingerprint
from airflow_provider_pgddl.engine.schema.definitions import statement_tree
from airflow_provider_pgddl.engine.schema.drift import drift


def column(name: str, number: int, type_: str = "integer", **changes: object) -> Column:
    plain = Column(number, name, type_, 23, type_, False, True, False, None, "", "", None)
    return replace(plain, **changes)  # type: ignore[arg-type]


LEAF = Leaf(100, "shop", "orders", "r", 5000, "attributes-1", None, "pgddl_row_p:A:700,pgddl_truncate_p:A:701")
ORDERS = Table(
    100, "shop", "orders", "r", "p",
    (column("id", 1, not_null=True), column("note", 2, "text"), column("price", 3, "numeric(10,2)")),
    Key("orders_pkey", ("id",), ("OPERATOR(pg_catalog.=)",)), (LEAF,), None,
)  # fmt: skip


def with_columns(*columns: Column) -> Table:
    return replace(ORDERS, columns=columns)


def with_leaf(**changes: object) -> Table:
    return replace(ORDERS, leaves=(replace(LEAF, **changes),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (None, "was dropped on the source"),
        (replace(ORDERS, name="orders2"), "its name was changed from orders to orders2"),
        (replace(ORDERS, schema="old"), "its schema was changed from shop to old"),
        (with_columns(*ORDERS.columns, column("phone", 4, "text")), "column phone was added (text)"),
        (with_columns(*ORDERS.columns[:2]), "column price was dropped or renamed"),
        (
            with_columns(*ORDERS.columns[:2], column("price", 3, "numeric(12,2)")),
            "column price: type was 'numeric(10,2)', is 'numeric(12,2)'",
        ),
        (
            with_columns(*ORDERS.columns[:1], column("note", 2, "text", not_null=True), ORDERS.columns[2]),
            "not null was",
        ),
        (replace(ORDERS, key=None), "its key was (id), is (none)"),
        (replace(ORDERS, persistence="u"), "its persistence was 'p', is 'u'"),
        (with_leaf(triggers=None), "the capture of shop.orders was disabled"),
        (with_leaf(triggers="pgddl_row_p:A:700,pgddl_truncate_p:A:999"), "writes may have been missed"),
        (with_leaf(filenode=6000, attributes="attributes-2"), "was rewritten by ALTER TABLE"),
    ],
)
def test_what_changed_is_said(now: Table | None, words: str) -> None:
    findings = drift(ORDERS.structure(), ORDERS.physical(), now)
    assert len(findings) == 1
    assert words in findings[0]


@pytest.mark.parametrize(
    "now",
    [
        ORDERS,
        with_leaf(filenode=6000),  # VACUUM FULL, CLUSTER, TRUNCATE
        with_leaf(attributes="attributes-2"),  # SET STATISTICS, GRANT on a column
        with_columns(*reversed(ORDERS.columns)),
    ],
)
def test_what_changes_no_row_passes(now: Table) -> None:
    assert drift(ORDERS.structure(), ORDERS.physical(), now) == []


def test_a_partition_that_comes_or_goes_is_drift() -> None:
    parts = [replace(LEAF, oid=n, name=f"p{n}", bound=f"FOR VALUES IN ({n})") for n in (1, 2)]
    both = replace(ORDERS, kind="p", leaves=tuple(parts), partition_key="LIST (id)")
    one = replace(both, leaves=(parts[0],))
    assert drift(one.structure(), one.physical(), both) == ["partition shop.p2 was created or attached"]
    assert drift(both.structure(), both.physical(), one) == ["partition shop.p2 was dropped or detached"]


def test_the_fingerprint_is_of_names_not_of_places() -> None:
    elsewhere = replace(ORDERS, oid=7, columns=tuple(replace(c, attnum=c.attnum + 5) for c in reversed(ORDERS.columns)))
    assert fingerprint(elsewhere.structure()) == fingerprint(ORDERS.structure())
    wider = with_columns(column("id", 1, "bigint", not_null=True), *ORDERS.columns[1:])
    assert fingerprint(wider.structure()) != fingerprint(ORDERS.structure())


def test_what_not_null_constraints_are_called_is_known_to_servers_from_18_on_only() -> None:
    bare, named = (f"CREATE TABLE t (id int{name} NOT NULL)" for name in ("", " CONSTRAINT was_called_so"))
    assert statement_tree(bare) != statement_tree(named)
    assert statement_tree(bare, names_not_null=False) == statement_tree(named, names_not_null=False)
    bare, named = (f"CREATE TABLE t (id int{name} UNIQUE)" for name in ("", " CONSTRAINT was_called_so"))
    assert statement_tree(bare, names_not_null=False) != statement_tree(named, names_not_null=False)
