"""The contract in a folder, opening a folder again, and the faults that can happen to it."""
