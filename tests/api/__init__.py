"""The contract of each driver in memory, and the rules of both APIs on every backend."""
