-- name: rows_copied
SELECT c.table_id, coalesce(sum(c.rows), 0)::bigint FROM pgddl.chunks c WHERE c.table_id = ANY(%s) GROUP BY c.table_id
