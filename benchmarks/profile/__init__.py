"""A profile of each call: `python -m benchmarks.profile`."""
