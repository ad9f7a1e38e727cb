"""The backend in memory: interrupts, its lock, repair."""
