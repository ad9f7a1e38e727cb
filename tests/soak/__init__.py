"""A soak test: producers, workers and chaos for minutes, with a ledger of all tasks: `python -m tests.soak MINUTES`."""
