"""The speed of the calls, relative to the queues of the standard library and a PING: `python -m benchmarks`."""
