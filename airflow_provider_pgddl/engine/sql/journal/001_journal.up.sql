-- The journal: all that a retry, a sensor or a person needs. It lives in the target database, so that a result and the
-- work that it stands for commit together.

CREATE SEQUENCE pgddl.tokens AS bigint;

CREATE TABLE pgddl.pipelines (
    pipeline        text PRIMARY KEY,
    run             bigint NOT NULL DEFAULT 1,
    job             text NOT NULL CHECK (job IN ('rewrite', 'migrate')),
    config          jsonb NOT NULL,
    source_system   text NOT NULL,
    source_timeline int NOT NULL,
    window_no       bigint NOT NULL DEFAULT 0,
    verify_needed   text,               -- why a verification has to pass before anything else; null: no reason
    cut_over_at     timestamptz,        -- since when applications belong on the target (or on the new tables)
    finished_at     timestamptz,        -- cleanup is done; the next setup starts the next run
    created_at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);

-- Who may write: every transaction of ours re-reads its scope's token before it commits. Scope '' is the whole pipeline.
CREATE TABLE pgddl.leases (
    pipeline    text NOT NULL,
    scope       text NOT NULL,
    token       bigint NOT NULL,
    holder      text NOT NULL,
    taken_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (pipeline, scope)
);

CREATE TABLE pgddl.stage_runs (
    job_id      text PRIMARY KEY,
    pipeline    text NOT NULL,
    run         bigint NOT NULL,
    stage       text NOT NULL,
    token       bigint NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    finished_at timestamptz,
    result      jsonb
);
CREATE INDEX ON pgddl.stage_runs (pipeline, run, stage);

CREATE TABLE pgddl.tables (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline        text NOT NULL REFERENCES pgddl.pipelines,
    run             bigint NOT NULL,
    schema_name     text NOT NULL,
    table_name      text NOT NULL,
    source_oid      oid NOT NULL,
    log_table       text NOT NULL,
    plan            jsonb NOT NULL,     -- rows/plan.py: columns, key, where the copy is
    version         jsonb NOT NULL,     -- catalog.py: the structure that the plan was made for
    fingerprint     text NOT NULL,
    physical        jsonb NOT NULL,     -- catalog.py: files, attribute and trigger versions at capture
    state           text NOT NULL DEFAULT 'captured'
                    CHECK (state IN ('captured', 'created', 'backfilled', 'indexed', 'swapped', 'cleaned')),
    planned_at      timestamptz,        -- when its chunks were laid out; null: not yet
    UNIQUE (pipeline, run, schema_name, table_name)
);

CREATE TABLE pgddl.chunks (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_id    bigint NOT NULL REFERENCES pgddl.tables ON DELETE CASCADE,
    leaf        oid NOT NULL,
    leaf_schema text NOT NULL,
    leaf_name   text NOT NULL,
    filenode    oid NOT NULL,
    first_block bigint NOT NULL,
    end_block   bigint NOT NULL,
    bytes       bigint NOT NULL,
    rows        bigint,
    done_at     timestamptz
);
CREATE INDEX ON pgddl.chunks (table_id) WHERE done_at IS NULL;
CREATE INDEX ON pgddl.chunks (table_id);

-- Snapshotted and captured schema changes, in the order in which they are applied.
CREATE TABLE pgddl.ddl_events (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline    text NOT NULL,
    run         bigint NOT NULL,
    seq         int NOT NULL,
    phase       text NOT NULL,
    table_id    bigint REFERENCES pgddl.tables ON DELETE CASCADE,
    event       jsonb NOT NULL,
    statement   text NOT NULL,          -- what is run: the event's own, or with the copy's name in it
    status      text NOT NULL CHECK (status IN ('pending', 'awaiting_approval', 'applying', 'applied', 'skipped',
                                                'unhandled', 'failed', 'resolved')),
    note        text,
    applied_at  timestamptz,
    UNIQUE (pipeline, run, seq)
);
CREATE INDEX ON pgddl.ddl_events (pipeline, run, phase, seq) WHERE status IN ('pending', 'failed');

CREATE TABLE pgddl.schema_status (
    pipeline    text NOT NULL,
    schema_name text NOT NULL,
    table_name  text NOT NULL,
    status      text NOT NULL CHECK (status IN ('compatible', 'warning', 'mismatch')),
    findings    jsonb NOT NULL DEFAULT '[]',
    since       timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    checked_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (pipeline, schema_name, table_name)
);

CREATE TABLE pgddl.windows (
    pipeline    text NOT NULL,
    window_no   bigint NOT NULL,
    run         bigint NOT NULL,
    keys        bigint NOT NULL,        -- taken from the change log
    rows        bigint NOT NULL,        -- read again at the window's snapshot and written
    pending     bigint NOT NULL,        -- left for a later window
    taken_at    timestamptz NOT NULL,
    finished_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (pipeline, window_no)
);

CREATE TABLE pgddl.verifications (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_id    bigint NOT NULL REFERENCES pgddl.tables ON DELETE CASCADE,
    job_id      text NOT NULL,          -- the job that asked for it
    range_no    int NOT NULL,
    low         text,                   -- first key column at or above, as text; null: from the start
    high        text,                   -- and below; null: to the end
    rows        bigint,
    differ      jsonb,                  -- null: not compared yet; []: equal; else keys that differ (the first hundred)
    verified_at timestamptz,
    UNIQUE (table_id, job_id, range_no)
);

-- What is still to be run once a swap has committed, in this order: foreign keys to validate, views to fill.
CREATE TABLE pgddl.follow_ups (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline    text NOT NULL,
    run         bigint NOT NULL,
    statement   text NOT NULL,
    done_at     timestamptz,
    UNIQUE (pipeline, run, statement)
);
