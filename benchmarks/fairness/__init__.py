"""The benchmark of fairness."""
