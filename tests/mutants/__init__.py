"""Checks that the short suite notices faults: see `README.md`."""
