"""Which columns a statement names, and what goes with a dropped one."""

from __future__ import annotations

import pytest

from airflow_provider_pgddl.engine.ddl.columns import columns_named, going_with
from airflow_provider_pgddl.engine.ddl.events import events_from_dump


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("CREATE INDEX i ON s.t (a, lower(b)) INCLUDE (c) WHERE d > 0", "abcd"),
        ("ALTER TABLE ONLY s.t ADD CONSTRAINT x CHECK (((a > 0) AND (b < 3)))", "ab"),
        ("ALTER TABLE ONLY s.t ADD CONSTRAINT x FOREIGN KEY (a) REFERENCES s.u(b)", "a"),
        ("ALTER TABLE ONLY s.t ADD CONSTRAINT x UNIQUE (a) INCLUDE (b)", "ab"),
        ("ALTER TABLE ONLY s.t ADD CONSTRAINT x EXCLUDE USING gist (a WITH &&) WHERE (b)", "ab"),
        ("ALTER TABLE ONLY s.t ALTER COLUMN a SET STATISTICS 5", "a"),
        ("ALTER TABLE ONLY s.t REPLICA IDENTITY USING INDEX i", "i"),
        ("ALTER TABLE s.t OWNER TO x", ""),
        ("ALTER SEQUENCE s.q OWNED BY s.t.a", "a"),
        ("ALTER SEQUENCE s.q OWNED BY NONE", ""),
        ("COMMENT ON COLUMN s.t.a IS 'x'", "a"),
        ("COMMENT ON TABLE s.t IS 'x'", ""),
        ("COMMENT ON CONSTRAINT a ON s.t IS 'x'", ""),
        ("GRANT SELECT(a), UPDATE(b) ON TABLE s.t TO x", "ab"),
        ("GRANT ALL ON TABLE s.t TO x", ""),
        ("CREATE STATISTICS s.st ON a, (b + c) FROM s.t", "abc"),
    ],
)
def test_a_statement_names_columns(statement: str, named: str) -> None:
    assert columns_named(statement) == set(named)


def test_what_hangs_on_a_dropped_column_goes_with_it_and_nothing_else() -> None:
    pre = """
CREATE TABLE s.t (id integer, a integer);
CREATE SEQUENCE s.q;
ALTER SEQUENCE s.q OWNED BY s.t.a;
ALTER TABLE ONLY s.t ALTER COLUMN a SET DEFAULT nextval('s.q'::regclass);
COMMENT ON SEQUENCE s.q IS 'goes';
COMMENT ON COLUMN s.t.a IS 'goes';
COMMENT ON TABLE s.t IS 'stays';
GRANT SELECT(a) ON TABLE s.t TO PUBLIC;
"""
    post = """
ALTER TABLE ONLY s.t ADD CONSTRAINT pk PRIMARY KEY (id);
ALTER TABLE ONLY s.t ADD CONSTRAINT t UNIQUE (a);
CREATE INDEX i ON s.t (id, a);
ALTER TABLE s.t CLUSTER ON i;
COMMENT ON CONSTRAINT t ON s.t IS 'goes';
COMMENT ON INDEX s.i IS 'goes';
CREATE TRIGGER g BEFORE UPDATE OF a ON s.t FOR EACH ROW EXECUTE FUNCTION s.f();
"""
    events = [e for e in events_from_dump(pre, post) if e.table == ("s", "t")]
    going = going_with(events, ["a"])
    left = [e.statement.split("\n")[0] for e in events if e not in going]
    assert left == [
        "CREATE TABLE s.t (id integer, a integer)",
        "CREATE SEQUENCE s.q",
        "COMMENT ON TABLE s.t IS 'stays'",
        "ALTER TABLE ONLY s.t ADD CONSTRAINT pk PRIMARY KEY (id)",
        "CREATE TRIGGER g BEFORE UPDATE OF a ON s.t FOR EACH ROW EXECUTE FUNCTION s.f()",
    ]
