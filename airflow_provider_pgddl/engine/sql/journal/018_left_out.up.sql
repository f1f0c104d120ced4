-- What a pipeline's target does not have, since it needs a table that is left out: by catalog and oid on the source.
ALTER TABLE pgddl.pipelines ADD COLUMN ddl_left_out jsonb;
