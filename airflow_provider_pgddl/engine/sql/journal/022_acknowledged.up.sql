-- The highest window that the source was seen to have acknowledged: where it knows of a lower one, it has gone back.
ALTER TABLE pgddl.pipelines ADD COLUMN acknowledged bigint NOT NULL DEFAULT 0;
