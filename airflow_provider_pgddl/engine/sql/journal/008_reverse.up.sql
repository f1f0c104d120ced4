-- The way back of a swap in place: what has changed in the new table since, to be brought into the old one by `revert`.
ALTER TABLE pgddl.pipelines ADD reverted_at timestamptz;    -- when the last swap was taken back; null: never in this run

-- One row a swapped table, from the swap on until cleanup or revert. Its id names the tables of keys, as that of pgddl.tables does.
CREATE TABLE pgddl.reverses (
    id           bigint PRIMARY KEY DEFAULT pg_catalog.nextval(pg_catalog.pg_get_serial_sequence('pgddl.tables', 'id')),
    table_id     bigint NOT NULL UNIQUE REFERENCES pgddl.tables ON DELETE CASCADE,
    source_oid   oid NOT NULL,          -- the new table
    log_table    text NOT NULL,
    plan         jsonb NOT NULL,        -- rows/plan.py, from the new table into the old one
    version      jsonb NOT NULL,
    physical     jsonb NOT NULL,
    facts        jsonb NOT NULL,        -- the new table's definition when the swap was done, one line a fact
    foreign_keys jsonb NOT NULL,        -- those of the old table that the new one cannot have
    silenced     jsonb                  -- its triggers and rules that were switched off, with the states they had; null: not yet
);
