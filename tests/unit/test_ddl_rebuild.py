"""Statements rebuilt from metadata: their words and their order. What they do is shown on servers, in integration."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from airflow_provider_pgddl.engine.ddl.captured_events import CapturedEvent, TableMeta
from airflow_provider_pgddl.engine.ddl.parse import parse
from airflow_provider_pgddl.engine.ddl.rebuild import rebuild
from airflow_provider_pgddl.engine.errors import CannotRebuild
from airflow_provider_pgddl.engine.schema.table_versions import rest_of
from tests.unit.hand_made import column, event, gone, of_table, table, thing

ITEMS = table(100, "shop", "Items", [column(1, "id", not_null=True), column(2, 'n"ote', "text", type_oid=25)])


def altered(after: TableMeta, *others: TableMeta, **more: Any) -> CapturedEvent:
    return event("ALTER TABLE", "SELECT f()", [of_table(after, "ALTER TABLE")], tables=[after, *others], **more)


def changed(before: TableMeta, **more: Any) -> TableMeta:
    after = deepcopy(before)
    after.update(more)  # type: ignore[typeddict-item]
    return after


def with_columns(*columns: Any) -> TableMeta:
    return changed(ITEMS, columns=list(columns))


@pytest.mark.parametrize(
    ("after", "statements"),
    [
        (changed(ITEMS, name="x;y"), ('ALTER TABLE "shop"."Items" RENAME TO "x;y"',)),
        (changed(ITEMS, schema="a.b"), ('ALTER TABLE "shop"."Items" SET SCHEMA "a.b"',)),
        (with_columns(ITEMS["columns"][0]), ('ALTER TABLE "shop"."Items" DROP COLUMN "n""ote"',)),
        (
            with_columns(*ITEMS["columns"], column(3, "at", "timestamptz", default="now()", missing="2024")),
            (
                'ALTER TABLE "shop"."Items" ADD COLUMN "at" timestamptz DEFAULT \'2024\'::timestamptz',
                'ALTER TABLE "shop"."Items" ALTER COLUMN "at" SET DEFAULT now()',
            ),
        ),
        (
            with_columns(*ITEMS["columns"], column(3, "c", default="7", missing="7", not_null=True)),
            ('ALTER TABLE "shop"."Items" ADD COLUMN "c" integer DEFAULT 7 NOT NULL',),
        ),
        (
            with_columns(*ITEMS["columns"], column(3, "c", default="f()")),
            (
                'ALTER TABLE "shop"."Items" ADD COLUMN "c" integer',
                'ALTER TABLE "shop"."Items" ALTER COLUMN "c" SET DEFAULT f()',
            ),
        ),
        (
            with_columns(column(1, "id", "bigint", type_oid=20, not_null=True), column(2, 'n"ote', "integer")),
            (
                (
                    'ALTER TABLE "shop"."Items" ALTER COLUMN "id" TYPE bigint USING "id"::bigint,'
                    ' ALTER COLUMN "n""ote" TYPE integer USING "n""ote"::integer'
                ),
            ),
        ),
        (
            with_columns(column(1, 'n"ote', not_null=True), column(2, "id", "text", type_oid=25)),
            (
                'ALTER TABLE "shop"."Items" RENAME COLUMN "id" TO "pgddl_aside_2"',
                'ALTER TABLE "shop"."Items" RENAME COLUMN "n""ote" TO "id"',
                'ALTER TABLE "shop"."Items" RENAME COLUMN "pgddl_aside_2" TO "n""ote"',
            ),
        ),
        (changed(ITEMS, options=["fillfactor=70"]), ('ALTER TABLE "shop"."Items" SET ("fillfactor" = \'70\')',)),
        (changed(ITEMS, owner="bob"), ('ALTER TABLE "shop"."Items" OWNER TO "bob"',)),
        (changed(ITEMS, persistence="u"), ('ALTER TABLE "shop"."Items" SET UNLOGGED',)),
    ],
)
def test_a_change_of_a_table(after: TableMeta, statements: tuple[str, ...]) -> None:
    assert rebuild(altered(after), {100: ITEMS}) == statements
    for statement in statements:
        parse(statement)


def test_a_default_that_was_evaluated_for_each_row_is_said_at_once() -> None:
    """Its rows are copied again; but NULL might be refused until then."""
    after = with_columns(*ITEMS["columns"], column(3, "c", "uuid", default="gen_random_uuid()"))
    what = altered(after, rewritten=[{"oid": 100, "reason": 2}])
    assert rebuild(what, {100: ITEMS}) == ('ALTER TABLE "shop"."Items" ADD COLUMN "c" uuid DEFAULT gen_random_uuid()',)


def family(**changes: Any) -> tuple[TableMeta, TableMeta, TableMeta, TableMeta]:
    """A parent and its child: before, and after `changes` to their columns (`parent`, `child`)."""
    parent = table(1, "s", "mum", [column(1, "a")], descendants=[2])
    child = table(2, "s", "kid", [column(1, "a", local=False)], parents=[["s", "mum"]])
    after = deepcopy(parent), deepcopy(child)
    for meta, which in zip(after, ("parent", "child"), strict=True):
        meta["columns"][0].update(changes.get(which, {}))
    return parent, child, *after


@pytest.mark.parametrize(
    ("changes", "statements"),
    [
        (
            {"parent": {"default": "1"}, "child": {"default": "1"}},
            ('ALTER TABLE "s"."mum" ALTER COLUMN "a" SET DEFAULT 1',),
        ),
        ({"parent": {"default": "1"}}, ('ALTER TABLE ONLY "s"."mum" ALTER COLUMN "a" SET DEFAULT 1',)),
        ({"parent": {"not_null": True}}, ('ALTER TABLE ONLY "s"."mum" ALTER COLUMN "a" SET NOT NULL',)),
        (
            {"parent": {"name": "b"}, "child": {"name": "b"}},
            ('ALTER TABLE "s"."mum" RENAME COLUMN "a" TO "b"',),
        ),
    ],
)
def test_children_that_took_part_are_told_by_their_parent(changes: dict[str, Any], statements: tuple[str, ...]) -> None:
    parent, child, *after = family(**changes)
    what = event("ALTER TABLE", "", [of_table(after[0], "ALTER TABLE")], tables=after)
    assert rebuild(what, {1: parent, 2: child}) == statements


def test_serial_and_identity_are_told_apart() -> None:
    after = table(
        5,
        "s",
        "t",
        [
            column(1, "id", not_null=True, default="nextval('s.t_id_seq'::regclass)"),
            column(2, "n", identity="a", not_null=True),
        ],
    )
    define = "CREATE SEQUENCE s.{} AS integer START WITH 1 INCREMENT BY 2 MINVALUE 1 MAXVALUE 9 CACHE 1 NO CYCLE"
    serial, identity = (
        thing(
            "CREATE SEQUENCE", "sequence", oid, "s", name, table=5, identity=f"s.{name}", definition=define.format(name)
        )
        for oid, name in ((6, "t_id_seq"), (7, "t_n_seq"))
    )
    objects = [serial, identity, of_table(after, "CREATE TABLE")]
    assert rebuild(event("CREATE TABLE", "", objects, tables=[after]), {}) == (
        define.format("t_id_seq"),
        (
            'CREATE TABLE "s"."t" ("id" integer DEFAULT nextval(\'s.t_id_seq\'::regclass) NOT NULL, "n" integer'
            ' GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME "s"."t_n_seq" START WITH 1 INCREMENT BY 2 MINVALUE 1'
            " MAXVALUE 9 CACHE 1 NO CYCLE) NOT NULL)"
        ),
        'ALTER SEQUENCE s.t_id_seq OWNED BY "s"."t"."id"',
    )


def test_what_cascade_took_goes_first_and_by_name() -> None:
    after = with_columns(ITEMS["columns"][0])
    dropped = [
        gone("view", "shop", "v", original=False, normal=True),
        gone("table column", "shop", 'n"ote', oid=100, objsubid=2, table=["shop", "Items"]),
    ]
    assert rebuild(altered(after, dropped=dropped), {100: ITEMS}) == (
        'DROP VIEW "shop"."v"',
        'ALTER TABLE "shop"."Items" DROP COLUMN "n""ote"',
    )


@pytest.mark.parametrize(
    ("kind", "identity", "name", "statement"),
    [
        ("function", "s.f(integer,text[])", "f", "DROP FUNCTION s.f(integer,text[])"),
        ("trigger", '"a on b" on s.t', "a on b", 'DROP TRIGGER "a on b" ON "s"."t"'),
        ("policy", "p on s.t", "p", 'DROP POLICY "p" ON "s"."t"'),
        ("table constraint", "c on s.t", "c", 'ALTER TABLE "s"."t" DROP CONSTRAINT "c"'),
        ("default value", 'for s.t."a.b"', None, 'ALTER TABLE "s"."t" ALTER COLUMN "a.b" DROP DEFAULT'),
        ("domain constraint", '"x on y" on s.d', "x on y", 'ALTER DOMAIN s.d DROP CONSTRAINT "x on y"'),
        ("statistics object", "s.st", "st", "DROP STATISTICS s.st"),
        ("operator class", "s.oc USING btree", "oc", "DROP OPERATOR CLASS s.oc USING btree"),
    ],
)
def test_a_drop(kind: str, identity: str, name: str | None, statement: str) -> None:
    on = ["s", "t"] if kind not in ("function", "statistics object", "operator class", "domain constraint") else None
    dropped = [gone(kind, "s", name, identity=identity, table=on)]
    assert rebuild(event(f"DROP {kind.upper()}", "", dropped=dropped), {}) == (statement,)
    parse(statement)


def with_rest(what: CapturedEvent, rest: str) -> CapturedEvent:
    what["tables"]["100"]["rest"] = rest
    return what


NEW = table(9, "s", "n", [column(1, "a", "text", rest="compression pglz")], rest="row security; tablespace fast")
NEW_SETTINGS = {"default_tablespace": "fast", "default_table_access_method": "heap"}


def test_what_the_server_does_by_itself_is_no_reason_to_refuse() -> None:
    inherited = table(8, "s", "p", [column(1, "a", rest="storage m; statistics 5")], kind="p", rest="tablespace slow")
    part = table(
        9,
        "s",
        "n",
        [column(1, "a", rest="storage m", local=False)],
        parents=[["s", "p"]],
        bound="DEFAULT",
        rest="tablespace slow",
    )
    made = event("CREATE TABLE", "", [of_table(part, "CREATE TABLE")], tables=[part])
    assert rebuild(made, {8: inherited}) == ('CREATE TABLE "s"."n" PARTITION OF "s"."p" DEFAULT',)

    plain = changed(NEW, columns=[column(1, "a")], rest="tablespace fast")
    made = event("CREATE TABLE", "", [of_table(plain, "CREATE TABLE")], tables=[plain], settings=NEW_SETTINGS)
    assert rebuild(made, {}) == ('CREATE TABLE "s"."n" ("a" integer)',)

    before = with_columns(ITEMS["columns"][0], column(2, "b", "text", type_oid=25, rest="storage m; statistics 5"))
    before["rest"] = "clustered on gone"
    after = with_columns(ITEMS["columns"][0], column(2, "b", "varchar", type_oid=1043, rest="statistics 5"))
    assert rebuild(altered(after, dropped=[gone("index", "shop", "gone")]), {100: before}) == (
        'ALTER TABLE "shop"."Items" ALTER COLUMN "b" TYPE varchar USING "b"::varchar',
    )


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (altered(ITEMS), "nothing in the metadata of this ALTER TABLE shows what it changed"),
        (altered(table(9, "s", "unheard_of")), "its version before this command is not known"),
        (altered(changed(ITEMS, kind="p")), "became another kind of relation"),
        (
            with_rest(altered(with_columns(*ITEMS["columns"], column(3, "c"))), "row security; disabled trigger tg"),
            "it changed what is not rebuilt (disabled trigger tg, row security)",
        ),
        (
            altered(with_columns(ITEMS["columns"][0], column(2, 'n"ote', "text", type_oid=25, rest="storage e"))),
            '(column n"ote: storage e)',
        ),
        (altered(with_columns(*ITEMS["columns"], column(3, "c", rest="statistics 5"))), "(column c: statistics 5)"),
        (
            altered(with_columns(ITEMS["columns"][0], column(2, 'n"ote', "varchar", type_oid=1043, rest="storage m"))),
            "storage m",
        ),
        (
            event("CREATE TABLE", "", [of_table(NEW, "CREATE TABLE")], tables=[NEW]),
            "(row security, tablespace fast, column a: compression pglz)",
        ),
        (event("DROP OWNED", "", dropped=[gone("table", "s", "t")]), "revokes rights"),
        (event("GRANT", "", [thing("GRANT", "table")]), "GRANT cannot be told"),
        (event("ALTER FUNCTION", "", [thing("ALTER FUNCTION", "function", definition="…")]), "ALTER FUNCTION cannot"),
        (event("CREATE AGGREGATE", "", [thing("CREATE AGGREGATE", "aggregate")]), "CREATE AGGREGATE cannot be told"),
        (event("CREATE TYPE", "", [thing("CREATE TYPE", "type")]), "does not print the definition"),
        (event("DROP USER MAPPING", "", dropped=[gone("user mapping", None, "u")]), "no statement that drops"),
    ],
)
def test_what_cannot_be_rebuilt_says_why(what: CapturedEvent, reason: str) -> None:
    with pytest.raises(CannotRebuild) as refused:
        rebuild(what, {100: ITEMS})
    assert reason in refused.value.what


def test_when_a_column_got_its_type_is_no_fact_of_its_own() -> None:
    """Newer minor versions of Postgres note it among its options."""
    told = ["options {pg_attver=22097032}", "options {pg_attver=5,n_distinct=7}", "options {n_distinct=7,pg_attver=5}"]
    found = [rest_of(column(1, "a", rest=f"storage m; {options}")) for options in told]
    assert found == [{"storage m"}, {"storage m", "options {n_distinct=7}"}, {"storage m", "options {n_distinct=7}"}]
