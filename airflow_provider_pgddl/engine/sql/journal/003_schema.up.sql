-- The schema gate: verdicts with how to get on, what came before, who was told, and what the metrics count.

ALTER TABLE pgddl.schema_status
    ADD resolution         text,        -- how to get on, in a sentence
    ADD source_fingerprint text,        -- schema/model.py: what was compared
    ADD target_fingerprint text,
    ADD notified_at        timestamptz; -- when somebody was told of the mismatch; null: nobody yet

-- Every verdict from when it was reached until another one took its place.
CREATE TABLE pgddl.schema_status_history (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline    text NOT NULL,
    run         bigint NOT NULL,
    schema_name text NOT NULL,
    table_name  text NOT NULL,
    status      text NOT NULL CHECK (status IN ('compatible', 'warning', 'mismatch')),
    findings    jsonb NOT NULL,
    resolution  text,
    since       timestamptz NOT NULL,
    until       timestamptz             -- null: it stands
);
CREATE UNIQUE INDEX ON pgddl.schema_status_history (pipeline, schema_name, table_name) WHERE until IS NULL;
CREATE INDEX ON pgddl.schema_status_history (pipeline, schema_name, table_name, id);

INSERT INTO pgddl.schema_status_history (pipeline, run, schema_name, table_name, status, findings, since)
SELECT s.pipeline, p.run, s.schema_name, s.table_name, s.status, s.findings, s.since
FROM pgddl.schema_status s JOIN pgddl.pipelines p USING (pipeline);

-- A counter is the sum of its rows. No unique index: those who count write beside each other and wait for nobody.
CREATE TABLE pgddl.schema_counters (
    pipeline    text NOT NULL,
    schema_name text,                   -- null: counted for the pipeline
    table_name  text,
    name        text NOT NULL,
    label       text NOT NULL,
    value       numeric NOT NULL
);
CREATE INDEX ON pgddl.schema_counters (pipeline);

-- What a sensor has written into its log last: it may be another process at every poke.
CREATE TABLE pgddl.schema_shown (
    pipeline    text NOT NULL,
    who         text NOT NULL,
    digest      text NOT NULL,
    shown_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (pipeline, who)
);

ALTER TABLE pgddl.tables
    ADD removed_columns jsonb NOT NULL DEFAULT '[]',  -- names that the source had once
    ADD copy_version    jsonb,                        -- the copy's structure that the plan was made for
    ADD copy_physical   jsonb NOT NULL DEFAULT '{}';  -- its attribute versions then
