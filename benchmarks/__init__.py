"""Benchmarks of tubes beside the queues of the standard library. See README.md."""
