ALTER TABLE pgddl.pipelines DROP COLUMN acknowledged;
