-- Why a statement is left to a person: nobody waits for it any more.
ALTER TABLE pgddl.follow_ups ADD COLUMN failed text;
