-- What a chunk's rows show: who wrote them into the copy, and the source's snapshot that they were read at.
ALTER TABLE pgddl.chunks
    ADD xid      xid8,                  -- of the target
    ADD snapshot pg_snapshot;           -- of the source; null: in place, or not done
