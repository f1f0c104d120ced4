-- What people have told a pipeline on the page, each with the name. A request for schema sync is ended by the stage that
-- sees to it; everything else is over when it is written.
CREATE TABLE pgddl.actions (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline   text NOT NULL REFERENCES pgddl.pipelines ON DELETE CASCADE,
    at         timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    who        text NOT NULL,
    action     text NOT NULL,
    about      text,            -- schema.table, or the number of an event
    note       text,
    digest     text,            -- of a request: SHA-256 of the statements that were shown
    statements jsonb,
    ended_at   timestamptz,     -- null: a request that no stage has seen to yet
    outcome    text
);
CREATE INDEX ON pgddl.actions (pipeline, id);

-- The last rehearsal of a pipeline's swap.
CREATE TABLE pgddl.rehearsals (
    pipeline text PRIMARY KEY REFERENCES pgddl.pipelines ON DELETE CASCADE,
    run      bigint NOT NULL,
    at       timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    result   jsonb NOT NULL     -- the stage's, with its statements and their locks
);
