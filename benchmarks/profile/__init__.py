"""Where does the time of a verb go? `python -m benchmarks.profile`."""
