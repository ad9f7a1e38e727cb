"""tubes and its peers, measured in one run. See README.md."""
