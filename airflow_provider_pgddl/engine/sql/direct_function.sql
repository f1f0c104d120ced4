-- name: modes
-- Every relation whose changes may not all be in its log.
SELECT DISTINCT root, mode FROM pgddl.captured WHERE pipeline = %s AND mode <> 'log'

-- name: files
SELECT k.root, k.leaf::text, c.relfilenode::bigint
FROM pgddl.captured k JOIN pg_catalog.pg_class c ON c.oid = k.leaf
WHERE k.pipeline = %s AND k.mode = 'direct'

-- name: leaves
SELECT leaf, function FROM pgddl.captured WHERE pipeline = %s AND root = %s

-- name: set_mode
UPDATE pgddl.captured SET mode = %s WHERE pipeline = %s AND leaf = %s

-- name: log_body
SELECT p.prosrc FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = 'pgddl' AND p.proname = %s

-- name: late_checks
-- What is checked later than with its row cannot tell the trigger that a row has to wait.
SELECT i.relname FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
WHERE x.indrelid = %s AND NOT x.indimmediate ORDER BY 1

-- name: versions
-- Every ALTER of a column writes its row anew, and no other row has the same xmin. And whose they are.
SELECT count(*), pg_catalog.array_agg(DISTINCT a.xmin::text)::text,
       (SELECT pg_catalog.array_agg(c.relowner)::text FROM pg_catalog.pg_class c WHERE c.oid = ANY(%(relations)s::oid[]))
FROM pg_catalog.pg_attribute a WHERE a.attrelid = ANY(%(relations)s::oid[]) AND a.attnum > 0

-- name: as_made_for
-- No event trigger tells of REASSIGN OWNED.
SELECT count(*) = {count} AND bool_and(a.xmin = ANY ({versions}::xid[]))
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = ANY ({relations}::oid[]) AND c.relowner <> ALL ({owners}::oid[]))
FROM pg_catalog.pg_attribute a WHERE a.attrelid = ANY ({relations}::oid[]) AND a.attnum > 0

-- name: body
-- What is written to the copy is the row as the table has it now, not as this event saw it: the events of one row may come in
-- another order than its versions, where a trigger or a function of the application's writes it once more. Every key that is not
-- certain to be right in the copy by the end goes into the log, and nothing that the copy answers reaches the client.
#variable_conflict use_column
DECLARE
    rows_before text := coalesce(pg_catalog.current_setting('pgddl.direct', true), '');
    written     bigint;
    fine        boolean;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        BEGIN
            IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' OR NOT ({as_made_for}) THEN
                RAISE EXCEPTION 'nobody knows whose it is';
            END IF;
            PERFORM pg_catalog.set_config('lock_timeout', {lock_timeout}, true);
            TRUNCATE {copy_only};
        EXCEPTION WHEN OTHERS THEN
            -- Not 'T': rows that came straight to the copy behind it would go as well, and no log tells of them.
            INSERT INTO {log} (op, leaf) VALUES ('X', TG_RELID);
        END;
        RETURN NULL;
    END IF;
    IF pg_catalog.rtrim(rows_before, '.') <> '' THEN
        rows_before := '';      -- a client's own, not ours
    END IF;
    -- A snapshot that is kept may not show the copy's row, or what the table has become; and reading the copy would make
    -- serializable transactions fail that have nothing to do with each other.
    IF pg_catalog.length(rows_before) < {most} AND pg_catalog.current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM pg_catalog.set_config('pgddl.direct', rows_before || '.', true);
        BEGIN
            PERFORM pg_catalog.set_config('lock_timeout', {lock_timeout}, true);
            fine := ({as_made_for});
            IF fine AND TG_OP <> 'INSERT' THEN
                DELETE FROM {copy_only} AS c WHERE {copy_old};
                GET DIAGNOSTICS written = ROW_COUNT;
                fine := written = 1;
            END IF;
            IF fine AND TG_OP <> 'DELETE' THEN
                INSERT INTO {into} OVERRIDING SYSTEM VALUE
                SELECT {expressions} FROM {source} AS t WHERE {source_new} ON CONFLICT DO NOTHING;
                GET DIAGNOSTICS written = ROW_COUNT;
                fine := written = 1;
            END IF;
            IF fine AND (TG_OP = 'DELETE' OR TG_OP = 'UPDATE' AND NOT ({same_key})) THEN
                fine := NOT EXISTS (SELECT FROM {source} AS t WHERE {source_old});
            END IF;
        EXCEPTION WHEN OTHERS THEN
            fine := false;
        END;
        IF fine THEN
            RETURN NULL;
        END IF;
        PERFORM pg_catalog.set_config('pgddl.direct', pg_catalog.repeat('.', {most}), true);
        PERFORM pg_catalog.set_config('lock_timeout', '0', true);   -- the log has to take the key, and can
    END IF;

-- name: create
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER {settings} AS {body}
