-- A pipeline that is the way back of another is born by that one's cut-over, with every copy complete.
ALTER TABLE pgddl.pipelines
    ADD COLUMN born_of      text,           -- the pipeline whose cut-over this run was born by
    ADD COLUMN unborn       jsonb,          -- until the source has the mark of the run's birth, the run is void: what stood here before
    ADD COLUMN gone_back_at timestamptz;    -- since when applications are back on this run's source, by the swap of its way back
