"""How fast are the verbs, beside the queues of the standard library and a PING? `python -m benchmarks`."""
