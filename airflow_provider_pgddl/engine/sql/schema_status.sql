-- name: statuses
SELECT schema_name, table_name, status, findings, since, checked_at, resolution, source_fingerprint, target_fingerprint,
       notified_at
FROM pgddl.schema_status WHERE pipeline = %(pipeline)s
ORDER BY schema_name COLLATE "C", table_name COLLATE "C"

-- name: statuses_of
SELECT s.schema_name, s.table_name, s.status, s.findings, s.since, s.checked_at, s.resolution, s.source_fingerprint,
       s.target_fingerprint, s.notified_at
FROM pgddl.schema_status s JOIN unnest(%(schemas)s::text[], %(names)s::text[]) v(schema_name, table_name)
     USING (schema_name, table_name)
WHERE s.pipeline = %(pipeline)s

-- name: mismatches
SELECT schema_name, table_name, status, findings, since, checked_at, resolution, source_fingerprint, target_fingerprint,
       notified_at
FROM pgddl.schema_status WHERE pipeline = %(pipeline)s AND status = 'mismatch'
ORDER BY schema_name COLLATE "C", table_name COLLATE "C"

-- name: insert
-- In the order in which they come: sorted, so that two sessions do not wait for each other.
INSERT INTO pgddl.schema_status (pipeline, schema_name, table_name, status, findings, resolution, source_fingerprint,
                                 target_fingerprint, since, checked_at)
SELECT %(pipeline)s, v.*, now.at, now.at
FROM (SELECT pg_catalog.clock_timestamp() AS at OFFSET 0) now,
     unnest(%(schemas)s::text[], %(names)s::text[], %(statuses)s::text[], %(findings)s::jsonb[], %(resolutions)s::text[],
            %(sources)s::text[], %(targets)s::text[]) v
ON CONFLICT DO NOTHING RETURNING schema_name, table_name

-- name: lock
SELECT s.schema_name, s.table_name, s.status, s.findings, s.since, s.checked_at, s.resolution, s.source_fingerprint,
       s.target_fingerprint, s.notified_at
FROM pgddl.schema_status s JOIN unnest(%(schemas)s::text[], %(names)s::text[]) v(schema_name, table_name)
     USING (schema_name, table_name)
WHERE s.pipeline = %(pipeline)s
ORDER BY s.schema_name COLLATE "C", s.table_name COLLATE "C" FOR UPDATE OF s

-- name: update
UPDATE pgddl.schema_status s
SET status = v.status, findings = v.findings, resolution = v.resolution, source_fingerprint = v.source,
    target_fingerprint = v.target, checked_at = now.at,
    since = CASE WHEN s.status = v.status THEN s.since ELSE now.at END,
    notified_at = CASE WHEN v.status = 'mismatch' AND NOT v.is_new THEN s.notified_at END
FROM (SELECT pg_catalog.clock_timestamp() AS at OFFSET 0) now,
     unnest(%(schemas)s::text[], %(names)s::text[], %(statuses)s::text[], %(findings)s::jsonb[], %(resolutions)s::text[],
            %(sources)s::text[], %(targets)s::text[], %(are_new)s::boolean[])
         v(schema_name, table_name, status, findings, resolution, source, target, is_new)
WHERE s.pipeline = %(pipeline)s AND s.schema_name = v.schema_name AND s.table_name = v.table_name

-- name: close
UPDATE pgddl.schema_status_history h SET until = s.checked_at
FROM pgddl.schema_status s JOIN unnest(%(schemas)s::text[], %(names)s::text[]) v(schema_name, table_name)
     USING (schema_name, table_name)
WHERE s.pipeline = %(pipeline)s AND h.until IS NULL
  AND h.pipeline = s.pipeline AND h.schema_name = s.schema_name AND h.table_name = s.table_name

-- name: open
INSERT INTO pgddl.schema_status_history (pipeline, run, schema_name, table_name, status, findings, resolution, since)
SELECT s.pipeline, p.run, s.schema_name, s.table_name, s.status, s.findings, s.resolution, s.checked_at
FROM pgddl.schema_status s JOIN unnest(%(schemas)s::text[], %(names)s::text[]) v(schema_name, table_name)
     USING (schema_name, table_name)
JOIN pgddl.pipelines p ON p.pipeline = s.pipeline
WHERE s.pipeline = %(pipeline)s

-- name: touch
-- Whoever holds a row is about to say that it was checked.
UPDATE pgddl.schema_status SET checked_at = pg_catalog.clock_timestamp()
WHERE pipeline = %(pipeline)s AND (schema_name, table_name) IN (
    SELECT s.schema_name, s.table_name
    FROM pgddl.schema_status s JOIN unnest(%(schemas)s::text[], %(names)s::text[]) v(schema_name, table_name)
         USING (schema_name, table_name)
    WHERE s.pipeline = %(pipeline)s FOR UPDATE OF s SKIP LOCKED)

-- name: forget
WITH gone AS (
    DELETE FROM pgddl.schema_status s USING unnest(%(schemas)s::text[], %(names)s::text[]) v(schema_name, table_name)
    WHERE s.pipeline = %(pipeline)s AND s.schema_name = v.schema_name AND s.table_name = v.table_name
    RETURNING s.schema_name, s.table_name)
UPDATE pgddl.schema_status_history h SET until = pg_catalog.clock_timestamp()
FROM gone
WHERE h.pipeline = %(pipeline)s AND h.schema_name = gone.schema_name AND h.table_name = gone.table_name AND h.until IS NULL

-- name: history
SELECT schema_name, table_name, status, findings, since, until, resolution, run
FROM pgddl.schema_status_history
WHERE pipeline = %(pipeline)s AND (%(schema)s::text IS NULL OR (schema_name, table_name) = (%(schema)s, %(name)s))
ORDER BY id

-- name: claim_new
UPDATE pgddl.schema_status SET notified_at = pg_catalog.clock_timestamp()
WHERE pipeline = %(pipeline)s AND (schema_name, table_name) IN (
    SELECT schema_name, table_name FROM pgddl.schema_status
    JOIN unnest(%(schemas)s::text[], %(names)s::text[]) v(schema_name, table_name) USING (schema_name, table_name)
    WHERE pipeline = %(pipeline)s AND status = 'mismatch' AND notified_at IS NULL FOR UPDATE OF schema_status SKIP LOCKED)
RETURNING schema_name, table_name

-- name: show
-- Nothing comes back where the digest is the one that was shown last.
INSERT INTO pgddl.schema_shown AS s (pipeline, who, digest) VALUES (%(pipeline)s, %(who)s, %(digest)s)
ON CONFLICT (pipeline, who) DO UPDATE SET digest = excluded.digest, shown_at = excluded.shown_at
WHERE s.digest <> excluded.digest RETURNING true

-- name: shown_last
SELECT digest FROM pgddl.schema_shown WHERE pipeline = %s AND who = %s

-- name: forget_shown
-- A sensor that has not said anything new for so long has ended: it is known by its task and run.
DELETE FROM pgddl.schema_shown
WHERE pipeline = %(pipeline)s AND who <> %(who)s AND shown_at < pg_catalog.clock_timestamp() - interval '90 days'

-- name: count
INSERT INTO pgddl.schema_counters (pipeline, schema_name, table_name, name, label, value)
SELECT %(pipeline)s, v.* FROM unnest(%(schemas)s::text[], %(names)s::text[], %(counters)s::text[], %(labels)s::text[],
                                     %(values)s::numeric[]) v

-- name: fold
-- One row for the many of a counter. Those that another session folds at this moment are left to it.
WITH many AS (
    SELECT c.ctid, count(*) OVER (PARTITION BY c.schema_name, c.table_name, c.name, c.label)
    FROM pgddl.schema_counters c WHERE c.pipeline = %(pipeline)s
), mine AS (
    SELECT c.ctid FROM pgddl.schema_counters c
    WHERE c.ctid = ANY(ARRAY(SELECT ctid FROM many WHERE count > 50)) FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM pgddl.schema_counters WHERE ctid = ANY(ARRAY(SELECT ctid FROM mine))
    RETURNING schema_name, table_name, name, label, value
)
INSERT INTO pgddl.schema_counters (pipeline, schema_name, table_name, name, label, value)
SELECT %(pipeline)s, schema_name, table_name, name, label, sum(value) FROM gone GROUP BY 2, 3, 4, 5

-- name: counters
SELECT schema_name, table_name, name, label, sum(value)::float8
FROM pgddl.schema_counters WHERE pipeline = %(pipeline)s GROUP BY 1, 2, 3, 4

-- name: purge_statuses
DELETE FROM pgddl.schema_status WHERE pipeline = %(pipeline)s

-- name: purge_history
DELETE FROM pgddl.schema_status_history WHERE pipeline = %(pipeline)s

-- name: purge_counters
DELETE FROM pgddl.schema_counters WHERE pipeline = %(pipeline)s

-- name: purge_shown
DELETE FROM pgddl.schema_shown WHERE pipeline = %(pipeline)s
