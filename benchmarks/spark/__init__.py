"""The throughput of rows and tasks with Spark: `python -m benchmarks.spark`."""
