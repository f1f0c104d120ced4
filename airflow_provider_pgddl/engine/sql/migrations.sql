-- name: lock
SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('pgddl migrations', 0))

-- name: ledger_exists
SELECT pg_catalog.to_regclass('pgddl.migrations') IS NOT NULL

-- name: is_ours
SELECT coalesce((SELECT pg_catalog.pg_has_role(relowner, 'USAGE') FROM pg_catalog.pg_class
                 WHERE oid = pg_catalog.to_regclass('pgddl.migrations')), true)

-- name: bootstrap
CREATE SCHEMA IF NOT EXISTS pgddl;
COMMENT ON SCHEMA pgddl IS 'pgddl: state of airflow-provider-pgddl';
CREATE TABLE IF NOT EXISTS pgddl.migrations (
    set_name    text NOT NULL,
    version     int NOT NULL,
    name        text NOT NULL,
    checksum    text NOT NULL,
    down        text NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (set_name, version)
)

-- name: applied
SELECT version, name, checksum FROM pgddl.migrations WHERE set_name = %s ORDER BY version

-- name: record
INSERT INTO pgddl.migrations (set_name, version, name, checksum, down) VALUES (%s, %s, %s, %s, %s)

-- name: downs
SELECT version, down FROM pgddl.migrations WHERE set_name = %s AND version > %s ORDER BY version DESC

-- name: forget
DELETE FROM pgddl.migrations WHERE set_name = %s AND version = %s

-- name: sets_left
SELECT count(*) FROM pgddl.migrations

-- name: drop_ledger
DROP TABLE pgddl.migrations

-- name: drop_schema_if_empty
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_depend
                   WHERE refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
                     AND refobjid = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = 'pgddl')) THEN
        DROP SCHEMA pgddl;
    END IF;
END
$$
