"""rewrite.alter and foreign keys, taken apart in the tree."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.ddl.constraint_nodes import constraint_name, is_not_valid, not_valid
from airflow_provider_pgddl.engine.ddl.parse import deparse, parse
from airflow_provider_pgddl.engine.ddl.rewrite_actions import AlterAction, alter_actions
from airflow_provider_pgddl.engine.errors import StageFailed, UsageError

SUPPORTED = [
    ("ALTER COLUMN id TYPE bigint", AlterAction("TYPE", "id", "ALTER COLUMN id TYPE bigint")),
    ("alter id set data type numeric(10,2) using id / 100.0",
     AlterAction("TYPE", "id", "ALTER COLUMN id TYPE numeric(10, 2)", "id / 100.0")),
    ('ALTER "A b" TYPE text COLLATE "C" USING "A b"::text || \';\'',
     AlterAction("TYPE", "A b", 'ALTER COLUMN "A b" TYPE text COLLATE "C"', '"A b"::text || \';\'')),
    ("ALTER a SET NOT NULL", AlterAction("SET NOT NULL", "a", "ALTER COLUMN a SET NOT NULL")),
    ("ALTER a DROP NOT NULL", AlterAction("DROP NOT NULL", "a", "ALTER COLUMN a DROP NOT NULL")),
    ("ALTER a SET DEFAULT 'x;'", AlterAction("SET DEFAULT", "a", "ALTER COLUMN a SET DEFAULT 'x;'")),
    ("ALTER a DROP DEFAULT", AlterAction("DROP DEFAULT", "a", "ALTER COLUMN a DROP DEFAULT")),
    ("ALTER a SET STATISTICS 500", AlterAction("SET STATISTICS", "a", "ALTER COLUMN a SET STATISTICS 500")),
    ("ALTER a SET STORAGE external", AlterAction("SET STORAGE", "a", "ALTER COLUMN a SET STORAGE external")),
    ("ALTER a SET COMPRESSION lz4", AlterAction("SET COMPRESSION", "a", "ALTER COLUMN a SET COMPRESSION lz4")),
    ("ALTER a SET (n_distinct = 5)", AlterAction("SET", "a", "ALTER COLUMN a SET (n_distinct=5)")),
    ("SET (fillfactor = 70)", AlterAction("SET", None, "SET (fillfactor=70)")),
    ("RESET (fillfactor)", AlterAction("RESET", None, "RESET (fillfactor)")),
    ("SET TABLESPACE fast", AlterAction("SET TABLESPACE", None, "SET TABLESPACE fast")),
    ("DROP COLUMN IF EXISTS a", AlterAction("DROP COLUMN", "a", "DROP IF EXISTS a")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "action"), SUPPORTED, ids=[case[0] for case in SUPPORTED])
def test_c12_an_action_is_taken_apart_and_using_is_apart(text: str, action: AlterAction) -> None:
    assert alter_actions([text]) == [action]


def test_several_actions_in_one_text_are_several() -> None:
    actions = alter_actions(["ALTER a TYPE bigint, ALTER b DROP NOT NULL", "DROP COLUMN c"])
    assert [(a.kind, a.column) for a in actions] == [("TYPE", "a"), ("DROP NOT NULL", "b"), ("DROP COLUMN", "c")]
    assert actions[0].on("s", "T") == 'ALTER TABLE ONLY s."T" ALTER COLUMN a TYPE bigint'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("RENAME TO x", "RENAME"),
        ("RENAME COLUMN a TO b", "RENAME"),
        ("ADD COLUMN x int", "ADD COLUMN"),
        ("ADD CONSTRAINT c CHECK (true)", "ADD CONSTRAINT"),
        ("OWNER TO x", "CHANGE OWNER"),
        ("SET SCHEMA x", "SET SCHEMA"),
        ("ENABLE TRIGGER ALL", "ENABLE TRIG ALL"),
        ("ATTACH PARTITION x DEFAULT", "ATTACH PARTITION"),
        ("SET UNLOGGED", "SET UN LOGGED"),
        ("DROP COLUMN a CASCADE", "CASCADE"),
        ("ALTER a TYPE int USING (SELECT 1)", "query"),
        ("ALTER a TYPE int; DROP TABLE x", "several statements"),
        ("nonsense", "cannot read"),
        ("", "cannot read"),
    ],
)
def test_c12_what_is_not_supported_is_named(text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        alter_actions([text])


FK = 'ALTER TABLE s.t ADD CONSTRAINT "f k" FOREIGN KEY (a, b) REFERENCES s.r (x, y) ON DELETE SET NULL (a) DEFERRABLE'


def test_a_foreign_key_gets_not_valid_once() -> None:
    once = not_valid(FK)
    assert once == deparse(parse(FK + " NOT VALID"))
    assert not_valid(once) == once
    assert (is_not_valid(FK), is_not_valid(once)) == (False, True)
    assert is_not_valid("ALTER TABLE s.t ADD CONSTRAINT c FOREIGN KEY (a) REFERENCES s.r NOT ENFORCED")


def test_only_a_foreign_key_does() -> None:
    with pytest.raises(StageFailed, match="adds no foreign key"):
        not_valid("ALTER TABLE s.t ADD CONSTRAINT c CHECK (a > 0)")


def test_a_constraint_has_a_name() -> None:
    assert constraint_name(FK) == "f k"
    for nameless in ("ALTER TABLE s.t ADD PRIMARY KEY (a)", "ALTER TABLE s.t DROP COLUMN a", "SELECT 1"):
        with pytest.raises(StageFailed, match="constraint with a name"):
            constraint_name(nameless)
