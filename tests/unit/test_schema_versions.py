"""What lies between two versions of a table: every field, and nothing that is not so."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgddl.engine.ddl.captured_events import ColumnMeta, TableMeta
from airflow_provider_pgddl.engine.schema.table_versions import TableDiff, mask, table_diff
from tests.unit.hand_made import column, table


def constraint(oid: int, name: str, definition: str, type_: str = "c", **more: Any) -> dict[str, Any]:
    fixed = {"oid": oid, "name": name, "type": type_, "definition": definition, "validated": True, "local": True}
    return fixed | {"references": None} | more


def index(oid: int, name: str, definition: str) -> dict[str, Any]:
    return {"oid": oid, "name": name, "definition": definition}


ORDERS = table(
    100,
    "shop",
    "orders",
    [
        column(1, "id", not_null=True),
        column(2, "price", "numeric(10,2)", type_oid=1700, typmod=655366),
        "note",
        column(4, "twice", default="(price * (2)::numeric)", generated="s", type_oid=1700, type="numeric"),
    ],
    key={"index": "orders_pkey", "columns": [1]},
    constraints=[
        constraint(201, "orders_pkey", "PRIMARY KEY (id)", "p"),
        constraint(202, "positive", "CHECK ((price > (0)::numeric))"),
    ],
    indexes=[index(301, "by_price", "CREATE INDEX by_price ON shop.orders USING btree (price)")],
)


def changed(**more: Any) -> TableMeta:
    after = deepcopy(ORDERS)
    after.update(more)  # type: ignore[typeddict-item]
    return after


def with_column(at: int, **more: Any) -> TableMeta:
    after = deepcopy(ORDERS)
    after["columns"][at - 1].update(more)  # type: ignore[typeddict-item]
    return after


def filled(change: TableDiff) -> dict[str, Any]:
    """What of a difference is neither null nor empty."""
    whole = json.loads(json.dumps(change.to_json()))
    return {k: v for k, v in whole.items() if v and k not in ("oid", "before", "after")}


@pytest.mark.parametrize(
    ("after", "field", "before_and_after"),
    [
        (changed(name="sales"), "renamed", ("orders", "sales")),
        (changed(schema="archive"), "moved", ("shop", "archive")),
        (changed(owner="bob"), "owner", ("app", "bob")),
        (changed(options=["fillfactor=70"]), "options", ([], ["fillfactor=70"])),
        (changed(parents=[["shop", "all"]]), "parents", ([], [["shop", "all"]])),
        (changed(bound="DEFAULT"), "bound", (None, "DEFAULT")),
        (changed(persistence="u"), "persistence", ("p", "u")),
        (changed(kind="p"), "kind", ("r", "p")),
        (changed(partition_key="LIST (id)"), "partition_key", (None, "LIST (id)")),
        (changed(descendants=[7]), "descendants", ([], [7])),
        (changed(replica_identity="f"), "replica_identity", (["d", None], ["f", None])),
        (changed(replica_identity="i", replica_index="x"), "replica_identity", (["d", None], ["i", "x"])),
        (changed(key=None), "key", ({"index": "orders_pkey", "columns": [1]}, None)),
        (changed(definition="SELECT 1"), "definition", (None, "SELECT 1")),
        (changed(rest="row security; clustered on i"), "rest", (None, "row security; clustered on i")),
    ],
)
def test_a_property_of_the_table(after: TableMeta, field: str, before_and_after: tuple[Any, Any]) -> None:
    was, is_ = before_and_after
    assert filled(table_diff(ORDERS, after)) == {field: {"before": was, "after": is_}}


@pytest.mark.parametrize(
    ("after", "what"),
    [
        (with_column(3, name="remark"), {"name"}),
        (with_column(2, type="numeric(12,2)", typmod=786438), {"typmod"}),
        (with_column(3, type="text", type_oid=25), {"type"}),
        (with_column(3, type="app.other_name"), {"type_name"}),
        (with_column(3, collation='pg_catalog."C"'), {"collation"}),
        (with_column(3, default="1"), {"default"}),
        (with_column(3, not_null=True), {"not_null"}),
        (with_column(4, generated="", default=None), {"generated", "default"}),
        (with_column(4, default="(price * (3)::numeric)"), {"default"}),
        (with_column(1, identity="a"), {"identity"}),
        (with_column(1, local=False), {"local"}),
        (with_column(3, rest="storage e"), {"rest"}),
    ],
)
def test_a_property_of_a_column(after: TableMeta, what: set[str]) -> None:
    change = table_diff(ORDERS, after)
    assert [set(c.changed) for c in change.columns] == [what]
    assert filled(change).keys() == {"columns"}


def test_what_old_rows_show_is_no_part_of_the_structure() -> None:
    assert not table_diff(ORDERS, with_column(3, missing="7"))


def test_a_renamed_column_leaves_everything_else_as_it_was() -> None:
    """The server prints the new name in the constraint, in the index and in the generated column's expression."""
    after = with_column(2, name="amount")
    after["columns"][3]["default"] = "(amount * (2)::numeric)"
    after["constraints"][1]["definition"] = "CHECK ((amount > (0)::numeric))"
    after["indexes"][0]["definition"] = "CREATE INDEX by_price ON shop.orders USING btree (amount)"
    change = table_diff(ORDERS, after)
    assert change.columns_renamed == {"price": "amount"}
    assert filled(change).keys() == {"columns"}
    assert [set(c.changed) for c in change.columns] == [{"name"}]


def test_a_new_type_rebuilds_constraints_and_indexes_without_changing_them() -> None:
    after = with_column(2, type="bigint", type_oid=20, typmod=-1)
    after["constraints"][1]["oid"] = 902
    after["indexes"][0]["oid"] = 901
    change = table_diff(ORDERS, after)
    assert filled(change).keys() == {"columns"}
    assert [c.after["name"] for c in change.columns_retyped] == ["price"]

    after["constraints"][1]["definition"] = "CHECK ((price > 0))"
    assert [(set(c.changed), c.after["name"]) for c in table_diff(ORDERS, after).constraints] == [
        ({"definition"}, "positive")
    ]


@pytest.mark.parametrize(
    ("now", "what"),
    [
        ({"name": "above zero"}, {"name"}),
        ({"validated": False, "definition": "CHECK ((price > (0)::numeric)) NOT VALID"}, {"validated"}),
        ({"definition": "CHECK ((price > (0)::numeric)) NOT ENFORCED", "validated": False}, {"flags", "validated"}),
        ({"definition": "CHECK ((price > (0)::numeric)) NO INHERIT"}, {"flags"}),
        ({"oid": 999, "definition": "CHECK ((price > (1)::numeric))"}, {"definition"}),
        ({"local": False}, {"local"}),
    ],
)
def test_a_constraint_that_stayed(now: dict[str, Any], what: set[str]) -> None:
    after = deepcopy(ORDERS)
    after["constraints"][1].update(now)  # type: ignore[typeddict-item]
    change = table_diff(ORDERS, after)
    assert [set(c.changed) for c in change.constraints] == [what]
    assert filled(change).keys() == {"constraints"}


def test_what_came_and_what_went() -> None:
    after = deepcopy(ORDERS)
    del after["columns"][2]
    after["columns"].append(column(5, "note"))
    after["constraints"] = [after["constraints"][0], constraint(204, "more", "CHECK (id > 0)")]  # type: ignore[typeddict-item]
    after["indexes"] = [index(304, "by_id", "CREATE INDEX by_id ON shop.orders (id)")]  # type: ignore[typeddict-item]
    change = table_diff(ORDERS, after)
    assert ([c["attnum"] for c in change.columns_dropped], [c["attnum"] for c in change.columns_added]) == ([3], [5])
    assert [c["name"] for c in (*change.constraints_dropped, *change.constraints_added)] == ["positive", "more"]
    assert [i["name"] for i in (*change.indexes_dropped, *change.indexes_added)] == ["by_price", "by_id"]


def test_an_index_that_stayed() -> None:
    after = deepcopy(ORDERS)
    after["indexes"][0].update(
        name="i", definition="CREATE INDEX i ON shop.orders USING btree (price) WITH (fillfactor='5')"
    )
    assert [set(i.changed) for i in table_diff(ORDERS, after).indexes] == [{"name", "options"}]


def test_a_new_name_of_an_index_or_a_constraint_changes_nothing_in_what_tells_of_it() -> None:
    before = changed(rest="clustered on by_price; disabled trigger positive")
    after = deepcopy(before)
    after["indexes"][0]["name"], after["constraints"][1]["name"] = "by price", "above"
    after["rest"] = "clustered on by price; disabled trigger above"
    assert table_diff(before, after).rest is None
    after["rest"] = "clustered on by price; always trigger above"
    assert table_diff(before, after).rest is not None


def test_a_table_that_came_or_went_has_all_that_is_in_it() -> None:
    made, gone = table_diff(None, ORDERS), table_diff(ORDERS, None)
    assert made.created and gone.dropped and not made.dropped and not gone.created
    assert list(made.columns_added) == list(gone.columns_dropped) == ORDERS["columns"]
    assert list(made.constraints_added) == list(gone.constraints_dropped) == ORDERS["constraints"]
    assert list(made.indexes_added) == list(gone.indexes_dropped) == ORDERS["indexes"]
    with pytest.raises(ValueError, match="at least one version"):
        table_diff(None, None)


def test_identities_tell_columns_apart_where_numbers_were_dealt_out_anew() -> None:
    """After a dump and restore: other oids, no gaps among the columns, the same identities."""
    b = column(3, "b", "numeric(4,1)", typmod=262149, id="B")
    wider = column(1, "b", "numeric(5,1)", typmod=327685, type_oid=4, id="B")
    before = table(1, "s", "t", [column(1, "a", id="A"), b])
    after = table(9, "s", "t", [wider, column(2, "a", type_oid=4, id="A")])
    assert [(c.after["name"], set(c.changed)) for c in table_diff(before, after).columns] == [("b", {"typmod"})]


def test_every_field_is_there_whether_it_changed_or_not() -> None:
    names = table_diff(ORDERS, ORDERS).to_json().keys()
    assert names == table_diff(None, ORDERS).to_json().keys() == table_diff(ORDERS, None).to_json().keys()
    assert {"created", "dropped", "renamed", "moved", "key", "owner", "options", "persistence"} <= names
    assert {"replica_identity", "parents", "bound", "partition_key"} <= names
    for what in ("columns", "constraints", "indexes"):
        assert {what, f"{what}_added", f"{what}_dropped"} <= names


def test_the_mask_is_what_is_replicated() -> None:
    assert mask(ORDERS) == [1, 2, 3]
    assert mask(ORDERS, ["note"]) == [1, 2]


_OIDS = {"integer": 23, "text": 25, "bigint": 20}
_COLUMNS = st.lists(
    st.builds(
        lambda n, name, kind, needed: column(n, name, kind, type_oid=_OIDS[kind], not_null=needed),
        st.integers(1, 6),
        st.sampled_from("abcd"),
        st.sampled_from(sorted(_OIDS)),
        st.booleans(),
    ),
    unique_by=(lambda c: c["attnum"], lambda c: c["name"]),
)


@given(_COLUMNS, _COLUMNS)
def test_columns_before_and_their_difference_make_those_after(was: list[ColumnMeta], is_: list[ColumnMeta]) -> None:
    change = table_diff(table(1, "s", "t", was), table(1, "s", "t", is_))
    known = {c["attnum"]: c for c in was}
    for c in change.columns_dropped:
        del known[c["attnum"]]
    known |= {c["attnum"]: c for c in change.columns_added} | {c.after["attnum"]: c.after for c in change.columns}
    assert known == {c["attnum"]: c for c in is_}
    assert bool(change) == ({c["attnum"]: c for c in was} != known)
