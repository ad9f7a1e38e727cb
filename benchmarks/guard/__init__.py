"""A check for regressions of time and memory: `python -m benchmarks.guard`."""
