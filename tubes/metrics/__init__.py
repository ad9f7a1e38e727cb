"""What monitors see: `tubes.metrics.prometheus` (extra `prometheus`) and `tubes.metrics.otel` (extra `otel`)."""
