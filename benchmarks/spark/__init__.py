"""How fast do rows and tasks go through Spark? `python -m benchmarks.spark`."""
