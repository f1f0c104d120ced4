ALTER TABLE pgddl.pipelines DROP COLUMN ddl_left_out;
