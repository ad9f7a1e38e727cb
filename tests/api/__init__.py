"""The contract of each driver in memory, and what both APIs promise on every backend."""
