"""The schema gate as a sensor. What it looks at, and the verdict, belong to the engine."""
