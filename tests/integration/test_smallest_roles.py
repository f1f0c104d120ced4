"""docs/how-to/rights.md: whole lifecycles with exactly these rights, by roles that are no superusers, DDL included; and
with one of them taken away preflight names it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgddl.demo.clusters import Cluster
from airflow_provider_pgddl.demo.compare import differences
from airflow_provider_pgddl.engine.commands.admin_sql import admin_sql
from airflow_provider_pgddl.engine.commands.check import check
from airflow_provider_pgddl.engine.commands.reset import reset
from airflow_provider_pgddl.engine.pipeline.reading import load_pipeline
from airflow_provider_pgddl.engine.pipeline.way_back import way_back_of
from tests.combinations import matrix
from tests.conftest import REPOSITORY, Database
from tests.integration.lifecycle import Lifecycle, execute, left_behind, psql

PAGE = (REPOSITORY / "docs" / "how-to" / "rights.md").read_text(encoding="utf-8")
SHOP = """
CREATE SCHEMA shop AUTHORIZATION shop_owner; SET LOCAL ROLE shop_owner;
CREATE TABLE shop.customers (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL);
CREATE TABLE shop.orders (id serial PRIMARY KEY, customer int REFERENCES shop.customers, placed date DEFAULT now());
CREATE TABLE shop.visits (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE shop.visits_1 PARTITION OF shop.visits FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE VIEW shop.names AS SELECT name FROM shop.customers;
INSERT INTO shop.customers (name) SELECT 'customer ' || n FROM generate_series(1, 50) n;
INSERT INTO shop.orders (customer) SELECT 1 + n % 50 FROM generate_series(1, 200) n;
INSERT INTO shop.visits SELECT n, '2026-01-03' FROM generate_series(1, 20) n
"""
# What developers and writers do while a pipeline is at work: a key and a partition are what event triggers of the
# pipeline's own would follow at once.
CHANGES = """
SET LOCAL ROLE shop_owner;
ALTER TABLE shop.customers ADD COLUMN age int DEFAULT 5; ALTER TABLE shop.orders RENAME COLUMN id TO number;
INSERT INTO shop.customers (name) VALUES ('new'); DELETE FROM shop.orders WHERE number % 7 = 0;
CREATE TABLE shop.visits_2 PARTITION OF shop.visits FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
INSERT INTO shop.visits VALUES (7, '2026-02-03');
CREATE TABLE shop.later (id int PRIMARY KEY); INSERT INTO shop.later VALUES (1);
"""
REWRITE = {"rewrite": {"shop.orders": {"alter": ["ALTER COLUMN customer TYPE bigint"]}}}
EVERYTHING = {"tables": {"include": ["shop.*"]}}


@dataclass(frozen=True)
class Kind:
    """A heading of the page, what such a pipeline's file says, and what happens meanwhile."""

    heading: str
    pipeline: dict[str, Any]
    changes: str = CHANGES
    script: bool = True

    @property
    def in_place(self) -> bool:
        return "rewrite" in self.pipeline

    def statements(self, side: str) -> list[str]:
        (section,) = re.findall(rf"^## {self.heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
        blocks = re.findall(r"```sql\n-- (\w+)\n(.*?)```", section, re.DOTALL)
        return [line for where, text in blocks if where == side for line in text.splitlines() if line]


WRITES = (
    "SET LOCAL ROLE shop_owner; INSERT INTO shop.orders (customer) VALUES (3); DELETE FROM shop.orders WHERE id = 7"
)
KINDS = [
    Kind("Move or follow, by triggers", EVERYTHING),
    Kind("Move or follow, by a slot", {**EVERYTHING, "capture": {"rows": "wal"}}),
    Kind("Move with a way back", {**EVERYTHING, "swap": {"fence": "read_only", "way_back": "shop_back"}}),
    Kind("Move without captured DDL", {**EVERYTHING, "capture": {"ddl": "off"}}, WRITES, script=False),
    Kind("DDL alone", {**EVERYTHING, "ddl": {"ddl_only": True}}),
    Kind("Rewrite in place", REWRITE, f"{WRITES}; ALTER TABLE shop.orders ADD COLUMN note text DEFAULT 'x'"),
    Kind(
        "Rewrite in place, by a direct trigger",
        {**REWRITE, "capture": {"rows": "direct_trigger", "ddl": "off"}},
        WRITES,
        script=False,
    ),
]


@pytest.fixture
def roles(pg16: Cluster, pg18: Cluster) -> Iterator[None]:
    """Taken before the databases, and so gone behind them."""
    for cluster in (pg16, pg18):
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            (statement,) = re.findall(r"-- both\n(CREATE ROLE mover .*)", PAGE)
            admin.execute(statement.encode())
            admin.execute(f"ALTER ROLE mover PASSWORD '{cluster.password}'; CREATE ROLE shop_owner")
    yield
    for cluster in (pg16, pg18):
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            admin.execute("DROP OWNED BY mover; DROP ROLE mover; DROP ROLE shop_owner")  # rights to parameters


@dataclass
class Moved:
    """One pipeline of the role `mover`, and its administrators' connections."""

    kind: Kind
    move: Lifecycle
    admins: dict[str, str]
    clusters: dict[str, Cluster]

    def administer(self, side: str, statement: str) -> None:
        database = str(conninfo_to_dict(self.admins[side])["dbname"])
        execute(self.admins[side], statement.replace("DATABASE shop ", f"DATABASE {database} "))

    def fixes(self) -> dict[str, list[str]]:
        """The lines of the fixes of what preflight refuses, by side."""
        found = check(load_pipeline(self.move.content), self.move.source, self.move.target)["findings"]
        lines: dict[str, list[str]] = {"source": [], "target": []}
        for finding in found:
            if finding["severity"] == "error":
                lines[finding["where"]] += str(finding["fix"]).splitlines()
        return lines

    def script(self, *, undo: bool = False) -> dict[str, str]:
        """What --admin-sql prints, by side."""
        text = admin_sql(load_pipeline(self.move.content), self.move.source, self.move.target, undo=undo)
        parts = text.split("-- pgddl, the ")[1:]
        return {part.partition(":")[0]: f"-- the {part}" for part in parts}

    def run_script(self, *, undo: bool = False) -> None:
        for side, text in self.script(undo=undo).items():
            psql(self.clusters[side], self.admins[side], text)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.heading.replace(" ", "_"))
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


Make = Callable[[int, int], Moved]


@pytest.fixture
def make(
    roles: None, database: Database, lifecycle: Callable[..., Lifecycle], pg16: Cluster, pg18: Cluster, kind: Kind
) -> Make:
    """From a server of this version to one of that."""

    def made(version: int, target: int) -> Moved:
        servers = {16: pg16, 18: pg18}
        clusters = {"source": servers[version], "target": servers[target]}
        admins = {"source": database(clusters["source"])}
        if not kind.in_place:
            admins["target"] = database(clusters["target"])
        execute(admins["source"], SHOP)
        mine = {side: make_conninfo(dsn, user="mover") for side, dsn in admins.items()}
        move = lifecycle(mine["source"], mine.get("target"), **kind.pipeline)
        return Moved(kind, move, admins, clusters)

    return made


AWAY = """
SET LOCAL ROLE shop_owner; ALTER TABLE shop.customers ADD COLUMN away text DEFAULT 'x';
INSERT INTO shop.customers (name) VALUES ('away'); DELETE FROM shop.orders WHERE number % 7 = 1;
CREATE TABLE shop.visits_3 PARTITION OF shop.visits FOR VALUES FROM ('2026-03-01') TO ('2026-04-01');
INSERT INTO shop.visits VALUES (8, '2026-03-03')
"""


def to_and_fro(moved: Moved, lifecycle: Callable[..., Lifecycle]) -> None:
    """Back to the old server, and forward again."""
    move = moved.move
    back = lifecycle(move.target, move.source)
    back.content = way_back_of(load_pipeline(move.content)).to_json()
    execute(moved.admins["target"], AWAY)
    for way in (back, move):
        for stage in ("replay", "verify", "swap"):
            assert not way.run(stage).blocked
        assert differences(moved.admins["source"], moved.admins["target"]) == []
    assert not back.run("cleanup").blocked


@pytest.mark.parametrize("version", matrix(16, 18))
def test_a_whole_life_with_exactly_these_rights(make: Make, version: int, lifecycle: Callable[..., Lifecycle]) -> None:
    moved = make(version, 18)
    kind, move = moved.kind, moved.move
    for side in moved.admins:
        for statement in kind.statements(side):
            moved.administer(side, statement)
    if kind.script:
        moved.run_script()
    assert not any(moved.fixes().values())
    assert all("nothing is missing" in text for text in moved.script().values())
    move.run_all(until="replay")
    execute(moved.admins["source"], kind.changes)
    move.run("replay")
    if kind.pipeline.get("ddl"):
        query = "SELECT count(*) FROM pg_class WHERE relnamespace = 'shop'::regnamespace AND relkind IN ('r', 'p')"
        assert move.journal(query) == move.on_source(query)
        move.run("cleanup")
    else:
        for stage in ("replay", "verify", "swap"):
            assert not move.run(stage).blocked
        if "swap" in kind.pipeline:
            to_and_fro(moved, lifecycle)
        assert not move.run("cleanup").blocked
        if "swap" in kind.pipeline:
            reset(load_pipeline(move.content), move.source, move.target)  # which takes the fence down
    if not kind.in_place and "ddl" not in kind.pipeline:
        assert differences(moved.admins["source"], moved.admins["target"]) == []
    if kind.script:
        assert {line.split()[0] for line in left_behind(moved.admins["source"])} == {"schema", "event"}
        moved.run_script(undo=True)
    assert left_behind(moved.admins["source"]) == (["schema pgddl"] if kind.in_place and not kind.script else [])


@pytest.mark.parametrize("version", matrix(16, 18))
def test_with_one_right_less_preflight_names_it(make: Make, version: int) -> None:
    """On servers apart, for a role is a whole server's."""
    moved = make(version, {16: 18, 18: 16}[version])
    kind = moved.kind
    for side in moved.admins:
        for statement in kind.statements(side):
            moved.administer(side, statement)
    if kind.script:
        assert any("--admin-sql" in line for line in moved.fixes()["source"])
        moved.run_script()
    for side in moved.admins:
        for statement in kind.statements(side):
            away = statement.replace("GRANT ", "REVOKE ").replace(" TO mover", " FROM mover")
            moved.administer(side, away.replace(" REPLICATION", " NOREPLICATION"))
            named = [re.sub(r"DATABASE \S+", "DATABASE shop", line) for line in moved.fixes()[side]]
            assert statement in named, (statement, named)
            moved.administer(side, statement)
    assert not any(moved.fixes().values())


def test_who_fills_the_set_gains_nothing_by_it(
    roles: None, database: Database, lifecycle: Callable[..., Lifecycle], pg16: Cluster, pg18: Cluster
) -> None:
    """Whoever is `mover` puts functions beside those that run as the administrator, and rows that tell them to act."""
    admins = {"source": database(pg16), "target": database(pg18)}
    execute(admins["source"], SHOP)
    execute(admins["source"], "CREATE SCHEMA vault; CREATE TABLE vault.p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    mine = {side: make_conninfo(dsn, user="mover") for side, dsn in admins.items()}
    move = lifecycle(mine["source"], mine["target"], **EVERYTHING)
    moved = Moved(KINDS[0], move, admins, {"source": pg16, "target": pg18})
    moved.run_script()
    move.run("setup")
    attacks = [
        f"CREATE FUNCTION pgddl.{name}({arguments}) RETURNS {result} LANGUAGE plpgsql AS "
        "$$BEGIN ALTER ROLE mover SUPERUSER; RETURN; END$$"
        for name, arguments, result in (
            ("record_exception", "text, text, text, varchar", "void"),
            ("record_exception", "text, text, text, name", "void"),
            ("stash", "text, varchar, jsonb", "void"),
            ("emit_command", "text, varchar, jsonb", "void"),
        )
    ]
    for statement in attacks:
        execute(mine["source"], statement)
    for name in (
        "identify_relations(relations oid[])",
        "record_command()",
        "emit_command(tag text, context text, stash jsonb)",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            execute(mine["source"], f"CREATE OR REPLACE FUNCTION pgddl.{name} RETURNS void LANGUAGE sql AS 'SELECT'")
    execute(
        mine["source"],
        "INSERT INTO pgddl.captured (pipeline, root, leaf, log_table, function, key, key_names, key_types)"
        " SELECT k.pipeline, c.oid, 1, k.log_table, k.function, k.key, k.key_names, k.key_types"
        " FROM pg_class c, (SELECT * FROM pgddl.captured LIMIT 1) k WHERE c.relname = 'p'",
    )
    # By a superuser: commands that are recorded, and one whose recording fails.
    execute(admins["source"], "CREATE TABLE vault.p1 PARTITION OF vault.p FOR VALUES FROM (1) TO (9)")
    execute(admins["source"], "ALTER TABLE shop.customers ADD COLUMN x int; DROP TABLE shop.visits_1")
    with psycopg.connect(admins["source"]) as conn:
        conn.execute("ALTER SEQUENCE pgddl.ddl_queue_id_seq MAXVALUE 2147483648")
        conn.execute("SELECT setval('pgddl.ddl_queue_id_seq', 2147483648)")
        conn.execute("CREATE TABLE shop.unrecorded (id int)")
        assert conn.execute("SELECT count(*) FROM pgddl.exceptions").fetchone() != (0,)
    query = "SELECT rolsuper FROM pg_roles WHERE rolname = 'mover'"
    assert move.on_source(query) == [(False,)]
    with psycopg.connect(admins["source"]) as conn:
        triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'vault.p1'::regclass"
        assert conn.execute(triggers).fetchone() == (0,)


PART = {
    "tables": {
        "include": ["shop.*"],
        "where": {"shop.orders": "customer < 25", "shop.visits": "id % 2 = 0"},
        "transform": {"shop.customers": {"name": "md5(name)"}},
    },
    "replay": {"run_for": "2s"},
}
PART_CHANGES = """
SET LOCAL ROLE shop_owner; ALTER TABLE shop.customers ADD COLUMN age int DEFAULT 5;
INSERT INTO shop.customers (name) VALUES ('new'); UPDATE shop.orders SET customer = 51 - customer WHERE id % 7 = 0;
CREATE TABLE shop.visits_2 PARTITION OF shop.visits FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
INSERT INTO shop.visits VALUES (7, '2026-02-03'), (8, '2026-02-03')
"""


BY_CAPTURE = pytest.mark.parametrize(
    "kind",
    [pytest.param(KINDS[n], id=by, marks=pytest.mark.combination(by)) for n, by in enumerate(("change_log", "wal"))],
)


@BY_CAPTURE
def test_part_of_the_rows_and_a_replay_that_stays_need_no_more(make: Make, kind: Kind) -> None:
    moved = make(16, 18)
    move = moved.move
    move.content = {**move.content, **PART}
    for side in moved.admins:
        for statement in kind.statements(side):
            moved.administer(side, statement)
    moved.run_script()
    move.run_all(until="replay")
    execute(moved.admins["source"], PART_CHANGES)
    for stage in ("replay", "verify", "swap"):
        assert not move.run(stage).blocked
    with psycopg.connect(moved.admins["source"]) as source, psycopg.connect(moved.admins["target"]) as target:
        for query, part, made in (
            ("SELECT id, customer FROM shop.orders", " WHERE customer < 25", ""),
            ("SELECT id, at FROM shop.visits", " WHERE id % 2 = 0", ""),
            ("SELECT id, name, age FROM shop.customers", "", "md5(name)"),
        ):
            wanted = source.execute(f"{query.replace('name', made or 'name')}{part} ORDER BY 1, 2".encode()).fetchall()
            assert wanted and target.execute(f"{query} ORDER BY 1, 2".encode()).fetchall() == wanted
    assert not move.run("cleanup").blocked


@BY_CAPTURE
def test_an_archive_needs_no_more(make: Make, kind: Kind) -> None:
    moved = make(16, 18)
    move = moved.move
    move.content = {**move.content, "tables": {"include": ["shop.orders"], "operations": ["insert", "update"]}}
    for side in moved.admins:
        for statement in kind.statements(side):
            moved.administer(side, statement)
    moved.run_script()
    move.run_all(until="replay")
    execute(moved.admins["source"], "DELETE FROM shop.orders WHERE id <= 3; UPDATE shop.orders SET customer = 1")
    for stage in ("replay", "verify", "swap", "cleanup"):
        assert not move.run(stage).blocked
    with psycopg.connect(moved.admins["source"]) as source, psycopg.connect(moved.admins["target"]) as target:
        orders = b"SELECT id, customer FROM shop.orders WHERE id > 3 ORDER BY id"
        wanted = source.execute(orders).fetchall()
        assert wanted and target.execute(orders).fetchall() == wanted
        assert target.execute(b"SELECT count(*) FROM shop.orders WHERE id <= 3").fetchone() == (3,)
