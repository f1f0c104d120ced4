"""A job: one stage of one pipeline, run once. Its file, its folder, and what a stage works with while it runs.

What stages do belongs to `stages`; how a process is driven, to `launch`."""
