-- name: seconds_since
-- By the target's clock: a source that is down must not hide how old the rows are.
SELECT greatest(extract(epoch FROM pg_catalog.clock_timestamp() - %s::timestamptz), 0)::float8
