"""An application's life, from its job file to its outcome: told to stop, watched, and without secrets in what it says.

How Spark is started and spread over belongs to `parallel`; what the job does, to `stages`."""
