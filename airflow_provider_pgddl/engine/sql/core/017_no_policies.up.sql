-- Whether a new partition has rows is asked as the owner of these functions. Where that is no superuser, a policy of the table's owner
-- would run as her: refused, and told as a partition that could not be captured.
ALTER FUNCTION pgddl.follow_triggers(text) SET row_security = off;
