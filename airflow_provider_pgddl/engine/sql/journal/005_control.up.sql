-- What a person has told a pipeline to do, and what its throttle waits for; no row: nothing of either.
CREATE TABLE pgddl.controls (
    pipeline        text PRIMARY KEY REFERENCES pgddl.pipelines ON DELETE CASCADE,
    paused_at       timestamptz,        -- since when runs hold at their next border; null: they go on
    paused_why      text,
    cancelled_token bigint,             -- runs with this token or an older one end at their next border
    throttled_token bigint,             -- the run that waits now
    throttled_at    timestamptz,
    throttled_by    text,               -- the key of backfill.throttle
    throttled_why   text
);
