DROP INDEX pgddl.chunks_not_done
