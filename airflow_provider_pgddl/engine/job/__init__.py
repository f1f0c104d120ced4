"""A job: one stage of one pipeline, run once. Its file, its folder, what a stage works with while it runs
(`context`) and leaves (`result`), whether the pipeline file is still the recorded one (`same_config`) and whether there
is anything to do (`idle`), when Spark takes over from the driver's threads (`takeover`), how connection strings travel
(`executor_dsns`), what servers do meanwhile (`at_work`).
`slot_receiver` brings what a slot yields into the change logs, and says what a lost slot comes to.

What stages do belongs to `stages`; how a process is driven, to `launch`."""
