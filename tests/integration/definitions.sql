-- Definitions of every kind that holds an expression, written as people write them: what Postgres prints of some is read
-- as something that it prints otherwise, so a dump of a restored dump is another text (C31).
CREATE SCHEMA s;
CREATE TYPE s.mood AS ENUM ('a', 'b', 'c');
CREATE TYPE s.pair AS (x int, y varchar(3));
CREATE DOMAIN s.code AS varchar(5) DEFAULT CASE WHEN 'a'::varchar IN ('a', 'b') THEN 'a' END
    CHECK (VALUE IN ('a', 'b')) CHECK (length(VALUE) BETWEEN 1 AND 5 AND VALUE <> 'z');
CREATE FUNCTION s.f(text, text[] DEFAULT ARRAY['a', 'b']::varchar[]) RETURNS boolean
    LANGUAGE sql IMMUTABLE AS 'SELECT $1 = ANY ($2)';
CREATE TABLE s.t (
    id int PRIMARY KEY, s varchar(9), c char(3), n numeric(10,2), i int, b bigint, si smallint, d date, ts timestamptz,
    tm timestamp, j jsonb, a varchar(9)[], m s.mood, f float8, r real, y bytea, nm name, ch "char", iv interval,
    bo boolean DEFAULT ('a'::varchar IN ('a', 'b')), u uuid, p s.pair, dom s.code, x text, r4 int4range, bi bit(3),
    vb varbit, o oid
);
CREATE INDEX partial ON s.t (i) WHERE s IN ('a', 'b') AND i BETWEEN 1 AND 5 AND b > 3;
CREATE UNIQUE INDEX unique_partial ON s.t (i) WHERE s NOT IN ('a', 'b');
CREATE UNIQUE INDEX expression ON s.t (id, (s IN ('a', 'b')), (CASE s WHEN 'a' THEN 1 END)) WITH (fillfactor = 70);
CREATE STATISTICS s.statistics ON (s IN ('a', 'b')), (i + b), id FROM s.t;
CREATE POLICY policy ON s.t USING (s IN ('a', 'b') AND id = 1) WITH CHECK (s NOT IN ('a', 'b') OR i BETWEEN 1 AND 2);
CREATE TRIGGER "when" BEFORE UPDATE ON s.t FOR EACH ROW WHEN (new.s IN ('a', 'b') AND old.s IS DISTINCT FROM new.s)
    EXECUTE FUNCTION suppress_redundant_updates_trigger();
CREATE CONSTRAINT TRIGGER later AFTER UPDATE ON s.t DEFERRABLE FOR EACH ROW WHEN (new.s IN ('a', 'b'))
    EXECUTE FUNCTION suppress_redundant_updates_trigger();
CREATE RULE rule AS ON UPDATE TO s.t WHERE new.s IN ('a', 'b')
    DO ALSO UPDATE s.t SET i = 2 WHERE t.x IN (new.s, old.s) AND t.s NOT IN ('x', 'y');
CREATE VIEW s.plain AS SELECT t.id, t.s AS i, s IN ('a', 'b') AS e, count(*) OVER (PARTITION BY t.s IN ('a', 'b'))
    FROM s.t WHERE s IN ('a', 'b') AND t.id IN (SELECT t.id FROM s.t o WHERE o.i = t.i AND t.s IN ('a', 'b'))
    ORDER BY t.i, t.b, t.id;
CREATE VIEW s.grouped AS SELECT DISTINCT ON (max(t.b)) t.s, max(t.b) FROM s.t GROUP BY t.s, t.s IN ('a', 'b')
    HAVING t.s IN ('a', 'b') ORDER BY max(t.b), t.s;
CREATE VIEW s.joined AS SELECT q.*, t.* FROM (SELECT t.s AS q FROM s.t WHERE s IN ('a', 'b')) q
    JOIN s.t ON t.s = q.q AND q.q IN ('a', 'b') UNION ALL SELECT t.s, t.* FROM s.t ORDER BY 1;
CREATE VIEW s.checked AS SELECT v.id, v.s FROM s.t v WHERE v.s IN ('a', 'b') WITH CASCADED CHECK OPTION;
CREATE MATERIALIZED VIEW s.kept AS
    WITH w AS (SELECT t.id FROM s.t WHERE s IN ('a', 'b')) SELECT w.id FROM w WHERE w.id > 1 WITH NO DATA;
CREATE FUNCTION s.body(s.t) RETURNS boolean BEGIN ATOMIC SELECT s IN ('a', 'b') FROM s.t; SELECT $1.s IN ('x', 'y'); END;
CREATE TABLE s.partitioned (id int, s varchar) PARTITION BY RANGE ((s IN ('a', 'b')), (id + 1));
CREATE TABLE s.partition PARTITION OF s.partitioned (CHECK (s IN ('a', 'b'))) FOR VALUES FROM (false, 1) TO (true, 9);
CREATE TABLE s.excluding (r int4range, s varchar, EXCLUDE USING gist (r WITH &&) WHERE (s IN ('a', 'b')))
