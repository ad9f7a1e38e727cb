"""The backend in memory: interrupts, its lock and repair."""
