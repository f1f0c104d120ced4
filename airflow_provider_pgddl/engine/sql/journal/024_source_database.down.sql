ALTER TABLE pgddl.pipelines DROP COLUMN source_database;
