"""An application's life: from its job file to its outcome, told to stop, watched, without secrets in what it says."""
