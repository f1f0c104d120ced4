ALTER TABLE pgddl.chunks DROP xid, DROP snapshot;
