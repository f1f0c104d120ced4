ALTER TABLE pgddl.pipelines DROP COLUMN born_of, DROP COLUMN unborn, DROP COLUMN gone_back_at;
