-- How far the pipeline's slot has been read into the change logs, which are here where rows are captured by a slot.
ALTER TABLE pgddl.pipelines ADD slot_lsn pg_lsn;
