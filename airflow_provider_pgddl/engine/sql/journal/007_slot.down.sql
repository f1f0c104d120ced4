ALTER TABLE pgddl.pipelines DROP slot_lsn;
