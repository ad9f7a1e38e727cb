"""The benchmark of precision."""
