-- The guard of a trigger function cost as much as the row that it logs. Now it is looked at once a session and after each change of
-- the table, instead of once a row.

-- Whether these columns still are the relation's, with these names and types. It reads the catalog and is called immutable all the
-- same: the planner then keeps the answer in the plan of an expression that calls it with constants. A plan that names a relation by
-- a constant of type regclass is made anew after every change of that relation's columns, by whichever session, before a row of it
-- can be written. Only where statements see the present: a snapshot that is kept may be older, and the answer would outlive it.
CREATE FUNCTION pgddl.key_is(leaf regclass, attnums smallint[], names name[], types oid[]) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $function$
    SELECT count(*) = cardinality(attnums)
    FROM unnest(attnums, names, types) k(attnum, name, type)
    JOIN pg_attribute a ON a.attrelid = leaf AND a.attnum = k.attnum AND a.attname = k.name AND a.atttypid = k.type
    WHERE NOT a.attisdropped
$function$;

-- As before but for the guard. Functions that are there already keep theirs until they are made again.
CREATE OR REPLACE FUNCTION pgddl.make_capture(pipeline text, leaf oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
DECLARE
    captured    pgddl.captured;
    body        text;
BEGIN
    SELECT * INTO STRICT captured FROM pgddl.captured c WHERE c.pipeline = $1 AND c.leaf = $2;
    SELECT format($body$
DECLARE
    as_made boolean;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        INSERT INTO pgddl.%1$I (op, leaf) VALUES ('T', TG_RELID);
        RETURN NULL;
    END IF;
    IF pg_catalog.current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        as_made := %2$s;
    ELSE
        as_made := pgddl.key_is(%7$L::pg_catalog.regclass, %8$L::pg_catalog.int2[], %9$L::pg_catalog.name[], %10$L::pg_catalog.oid[]);
    END IF;
    IF NOT as_made THEN
        INSERT INTO pgddl.%1$I (op, leaf) VALUES ('X', TG_RELID);
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO pgddl.%1$I (op, leaf, %3$s, %4$s) VALUES ('U', TG_RELID, %5$s, %6$s);
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO pgddl.%1$I (op, leaf, %4$s) VALUES ('I', TG_RELID, %6$s);
    ELSE
        INSERT INTO pgddl.%1$I (op, leaf, %3$s) VALUES ('D', TG_RELID, %5$s);
    END IF;
    RETURN NULL;
END
$body$, captured.log_table,
        string_agg(format('EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = TG_RELID AND attname = %L'
                          ' AND atttypid = %s AND attnum = %s AND NOT attisdropped)', k.name, k.type, k.attnum), ' AND ' ORDER BY n),
        string_agg(format('old_%s', n), ', ' ORDER BY n), string_agg(format('new_%s', n), ', ' ORDER BY n),
        string_agg(format('OLD.%I', k.name), ', ' ORDER BY n), string_agg(format('NEW.%I', k.name), ', ' ORDER BY n),
        captured.leaf::text, captured.key::text, captured.key_names::text, captured.key_types::text)
    INTO body
    FROM unnest(captured.key, captured.key_names, captured.key_types) WITH ORDINALITY k(attnum, name, type, n);
    EXECUTE format('CREATE OR REPLACE FUNCTION pgddl.%I() RETURNS trigger'
                   ' LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L', captured.function, body);
END
$function$;
