"""The soak: producers, workers and chaos for minutes, with a ledger of every task: `python -m tests.soak MINUTES`."""
