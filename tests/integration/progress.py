"""How far a run has come, by its journal."""

from __future__ import annotations

CHUNKS_DONE = "SELECT count(done_at) FROM pgddl.chunks"
WINDOWS_DONE = "SELECT window_no FROM pgddl.pipelines"
BEGUN = "SELECT count(*) FROM pgddl.stage_runs WHERE stage = '{stage}'"
