-- What was changed of a pipeline under way, one row a key of its file and a table: taken up by one transaction, and done once setup has ended.
CREATE TABLE pgddl.reconfigurations (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline text NOT NULL,
    run      bigint NOT NULL,
    subject  text NOT NULL CHECK (subject IN ('key', 'table')),
    name     text NOT NULL,     -- the dotted key of the file, or schema.table
    before   jsonb,             -- what the key said, null: nothing; of a table that was taken out, how far it had come
    after    jsonb,             -- what it says since; of a table, what was done with it
    taken_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    taken_by text NOT NULL DEFAULT session_user,
    done_at  timestamptz        -- null: what follows from it is still under way, by setup and no other stage
);
CREATE INDEX ON pgddl.reconfigurations (pipeline) WHERE done_at IS NULL;
