-- A worker claims the first chunk that is not done, and passes over none that is, however many there are.
CREATE INDEX chunks_not_done ON pgddl.chunks (id) WHERE done_at IS NULL
