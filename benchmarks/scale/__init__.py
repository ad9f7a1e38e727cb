"""What a verb costs when much waits, beside the same verb when little does: `python -m benchmarks.scale`."""
