"""Traces recorded from the original (Tarantool 2.6, queue 1.5.0), replayed on both faces."""
