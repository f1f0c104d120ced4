"""A job: one stage of one pipeline, run once. Its file, its folder, what a stage works with while it runs
(`context`), whether there is anything to do (`idle`), and when Spark takes over from the driver's threads (`takeover`).

What stages do belongs to `stages`; how a process is driven, to `launch`."""
