"""Work that is done beside each other: over Spark, or in this process. `spark` is the one place that imports pyspark;
`job_watch` gives a job up that is in somebody's way or does not go on; `executor_slots` says how much room a cluster
has, and what is missing.

What is spread belongs to the package that does the work."""
