"""One operator a stage; all that they share is in `base`. What a stage does belongs to the engine."""
