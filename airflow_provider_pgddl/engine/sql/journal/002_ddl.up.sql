-- DDL that was captured live: beside what the snapshot wrote into ddl_events, in the order of the source's commits.

ALTER TABLE pgddl.ddl_events
    ADD captured_id      text,          -- the captured event's id; null: a snapshot's event
    ADD captured         jsonb,         -- ddl/captured.py: all that was recorded of the command
    ADD statements       jsonb,         -- what is run, one after the other
    ADD rule             text,          -- why it is applied, skipped or unhandled
    ADD notes            jsonb NOT NULL DEFAULT '[]',   -- what was changed on the way, and with what rights it ran
    ADD rebuilt          boolean NOT NULL DEFAULT false,
    ADD no_transaction   boolean NOT NULL DEFAULT false,   -- it refuses one (CONCURRENTLY)
    ADD object_kind      text,
    ADD touches          jsonb NOT NULL DEFAULT '[]',   -- [schema, name] of what it concerns, before and after
    ADD lsn              pg_lsn,
    ADD previous_version jsonb,         -- by the source's oid: the table before this event
    ADD previous_mask    jsonb,         -- and which of its columns were replicated
    ADD mask             jsonb,         -- which are from here on
    ADD recorded_at      timestamptz,
    ADD started_at       timestamptz;
ALTER TABLE pgddl.ddl_events ALTER recorded_at SET DEFAULT pg_catalog.clock_timestamp();

-- A redelivered event is known by its id.
CREATE UNIQUE INDEX ON pgddl.ddl_events (pipeline, run, captured_id) WHERE captured_id IS NOT NULL;
CREATE INDEX ON pgddl.ddl_events (pipeline, run, seq)
    WHERE captured_id IS NOT NULL AND status IN ('pending', 'awaiting_approval', 'applying', 'unhandled', 'failed');

-- Each time that an event was tried. Without an end: under way, or ended by force.
CREATE TABLE pgddl.ddl_attempts (
    event_id    bigint NOT NULL REFERENCES pgddl.ddl_events ON DELETE CASCADE,
    number      int NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    finished_at timestamptz,
    outcome     text CHECK (outcome IN ('applied', 'failed', 'skipped', 'put off', 'interrupted')),
    message     text,
    PRIMARY KEY (event_id, number)
);

-- A table as it was from an LSN of the source on; version null: dropped there.
CREATE TABLE pgddl.schema_versions (
    pipeline    text NOT NULL,
    run         bigint NOT NULL,
    source_oid  oid NOT NULL,
    lsn         pg_lsn NOT NULL,
    version     jsonb,
    mask        jsonb NOT NULL,
    PRIMARY KEY (pipeline, run, source_oid, lsn)
);

-- Sessions of the target that were signalled because a captured statement waited for them.
CREATE TABLE pgddl.killed_blockers (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline         text NOT NULL,
    event_id         bigint REFERENCES pgddl.ddl_events ON DELETE SET NULL,
    pid              int NOT NULL,
    usename          text,
    application_name text,
    client_addr      text,
    state            text,
    query            text,
    xact_start       timestamptz,
    signal           text NOT NULL CHECK (signal IN ('cancel', 'terminate')),
    succeeded        boolean,           -- whether the signal was sent; null: the run ended by force in between
    message          text,              -- why not
    signalled_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    reported         boolean NOT NULL DEFAULT false,
    reported_at      timestamptz
);
CREATE INDEX ON pgddl.killed_blockers (pipeline) WHERE NOT reported;
CREATE INDEX ON pgddl.killed_blockers (event_id);

ALTER TABLE pgddl.pipelines
    ADD ddl_position text,              -- the source's snapshot that was read last, as text
    ADD ddl_lsn      pg_lsn;            -- and its LSN

-- Names change hands; what is followed is the table.
ALTER TABLE pgddl.tables
    DROP CONSTRAINT tables_pipeline_run_schema_name_table_name_key,
    ADD CONSTRAINT tables_pipeline_run_source_oid_key UNIQUE (pipeline, run, source_oid);
