-- Everything that pg_dump prints about a schema, in shapes that break readers of its output.
-- Loads on 14 and newer with no extension; the roles pgddl_test_app and pgddl_test_owner must exist.

CREATE SCHEMA shop;
CREATE SCHEMA "Odd "" Schema.x";
ALTER SCHEMA shop OWNER TO pgddl_test_owner;
COMMENT ON SCHEMA shop IS 'it''s; -- not a comment';
GRANT USAGE ON SCHEMA shop TO pgddl_test_app;

CREATE TYPE shop.status AS ENUM ('new', 'pa''id', 'sent; or not', 'commit;');
CREATE DOMAIN shop.email AS text DEFAULT 'nobody@example.org' NOT NULL CONSTRAINT has_at CHECK (VALUE ~ '@');
CREATE TYPE shop.address AS (street text, city character varying(40), zip shop.email);
CREATE TYPE shop.span AS RANGE (subtype = numeric, multirange_type_name = shop.spans);
COMMENT ON TYPE shop.address IS 'a composite';
COMMENT ON COLUMN shop.address.city IS 'a column of a composite';
COMMENT ON DOMAIN shop.email IS 'a domain';
GRANT USAGE ON TYPE shop.status TO pgddl_test_app;
CREATE COLLATION shop.plain (provider = libc, locale = 'C');

CREATE FUNCTION shop.touch() RETURNS trigger LANGUAGE plpgsql AS $fn$
BEGIN
  -- a comment; with a semicolon
  IF NEW.note = 'it''s; "quoted" -- too' THEN
    EXECUTE format($q$SELECT %L; -- nested$q$, ';');
  END IF;
  RETURN NEW;
END;
$fn$;
CREATE FUNCTION shop.twice(n integer DEFAULT 1, VARIADIC more integer[] DEFAULT '{}') RETURNS integer
  LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 7 RETURN n * 2;
CREATE FUNCTION shop.body(n integer) RETURNS TABLE(a integer, b text) LANGUAGE sql
BEGIN ATOMIC
  SELECT n, 'x;y'::text;
  SELECT n + 1, 'z'::text;
END;
CREATE FUNCTION shop.lines() RETURNS text LANGUAGE sql AS E'\r\n  SELECT ''a\r\nb'' -- c\r\n';
CREATE PROCEDURE shop.nothing(INOUT x integer) LANGUAGE plpgsql SET work_mem = '4MB' AS $$ BEGIN NULL; END $$;
CREATE FUNCTION shop.plus(shop.address, shop.address) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT true $$;
CREATE OPERATOR shop.=== (FUNCTION = shop.plus, LEFTARG = shop.address, RIGHTARG = shop.address);
CREATE AGGREGATE shop.total(integer) (SFUNC = int4pl, STYPE = integer, INITCOND = '0');
CREATE FUNCTION shop.flag(shop.address) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT true $$;
CREATE CAST (shop.address AS boolean) WITH FUNCTION shop.flag(shop.address);
CREATE TEXT SEARCH CONFIGURATION shop.words (COPY = simple);
REVOKE ALL ON FUNCTION shop.touch() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION shop.touch() TO pgddl_test_app;
COMMENT ON FUNCTION shop.twice(integer, integer[]) IS '$$ dollar $fn$ quotes; E''\n''';
ALTER FUNCTION shop.twice(integer, integer[]) OWNER TO pgddl_test_owner;

CREATE SEQUENCE shop.invoice_no AS integer START 100 INCREMENT 5 CACHE 3 CYCLE MAXVALUE 100000;
GRANT USAGE ON SEQUENCE shop.invoice_no TO pgddl_test_app;

CREATE TABLE shop.customers (
  id bigint GENERATED ALWAYS AS IDENTITY (START WITH 7 INCREMENT BY 3) PRIMARY KEY,
  email shop.email,
  place shop.address,
  parent_id bigint,
  favourite_order integer,
  "Name ""with"" dots.and spaces" text DEFAULT 'commit;' COLLATE shop.plain,
  tags text[] DEFAULT ARRAY['a;b', 'c''d']::text[],
  born date DEFAULT '1970-01-01'::date,
  CONSTRAINT customers_email_key UNIQUE NULLS NOT DISTINCT (email) INCLUDE (born) WITH (fillfactor = 80),
  CONSTRAINT "check, the; one" CHECK (born > '1900-01-01'::date) NO INHERIT,
  CONSTRAINT customers_parent_fkey FOREIGN KEY (parent_id) REFERENCES shop.customers(id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE shop.customers OWNER TO pgddl_test_owner;

CREATE TABLE shop.orders (
  id serial,
  customer_id bigint NOT NULL,
  status shop.status DEFAULT 'new'::shop.status NOT NULL,
  note text,
  price numeric(10,2) DEFAULT 0.00 NOT NULL,
  amount integer DEFAULT 1,
  total numeric GENERATED ALWAYS AS (price * amount) STORED,
  no integer DEFAULT nextval('shop.invoice_no'::regclass),
  at timestamp with time zone DEFAULT now(),
  valid shop.span,
  body jsonb DEFAULT '{"a": [1, "commit; -- x"]}'::jsonb,
  lines text DEFAULT E'a\r\nb\rc' CONSTRAINT "in lines" CHECK (lines <> E'\r\n'),
  more_lines text GENERATED ALWAYS AS (note || E'\r\n' || price) STORED,
  CONSTRAINT orders_pkey PRIMARY KEY (id),
  CONSTRAINT orders_valid_excl EXCLUDE USING gist (valid WITH &&) WHERE (note IS DISTINCT FROM 'x')
);
ALTER TABLE shop.orders ADD CONSTRAINT orders_customer_fkey FOREIGN KEY (customer_id) REFERENCES shop.customers(id)
  ON UPDATE CASCADE ON DELETE RESTRICT DEFERRABLE INITIALLY DEFERRED;
ALTER TABLE shop.customers ADD CONSTRAINT customers_favourite_fkey FOREIGN KEY (favourite_order)
  REFERENCES shop.orders(id) ON DELETE SET NULL NOT VALID;
ALTER TABLE shop.orders ADD CONSTRAINT orders_price_check CHECK (price >= 0) NOT VALID;
CREATE INDEX orders_at_idx ON shop.orders USING btree (at DESC NULLS LAST, lower(note)) INCLUDE (price)
  WITH (fillfactor = 90) WHERE status <> 'commit;'::shop.status;
CREATE UNIQUE INDEX orders_note_idx ON shop.orders (note COLLATE shop.plain text_pattern_ops) NULLS NOT DISTINCT;
CREATE UNIQUE INDEX orders_ident ON shop.orders (customer_id, id);
CREATE INDEX orders_expr_idx ON shop.orders ((price * amount), (note || ' ON USING shop'));
ALTER INDEX shop.orders_expr_idx ALTER COLUMN 1 SET STATISTICS 500;
CREATE INDEX "orders body.idx" ON shop.orders USING gin (body jsonb_path_ops);
ALTER TABLE shop.orders CLUSTER ON orders_ident;
ALTER TABLE shop.orders REPLICA IDENTITY USING INDEX orders_ident;
ALTER TABLE shop.orders ALTER COLUMN note SET STORAGE EXTERNAL, ALTER COLUMN note SET STATISTICS 321,
  ALTER COLUMN customer_id SET (n_distinct = -0.5);
CREATE STATISTICS shop.orders_stats (ndistinct, dependencies) ON customer_id, status FROM shop.orders;
CREATE STATISTICS shop.orders_expr_stats ON (price * amount), (lower(note)) FROM shop.orders;
ALTER STATISTICS shop.orders_stats SET STATISTICS 77;
ALTER STATISTICS shop.orders_stats OWNER TO pgddl_test_owner;
COMMENT ON STATISTICS shop.orders_stats IS 'statistics';
CREATE TRIGGER orders_touch BEFORE INSERT OR UPDATE OF note, price ON shop.orders FOR EACH ROW
  WHEN (NEW.note IS NOT NULL) EXECUTE FUNCTION shop.touch('a; b', '-- c');
CREATE CONSTRAINT TRIGGER orders_later AFTER INSERT ON shop.orders DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION shop.touch();
CREATE TRIGGER orders_all AFTER UPDATE ON shop.orders REFERENCING OLD TABLE AS o NEW TABLE AS n
  FOR EACH STATEMENT EXECUTE FUNCTION shop.touch();
ALTER TABLE shop.orders ENABLE ALWAYS TRIGGER orders_touch;
ALTER TABLE shop.orders DISABLE TRIGGER orders_all;
CREATE RULE orders_quiet AS ON DELETE TO shop.orders WHERE old.note = 'keep; me' DO INSTEAD NOTHING;
ALTER TABLE shop.orders DISABLE RULE orders_quiet;
ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY;
ALTER TABLE shop.orders FORCE ROW LEVEL SECURITY;
CREATE POLICY "orders; mine" ON shop.orders AS RESTRICTIVE FOR SELECT TO pgddl_test_app
  USING (customer_id IN (SELECT c.id FROM shop.customers c WHERE c.email::text = current_user));
CREATE POLICY orders_insert ON shop.orders FOR INSERT WITH CHECK (price > 0);
COMMENT ON TABLE shop.orders IS E'the orders,\r\nin lines';
COMMENT ON COLUMN shop.orders.note IS 'a note; with -- signs';
COMMENT ON CONSTRAINT orders_pkey ON shop.orders IS 'the key';
COMMENT ON INDEX shop.orders_at_idx IS 'an index';
COMMENT ON TRIGGER orders_touch ON shop.orders IS 'a trigger';
COMMENT ON POLICY orders_insert ON shop.orders IS 'a policy';
COMMENT ON RULE orders_quiet ON shop.orders IS 'a rule';
GRANT SELECT, INSERT (note, price), UPDATE (note) ON shop.orders TO pgddl_test_app WITH GRANT OPTION;
GRANT SELECT ON shop.customers TO PUBLIC;
REVOKE UPDATE ON shop.customers FROM pgddl_test_owner;
COMMENT ON SEQUENCE shop.orders_id_seq IS 'a serial';
ALTER SEQUENCE shop.orders_id_seq CACHE 20;
GRANT USAGE ON SEQUENCE shop.orders_id_seq TO pgddl_test_app;

-- Partitions of two levels, a default partition, indexes attached and not, a key of the parent.
CREATE TABLE shop.events (
  id bigint NOT NULL, at timestamp with time zone NOT NULL, kind text NOT NULL, order_id integer,
  CONSTRAINT events_pkey PRIMARY KEY (id, at, kind)
) PARTITION BY RANGE (at);
CREATE TABLE shop.events_2024 PARTITION OF shop.events
  FOR VALUES FROM ('2024-01-01 00:00:00+00') TO ('2025-01-01 00:00:00+00') PARTITION BY LIST (kind);
CREATE TABLE shop.events_2024_a PARTITION OF shop.events_2024 FOR VALUES IN ('a', 'b;', NULL) WITH (fillfactor = 60);
CREATE TABLE shop.events_2024_rest PARTITION OF shop.events_2024 DEFAULT;
CREATE TABLE shop.events_rest (
  kind text DEFAULT 'x' NOT NULL, order_id integer, id bigint NOT NULL, at timestamp with time zone NOT NULL);
ALTER TABLE shop.events ATTACH PARTITION shop.events_rest DEFAULT;
CREATE INDEX events_order_idx ON shop.events (order_id);
CREATE INDEX events_2024_a_only ON shop.events_2024_a (id);
ALTER TABLE shop.events ADD CONSTRAINT events_order_fkey FOREIGN KEY (order_id) REFERENCES shop.orders(id);
CREATE TRIGGER events_touch AFTER INSERT ON shop.events FOR EACH ROW EXECUTE FUNCTION shop.touch();
CREATE TABLE shop.hashed (id integer PRIMARY KEY, v text) PARTITION BY HASH (id);
CREATE TABLE shop.hashed_0 PARTITION OF shop.hashed FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE shop.hashed_1 PARTITION OF shop.hashed FOR VALUES WITH (MODULUS 2, REMAINDER 1);

-- Inheritance, unlogged, typed tables, names that hurt.
CREATE TABLE shop.animal (id integer NOT NULL, name text CONSTRAINT named CHECK (name <> ''), PRIMARY KEY (id));
CREATE TABLE shop.dog (good boolean DEFAULT true, PRIMARY KEY (id)) INHERITS (shop.animal);
CREATE UNLOGGED TABLE shop.scratch (k uuid PRIMARY KEY, v bytea DEFAULT '\x00ff'::bytea);
CREATE TABLE shop.typed OF shop.address (PRIMARY KEY (street));
CREATE TABLE "Odd "" Schema.x"."orders.with ""quotes"" and; semicolons" (
  "id;" integer GENERATED BY DEFAULT AS IDENTITY, "select" text, "E'\x" text DEFAULT E'back\\slash\n',
  PRIMARY KEY ("id;"));
CREATE TABLE shop.a23456789012345678901234567890123456789012345678901234567890123 (
  id integer PRIMARY KEY, b23456789012345678901234567890123456789012345678901234567890123 serial);
CREATE TABLE shop."größe_ñandú" ("schlüssel" integer PRIMARY KEY, "naïve" text DEFAULT 'žluťoučký; kůň');
CREATE INDEX "idx größe" ON shop."größe_ñandú" ("naïve");
COMMENT ON COLUMN "Odd "" Schema.x"."orders.with ""quotes"" and; semicolons"."select" IS 'odd';
CREATE TABLE shop.virtual_key (a integer, b integer, c integer, FOREIGN KEY (a) REFERENCES shop.orders(id));
CREATE UNIQUE INDEX virtual_key_ab ON shop.virtual_key (a, b) WHERE c > 0;
ALTER TABLE shop.virtual_key REPLICA IDENTITY FULL;

-- Views: plain, with options, updatable with a trigger, depending on a primary key, materialized, recursive in time.
CREATE VIEW shop.recent WITH (security_barrier = true) AS
  SELECT o.id, o.note, 'x; -- y'::text AS lit FROM shop.orders o WHERE o.at > now() - '1 day'::interval
  WITH CASCADED CHECK OPTION;
CREATE VIEW shop.by_customer AS
  SELECT c.id, c.email, c.born, count(o.id) AS n FROM shop.customers c LEFT JOIN shop.orders o ON o.customer_id = c.id
  GROUP BY c.id;
CREATE VIEW shop.on_view AS SELECT n FROM shop.by_customer WHERE n > 3;
CREATE MATERIALIZED VIEW shop.cached WITH (fillfactor = 50) AS SELECT id, n FROM shop.by_customer;
CREATE UNIQUE INDEX cached_id ON shop.cached (id);
CREATE MATERIALIZED VIEW shop.empty AS SELECT 1 AS one WITH NO DATA;
CREATE FUNCTION shop.recent_write() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER recent_write INSTEAD OF INSERT ON shop.recent FOR EACH ROW EXECUTE FUNCTION shop.recent_write();
ALTER VIEW shop.recent ALTER COLUMN note SET DEFAULT 'v;';
COMMENT ON VIEW shop.recent IS 'a view';
COMMENT ON MATERIALIZED VIEW shop.cached IS 'cached';
GRANT SELECT ON shop.recent TO pgddl_test_app;
CREATE RULE recent_notify AS ON UPDATE TO shop.on_view DO INSTEAD (NOTIFY shop_recent; DELETE FROM shop.scratch);
CREATE FUNCTION shop.rows_of(shop.orders) RETURNS text LANGUAGE sql STABLE AS 'SELECT $1.note';
CREATE FUNCTION shop.all_orders() RETURNS SETOF shop.orders LANGUAGE sql STABLE BEGIN ATOMIC SELECT * FROM shop.orders; END;

ALTER DEFAULT PRIVILEGES FOR ROLE pgddl_test_owner IN SCHEMA shop GRANT SELECT ON TABLES TO pgddl_test_app;
ALTER DEFAULT PRIVILEGES FOR ROLE pgddl_test_owner REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
CREATE FOREIGN DATA WRAPPER nowhere;
CREATE SERVER away FOREIGN DATA WRAPPER nowhere OPTIONS (host 'x;y');
CREATE USER MAPPING FOR pgddl_test_app SERVER away OPTIONS (user 'u');
CREATE FOREIGN TABLE shop.far (id integer OPTIONS (column_name 'i;d'), v text) SERVER away OPTIONS (t 'z');
CREATE PUBLICATION shop_pub FOR TABLE shop.orders (id, note, customer_id) WHERE (id > 0);
