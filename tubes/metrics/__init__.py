"""Metrics and traces: `tubes.metrics.prometheus` (extra `prometheus`) and `tubes.metrics.otel` (extra `otel`).

May import `tubes.sync`, `tubes.aio` and the packages that those import.
"""
