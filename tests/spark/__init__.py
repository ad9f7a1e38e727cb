"""The data source of Spark: its objects without a JVM, and programs on a real Spark."""
