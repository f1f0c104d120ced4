-- Which database of its server the source is: a clone beside it has all else that tells. Null until a stage has looked.
ALTER TABLE pgddl.pipelines ADD COLUMN source_database oid;
