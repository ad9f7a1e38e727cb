"""The soak: producers, workers and chaos for minutes, with books on every task: `python -m tests.soak MINUTES`."""
