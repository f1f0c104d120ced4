DROP TABLE pgddl.reverses;
ALTER TABLE pgddl.pipelines DROP reverted_at;
