"""Work that is done beside each other: over Spark, or in this process. The one place that imports pyspark.

What is spread belongs to the package that does the work."""
