-- name: row
SELECT c.paused_at, c.paused_why, c.cancelled_token, c.throttled_token, c.throttled_at, c.throttled_by, c.throttled_why
FROM pgddl.controls c WHERE c.pipeline = %s

-- name: pause
-- A second one keeps the time of the first, and its reason where it has none of its own.
INSERT INTO pgddl.controls AS c (pipeline, paused_at, paused_why) VALUES (%s, pg_catalog.clock_timestamp(), %s)
ON CONFLICT (pipeline) DO UPDATE
SET paused_at = coalesce(c.paused_at, excluded.paused_at), paused_why = coalesce(excluded.paused_why, c.paused_why)

-- name: resume
UPDATE pgddl.controls SET paused_at = NULL, paused_why = NULL WHERE pipeline = %s AND paused_at IS NOT NULL

-- name: cancel
INSERT INTO pgddl.controls (pipeline, cancelled_token)
SELECT %(pipeline)s, pg_catalog.max(l.token) FROM pgddl.leases l WHERE l.pipeline = %(pipeline)s
ON CONFLICT (pipeline) DO UPDATE SET cancelled_token = excluded.cancelled_token

-- name: throttled
-- The time is that since which this run has waited for this key.
INSERT INTO pgddl.controls AS c (pipeline, throttled_token, throttled_at, throttled_by, throttled_why)
VALUES (%s, %s, pg_catalog.clock_timestamp(), %s, %s)
ON CONFLICT (pipeline) DO UPDATE
SET throttled_at = CASE WHEN (c.throttled_token, c.throttled_by) = (excluded.throttled_token, excluded.throttled_by)
                        THEN c.throttled_at ELSE excluded.throttled_at END,
    throttled_token = excluded.throttled_token, throttled_by = excluded.throttled_by,
    throttled_why = excluded.throttled_why

-- name: unthrottled
UPDATE pgddl.controls SET throttled_token = NULL, throttled_at = NULL, throttled_by = NULL, throttled_why = NULL
WHERE pipeline = %s AND throttled_token = %s

-- name: under_way
-- Stages that have begun and have a session here; one that was killed has none.
SELECT r.stage, r.started_at, r.token FROM pgddl.stage_runs r
WHERE r.pipeline = %s AND r.finished_at IS NULL
  AND EXISTS (SELECT FROM pg_catalog.pg_stat_activity a
              WHERE a.datname = pg_catalog.current_database()
                AND pg_catalog.starts_with(a.application_name, 'pgddl:' || r.pipeline || ':' || r.token || ':'))
ORDER BY r.started_at
