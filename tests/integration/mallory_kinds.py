"""Every kind of code that a table can have, each on a table of its own: what Mallory makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Expected = Literal["guarded", "refused"]  # refused: a pipeline may refuse it instead
Where = Literal["in place", "across"]


@dataclass(frozen=True)
class Kind:
    """`made` is run as her; in it {t} is the table, {e} a number and {told} a text by way of her code, {w} the kind."""

    name: str
    made: str
    expected: Expected = "guarded"
    value: str = "'v' || i"  # of column v, for row i
    alter: tuple[str, ...] = ()  # what a rewrite does to it
    where: tuple[Where, ...] = ("in place", "across")
    as_superuser: str = ""  # run last, as somebody who may
    key: str = "id"
    table: str = ""
    partition_by: Mapping[str, Any] = field(default_factory=dict, hash=False)
    order_by: tuple[str, ...] = ()
    one_way: bool = False  # a swap of it cannot be taken back

    @property
    def relation(self) -> str:
        return f'm."{self.table or self.name}"'

    def told(self, text: str) -> str:
        return (
            text.replace("{t}", self.relation)
            .replace("{e}", f"m.evil(id, '{self.name}')")
            .replace("{told}", f"m.told(v, '{self.name}')")
            .replace("{key}", f'"{self.key}"')
            .replace("{w}", self.name)
        )

    def rows(self, first: int, last: int) -> str:
        return (
            f'INSERT INTO {self.relation} ("{self.key}", v)'
            f" SELECT i, {self.told(self.value)} FROM generate_series({first}, {last}) i"
        )


PLAIN = "CREATE TABLE {t} (id bigint PRIMARY KEY, v text); "
TRIGGER = PLAIN + "CREATE %s ON {t} %s EXECUTE FUNCTION m.fires('{w}')"
PRINTS = (
    " RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN BEGIN PERFORM lair.attack('{w}'); EXCEPTION WHEN OTHERS THEN"
    " NULL; END; RETURN pg_catalog.format('%s', x); END $$;"
)
MOOD = "CREATE TYPE m.mood_{w} AS ENUM ('v1', 'v2', 'v3');"
MOOD += (
    "CREATE FUNCTION m.label(x m.mood_{w})"
    + PRINTS
    + "CREATE CAST (m.mood_{w} AS text) WITH FUNCTION m.label(m.mood_{w}) "
)
MOODS = "(ARRAY['v1', 'v2', 'v3'])[1 + i % 3]::m.mood_{w}"
SPAN = (
    "CREATE FUNCTION m.far_{w}(float8, float8) RETURNS float8 LANGUAGE plpgsql IMMUTABLE AS"
    " $$ BEGIN PERFORM lair.glance('{w}'); RETURN $1 - $2; END $$;"
    "CREATE TYPE m.span_{w} AS RANGE (subtype = float8, subtype_diff = m.far_{w}, multirange_type_name = m.span_{w}_s);"
)
WORD = "CREATE DOMAIN m.word_{w} AS text CHECK (m.told(VALUE, '{w}') IS NOT NULL); "

KINDS: tuple[Kind, ...] = (
    # what is computed or checked with every row
    Kind("check", "CREATE TABLE {t} (id bigint PRIMARY KEY, v text, CHECK ({e} > 0))"),
    Kind("check_constant", "CREATE TABLE {t} (id bigint PRIMARY KEY, v text, CHECK (m.evil(1, '{w}') > 0))"),
    Kind("check_not_valid", PLAIN + "ALTER TABLE {t} ADD CHECK ({e} > 0) NOT VALID"),
    Kind("check_of_row", PLAIN + "ALTER TABLE {t} ADD CHECK (m.whole(ROW(id, v), '{w}'))"),
    Kind("generated", "CREATE TABLE {t} (id bigint PRIMARY KEY, v text, g bigint GENERATED ALWAYS AS ({e}) STORED)"),
    Kind("generated_constant", "CREATE TABLE {t} (id bigint PRIMARY KEY, v text,"
                               " g bigint GENERATED ALWAYS AS (id + m.evil(1, '{w}')) STORED)"),
    Kind("default", "CREATE TABLE {t} (id bigint PRIMARY KEY, v text, d bigint DEFAULT m.evil(1, '{w}'))"),
    Kind("default_of_domain", "CREATE DOMAIN m.late_{w} AS bigint DEFAULT m.evil(1, '{w}');"
                              "CREATE TABLE {t} (id bigint PRIMARY KEY, v text, d m.late_{w})"),
    Kind("domain", WORD + "CREATE TABLE {t} (id bigint PRIMARY KEY, v m.word_{w})"),
    Kind("domain_constant", "CREATE DOMAIN m.word_{w} AS text CHECK (m.evil(1, '{w}') > 0);"
                            "CREATE TABLE {t} (id bigint PRIMARY KEY, v m.word_{w})"),
    Kind("domain_key", "CREATE DOMAIN m.number_{w} AS bigint CHECK (m.evil(VALUE, '{w}') > 0);"
                       "CREATE TABLE {t} (id m.number_{w} PRIMARY KEY, v text)"),
    # indexes and statistics: also run where a query is merely planned, if they call with constants only
    Kind("index_expression", PLAIN + "CREATE INDEX ON {t} (({e}))"),
    Kind("index_unique", PLAIN + "CREATE UNIQUE INDEX ON {t} (({e}))"),
    Kind("index_predicate", PLAIN + "CREATE INDEX ON {t} (v) WHERE {e} > 0"),
    Kind("index_constant", PLAIN + "CREATE INDEX ON {t} (v) WHERE m.evil(1, '{w}') > 0"),
    Kind("index_expression_constant", PLAIN + "CREATE INDEX ON {t} ((id + m.evil(1, '{w}')))"),
    # (in place, DDL that locks anything beside the copy is taken back, and her code does that to tell where it ran)
    Kind("exclusion", PLAIN + "ALTER TABLE {t} ADD EXCLUDE USING btree (({e}) WITH =)", where=("across",)),
    Kind("exclusion_deferred", PLAIN + "ALTER TABLE {t} ADD EXCLUDE USING btree (({e}) WITH =)"
                                       " DEFERRABLE INITIALLY DEFERRED", where=("across",)),
    Kind("statistics", PLAIN + "CREATE STATISTICS m.s_{w} ON ({e}), v FROM {t}"),
    Kind("statistics_constant", PLAIN + "CREATE STATISTICS m.s_{w} ON (id + m.evil(1, '{w}')), v FROM {t}"),
    Kind("range_difference", SPAN + "CREATE TABLE {t} (id bigint PRIMARY KEY, v m.span_{w});"
                             "CREATE INDEX ON {t} USING gist (v);"
                             "INSERT INTO {t} SELECT i, m.span_{w}(i, i + 1) FROM generate_series(1000, 1250) i",
         value="m.span_{w}(i, i + 1)"),
    Kind("range_key", SPAN + "CREATE TABLE {t} (id bigint, v m.span_{w}, PRIMARY KEY (id, v));"
                      "INSERT INTO {t} SELECT i, m.span_{w}(i, i + 1) FROM generate_series(1000, 1250) i",
         value="m.span_{w}(i, i + 1)", expected="refused"),
    Kind("multirange", SPAN + "CREATE TABLE {t} (id bigint PRIMARY KEY, v m.span_{w}_s);"
                       "INSERT INTO {t}"
                       " SELECT i, m.span_{w}_s(m.span_{w}(i, i + 1)) FROM generate_series(1000, 1250) i",
         value="m.span_{w}_s(m.span_{w}(i, i + 1))"),
    Kind("operator_class", PLAIN + "CREATE FUNCTION m.compare_{w}(bigint, bigint) RETURNS int"
                                   " LANGUAGE plpgsql IMMUTABLE AS"
                                   " $$ BEGIN PERFORM lair.glance('{w}');"
                                   " RETURN CASE WHEN $1 < $2 THEN -1 WHEN $1 > $2 THEN 1 ELSE 0 END; END $$",
         expected="refused",
         as_superuser="CREATE OPERATOR CLASS m.ops_{w} FOR TYPE bigint USING btree AS OPERATOR 1 <, OPERATOR 2 <=,"
                      " OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 m.compare_{w}(bigint, bigint);"
                      "CREATE INDEX ON {t} (id m.ops_{w})"),
    # partitions
    Kind("partition_check", "CREATE TABLE {t} (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id);"
                            "CREATE TABLE m.{w}_1 PARTITION OF {t} (CHECK ({e} > 0)) FOR VALUES FROM (0) TO (10);"
                            "CREATE TABLE m.{w}_2 PARTITION OF {t} (CHECK (m.evil(2, '{w}') > 0)) DEFAULT",
         where=("across",)),
    Kind("partition_key", "CREATE TABLE {t} (id bigint NOT NULL, v text)"
                          " PARTITION BY LIST ((m.evil(id % 2 + 1, '{w}')));"
                          "CREATE TABLE m.{w}_1 PARTITION OF {t} FOR VALUES IN (1);"
                          "CREATE TABLE m.{w}_2 PARTITION OF {t} FOR VALUES IN (2)",
         expected="refused", where=("across",)),
    Kind("partition_key_constant", "CREATE TABLE {t} (id bigint NOT NULL, v text)"
                                   " PARTITION BY LIST ((id % 2 + m.evil(1, '{w}')));"
                                   "CREATE TABLE m.{w}_1 PARTITION OF {t} FOR VALUES IN (1);"
                                   "CREATE TABLE m.{w}_2 PARTITION OF {t} FOR VALUES IN (2)",
         expected="refused", where=("across",)),
    Kind("partition_key_domain", "CREATE DOMAIN m.number_{w} AS bigint CHECK (m.evil(VALUE, '{w}') > 0);"
                                 "CREATE TABLE {t} (id m.number_{w} NOT NULL, v text) PARTITION BY RANGE (id);"
                                 "CREATE TABLE m.{w}_1 PARTITION OF {t} FOR VALUES FROM (1) TO (10);"
                                 "CREATE TABLE m.{w}_2 PARTITION OF {t} DEFAULT",
         expected="refused", where=("across",)),
    Kind("partition_index_constant", "CREATE TABLE {t} (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id);"
                                     "CREATE TABLE m.{w}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (10);"
                                     "CREATE TABLE m.{w}_2 PARTITION OF {t} DEFAULT;"
                                     "CREATE INDEX ON {t} ((id + m.evil(1, '{w}')))",
         where=("across",)),
    Kind("not_null_of_child", "CREATE TABLE m.{w}_of (id bigint PRIMARY KEY, v text);"
                              "CREATE TABLE {t} (id bigint PRIMARY KEY, v text NOT NULL,"
                              " CHECK (m.evil(1, '{w}') > 0)) INHERITS (m.{w}_of)", where=("across",)),
    # what fires
    Kind("trigger_before", TRIGGER % ("TRIGGER f BEFORE INSERT OR UPDATE OR DELETE", "FOR EACH ROW")),
    Kind("trigger_after", TRIGGER % ("TRIGGER f AFTER INSERT OR UPDATE OR DELETE", "FOR EACH ROW")),
    Kind("trigger_when", TRIGGER % ("TRIGGER f AFTER INSERT", "FOR EACH ROW WHEN (m.evil(NEW.id, '{w}') > 0)")),
    Kind("trigger_statement", TRIGGER % ("TRIGGER f AFTER INSERT OR UPDATE OR DELETE", "FOR EACH STATEMENT")),
    Kind("trigger_truncate", TRIGGER % ("TRIGGER f BEFORE TRUNCATE", "FOR EACH STATEMENT")),
    Kind("trigger_deferred", TRIGGER % ("CONSTRAINT TRIGGER f AFTER INSERT OR UPDATE OR DELETE",
                                            "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW")),
    Kind("trigger_always", TRIGGER % ("TRIGGER f AFTER INSERT OR UPDATE OR DELETE", "FOR EACH ROW") +
         "; ALTER TABLE {t} ENABLE ALWAYS TRIGGER f", expected="refused"),
    Kind("policy", PLAIN + "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY;"
                           "CREATE POLICY p ON {t} USING ({e} > 0) WITH CHECK ({e} > 0)"),
    Kind("policy_forced", PLAIN + "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
                                  "CREATE POLICY p ON {t} USING ({e} > 0) WITH CHECK ({e} > 0)", expected="refused"),
    Kind("rule", PLAIN + "CREATE RULE r AS ON INSERT TO {t} DO ALSO"
                         " INSERT INTO lair.echo VALUES (m.evil(NEW.id, '{w}'));"
                         "CREATE RULE d AS ON DELETE TO {t} DO ALSO"
                         " INSERT INTO lair.echo VALUES (m.evil(OLD.id, '{w}'))"),
    # what stands on a table
    Kind("view", PLAIN + "CREATE VIEW m.on_{w} AS SELECT id, {e} AS e FROM {t} WHERE m.evil(1, '{w}') > 0"),
    Kind("materialized_view", PLAIN + "CREATE MATERIALIZED VIEW m.on_{w} AS SELECT id, {e} AS e FROM {t}"),
    Kind("aggregate", "CREATE FUNCTION m.step(bigint, bigint) RETURNS bigint LANGUAGE plpgsql AS"
                      " $$ BEGIN PERFORM m.strike('{w}'); RETURN $1; END $$;"
                      "CREATE AGGREGATE m.all_of(bigint) (sfunc = m.step, stype = bigint);" + PLAIN +
                      "CREATE MATERIALIZED VIEW m.on_{w} AS SELECT m.all_of(id) FROM {t}"),
    # casts that whoever writes `v::text` calls
    Kind("cast_of_enum", MOOD + "; CREATE TABLE {t} (id bigint PRIMARY KEY, v m.mood_{w})", value=MOODS),
    Kind("cast_of_enum_implicit", MOOD + "AS IMPLICIT; CREATE TABLE {t} (id bigint PRIMARY KEY, v m.mood_{w})",
         value=MOODS),
    Kind("cast_of_key", MOOD + "AS ASSIGNMENT; CREATE TABLE {t} (id bigint, v m.mood_{w}, PRIMARY KEY (v, id))",
         value=MOODS),
    Kind("cast_of_composite", "CREATE TYPE m.pair_{w} AS (a int, b text);"
                              "CREATE FUNCTION m.both(x m.pair_{w})" + PRINTS +
                              "CREATE CAST (m.pair_{w} AS text) WITH FUNCTION m.both(m.pair_{w}) AS IMPLICIT;"
                              "CREATE TABLE {t} (id bigint PRIMARY KEY, v m.pair_{w})",
         value="ROW(i, 'b')::m.pair_{w}"),
    Kind("cast_of_row", PLAIN + "CREATE FUNCTION m.row_{w}(x {t})" + PRINTS +
                                "CREATE CAST ({t} AS text) WITH FUNCTION m.row_{w}({t}) AS IMPLICIT",
         expected="refused"),  # what refers to the row's type no copy can have
    # further ways to a function
    Kind("operator", "CREATE OPERATOR m.>>>> (leftarg = bigint, rightarg = text, function = m.above);"
                     "CREATE TABLE {t} (id bigint PRIMARY KEY, v text, CHECK (id OPERATOR(m.>>>>) '{w}'))"),
    Kind("sql_function", "CREATE FUNCTION m.plain_{w}(bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS"
                         " $$ SELECT m.evil($1, '{w}') $$;"
                         "CREATE TABLE {t} (id bigint PRIMARY KEY, v text, CHECK (m.plain_{w}(id) > 0))"),
    Kind("foreign_key", "CREATE TABLE m.{w}_of (id bigint PRIMARY KEY);"
                        "CREATE INDEX ON m.{w}_of (id) WHERE m.evil(1, '{w}') > 0;"
                        "INSERT INTO m.{w}_of SELECT generate_series(1, 2000);"
                        "CREATE TABLE {t} (id bigint PRIMARY KEY REFERENCES m.{w}_of ON DELETE CASCADE, v text)",
         where=("in place",)),
    Kind("names", "CREATE TABLE {t} ({key} bigint PRIMARY KEY, v text, "
                  "\"'); PERFORM lair.attack('{w}'); --\" text CHECK (true))",
         table="x'); SELECT lair.attack('names'); --", key="k\\'||lair.attack('names')||\\'"),
    # of a rewrite
    Kind("using", PLAIN, alter=("ALTER COLUMN v TYPE varchar USING m.told(v, 'using')",), one_way=True,
         where=("in place",)),
    Kind("using_domain", PLAIN + WORD, alter=("ALTER COLUMN v TYPE m.word_using_domain USING v::m.word_using_domain",),
         one_way=True, where=("in place",)),
    Kind("using_cast", MOOD + "AS ASSIGNMENT; CREATE TABLE {t} (id bigint PRIMARY KEY, v m.mood_{w})", value=MOODS,
         alter=("ALTER COLUMN v TYPE text",), where=("in place",)),
    Kind("retyped_key", "CREATE TABLE {t} (id int PRIMARY KEY, v text, CHECK ({e} > 0))",
         alter=("ALTER COLUMN id TYPE bigint",), where=("in place",)),
    Kind("made_not_null", "CREATE TABLE {t} (id bigint PRIMARY KEY, v text, CHECK (m.evil(1, '{w}') > 0))",
         alter=("ALTER COLUMN v SET NOT NULL",), where=("in place",)),
    Kind("made_partitioned", "CREATE TABLE {t} (id bigint PRIMARY KEY, v text, CHECK ({e} > 0),"
                             " g bigint GENERATED ALWAYS AS ({e}) STORED); CREATE INDEX ON {t} (({e}))",
         partition_by={"column": "id", "range": 100}, one_way=True, where=("in place",)),
    Kind("ordered", WORD + "CREATE TABLE {t} (id bigint PRIMARY KEY, v m.word_{w}, CHECK ({e} > 0));"
                           "CREATE INDEX ON {t} (v, id) WHERE m.evil(1, '{w}') > 0", order_by=("v",),
         where=("in place",)),
    # what may be refused: whose rights would it have?
    Kind("domain_in_array", WORD + "CREATE TABLE {t} (id bigint PRIMARY KEY, v m.word_{w}[])", expected="refused",
         value="ARRAY['v' || i]"),
    Kind("domain_in_composite", WORD + "CREATE TYPE m.pair_{w} AS (a int, b m.word_{w});"
                                       "CREATE TABLE {t} (id bigint PRIMARY KEY, v m.pair_{w})", expected="refused",
         value="ROW(i, 'b')::m.pair_{w}"),
    Kind("third_role", "CREATE TABLE {t} (id bigint PRIMARY KEY, v text, CHECK (lair.of_bob(id, '{w}') > 0))",
         expected="refused"),
    Kind("leaf_of_another", "CREATE TABLE {t} (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id);"
                            "CREATE TABLE m.{w}_1 PARTITION OF {t} (CHECK (lair.of_bob(id, '{w}') > 0)) DEFAULT",
         expected="refused", where=("across",),
         as_superuser="GRANT ALL ON SCHEMA m TO {bob}; ALTER TABLE m.{w}_1 OWNER TO {bob}"),
)  # fmt: skip

BY_NAME = {kind.name: kind for kind in KINDS}

# What nobody but herself runs, whoever is trusted: writes of others fire none of it, a superuser passes it by, no
# pipeline calls that cast, or Postgres itself changes to the owner where it runs. The names are no code at all.
HERS_ALONE = {
    "trigger_before", "trigger_after", "trigger_when", "trigger_statement", "trigger_truncate", "trigger_deferred",
    "trigger_always", "policy", "policy_forced", "rule", "view", "materialized_view", "aggregate", "statistics",
    "default", "default_of_domain", "multirange", "cast_of_enum", "cast_of_enum_implicit", "cast_of_key",
    "cast_of_composite", "cast_of_row", "names",
}  # fmt: skip
