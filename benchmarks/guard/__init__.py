"""Has something become slower, or larger? `python -m benchmarks.guard`."""
