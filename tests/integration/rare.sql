-- Tables that are rarely met, one for each way, with what may stand on them; none of them is like the others. Postgres 18.

CREATE EXTENSION vector;
CREATE ACCESS METHOD another_heap TYPE TABLE HANDLER heap_tableam_handler;
CREATE TYPE public.row AS (id integer, note text);
CREATE FUNCTION public.look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;

CREATE TABLE public.without_rows (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text UNIQUE, about integer REFERENCES public.without_rows);
CREATE VIEW public.nothing AS SELECT note FROM public.without_rows;

-- Every column of it was dropped once.
CREATE TABLE public.dropped (id integer, note text DEFAULT 'gone', no serial, at date);
ALTER TABLE public.dropped DROP note, DROP id, DROP at, DROP no;
ALTER TABLE public.dropped ADD at date DEFAULT '2026-01-01', ADD no serial, ADD id integer, ADD note text DEFAULT 'new', ADD PRIMARY KEY (id);
ALTER TABLE public.dropped ADD twice integer GENERATED ALWAYS AS (no * 2) STORED, ADD CHECK (no > 0);
CREATE INDEX ON public.dropped (note) WHERE at > '2020-01-01';
GRANT UPDATE (note) ON public.dropped TO PUBLIC;
CREATE VIEW public.of_dropped AS SELECT * FROM public.dropped;
CREATE FUNCTION public.name_of(public.dropped) RETURNS text LANGUAGE sql AS 'SELECT $1.note || $1.twice';
INSERT INTO public.dropped (id, note) SELECT n, 'note ' || n FROM generate_series(1, 50) n;

CREATE TABLE public.of_type OF public.row (PRIMARY KEY (id), note DEFAULT 'typed');
INSERT INTO public.of_type (id) SELECT generate_series(1, 20);

CREATE TABLE public.odd (id integer PRIMARY KEY, a integer, b integer, large serial, narrow serial, CHECK (a > 0) NOT VALID) USING another_heap;
ALTER TABLE public.odd REPLICA IDENTITY NOTHING, ALTER narrow TYPE bigint;
CREATE INDEX odd_a ON public.odd (a);
ALTER INDEX public.odd_a DEPENDS ON EXTENSION vector;
CREATE TRIGGER look AFTER INSERT ON public.odd FOR EACH ROW EXECUTE FUNCTION public.look();
ALTER TRIGGER look ON public.odd DEPENDS ON EXTENSION vector;
CREATE SEQUENCE public.of_odd OWNED BY public.odd.a;
GRANT USAGE ON SEQUENCE public.of_odd TO PUBLIC;
ALTER SEQUENCE public.odd_large_seq AS bigint;
SELECT setval('public.odd_large_seq', 5000000000), setval('public.of_odd', 77);
CREATE TABLE public.pairs (a integer, b integer, PRIMARY KEY (a, b));
ALTER TABLE public.odd ADD FOREIGN KEY (a, b) REFERENCES public.pairs ON DELETE SET NULL (b);
INSERT INTO public.pairs SELECT n, n FROM generate_series(1, 20) n;
INSERT INTO public.odd (id, a, b, large) SELECT n, n, n, n FROM generate_series(1, 20) n;

-- Two schemas of 63 bytes that differ in the last one, and in them names of 63 bytes.
DO $$
DECLARE
    home text;
BEGIN
    FOREACH home IN ARRAY ARRAY[repeat('Sch ', 15) || 'abX', repeat('Sch ', 15) || 'abY'] LOOP
        EXECUTE format('CREATE SCHEMA %I', home);
        EXECUTE format('CREATE TABLE %I.%I (%I serial CONSTRAINT %I PRIMARY KEY, %I text CONSTRAINT %I CHECK (%5$I <> %7$L) CONSTRAINT %8$I UNIQUE)',
                       home, repeat('Ta"b', 15) || 'le1', repeat('Ke''y', 12) || 'key', repeat('Pk_', 21), repeat('Te x', 15) || 't 1',
                       repeat('Ck%', 21), home, repeat('Uq;', 21));
        EXECUTE format('CREATE INDEX %I ON %I.%I (lower(%I))', repeat('Ix.', 21), home, repeat('Ta"b', 15) || 'le1', repeat('Te x', 15) || 't 1');
        EXECUTE format('CREATE STATISTICS %I.%I ON %I, %I FROM %1$I.%5$I', home, repeat('St,', 21), repeat('Ke''y', 12) || 'key',
                       repeat('Te x', 15) || 't 1', repeat('Ta"b', 15) || 'le1');
        EXECUTE format('CREATE TRIGGER %I AFTER DELETE ON %I.%I FOR EACH ROW EXECUTE FUNCTION public.look()', repeat('Tg*', 21), home, repeat('Ta"b', 15) || 'le1');
        EXECUTE format('CREATE POLICY %I ON %I.%I USING (true)', repeat('Po-', 21), home, repeat('Ta"b', 15) || 'le1');
        EXECUTE format('COMMENT ON TABLE %I.%I IS %1$L', home, repeat('Ta"b', 15) || 'le1');
        EXECUTE format('CREATE VIEW %I.%I AS SELECT * FROM %1$I.%3$I', home, repeat('Vi/', 21), repeat('Ta"b', 15) || 'le1');
        EXECUTE format('INSERT INTO %I.%I (%I) SELECT %1$L || n FROM generate_series(1, 20) n', home, repeat('Ta"b', 15) || 'le1', repeat('Te x', 15) || 't 1');
    END LOOP;
END
$$;

CREATE TABLE public.periods (id integer PRIMARY KEY, k int4range, during daterange, UNIQUE (k, during WITHOUT OVERLAPS));
INSERT INTO public.periods VALUES (1, '[1,2)', '[2026-01-01,2027-01-01)');
CREATE TABLE public.of_18 (
    id integer, during daterange, v integer CONSTRAINT v_named NOT NULL NO INHERIT, w integer CONSTRAINT "w; named" NOT NULL, late integer,
    twice integer GENERATED ALWAYS AS (v * 2) VIRTUAL, r int4range, vr int4range,
    CONSTRAINT of_18_key PRIMARY KEY (id), CONSTRAINT of_18_over UNIQUE (vr, during WITHOUT OVERLAPS),
    CONSTRAINT unenforced CHECK (v > 1000) NOT ENFORCED,
    CONSTRAINT fk_unenforced FOREIGN KEY (w) REFERENCES public.periods NOT ENFORCED,
    CONSTRAINT fk_period FOREIGN KEY (r, PERIOD during) REFERENCES public.periods (k, PERIOD during));
ALTER TABLE public.of_18 ADD CONSTRAINT late_not_null NOT NULL late NOT VALID;
COMMENT ON CONSTRAINT "w; named" ON public.of_18 IS 'named';
COMMENT ON CONSTRAINT unenforced ON public.of_18 IS 'not enforced';
COMMENT ON CONSTRAINT fk_unenforced ON public.of_18 IS 'not enforced';
CREATE TABLE public.to_18 (id integer PRIMARY KEY, t integer CONSTRAINT to_it REFERENCES public.of_18 NOT ENFORCED, v int4range, during daterange,
    CONSTRAINT to_period FOREIGN KEY (v, PERIOD during) REFERENCES public.of_18 (vr, PERIOD during));
CREATE TABLE public.partitioned (id integer, t integer REFERENCES public.of_18, PRIMARY KEY (id)) PARTITION BY HASH (id);
CREATE TABLE public.partition PARTITION OF public.partitioned FOR VALUES WITH (MODULUS 1, REMAINDER 0);
INSERT INTO public.of_18 (id, during, v, w, late, r, vr)
SELECT n, '[2026-02-01,2026-03-01)', n, n, n, '[1,2)', int4range(n, n + 1) FROM generate_series(1, 50) n;
INSERT INTO public.to_18 VALUES (1, 99, '[1,2)', '[2026-02-01,2026-02-10)');
INSERT INTO public.partitioned SELECT n, n FROM generate_series(1, 50) n;
ANALYZE;
