"""The benchmark of latency."""
