"""The cost of each call with many waiting tasks, relative to that with few: `python -m benchmarks.scale`."""
