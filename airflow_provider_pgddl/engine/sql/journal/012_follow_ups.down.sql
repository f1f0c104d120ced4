ALTER TABLE pgddl.follow_ups DROP COLUMN failed;
