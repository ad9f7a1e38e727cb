"""The backend in memory: one store per URL, one lock per store (`lock.py`).

A `MemoryStore` keeps tubes (`MemoryTube`) and sessions. A `MemoryConnection` belongs to one session, which several
connections may share, and has a `CallPort` per tube. Every method is one critical section: it moves due tasks, does its
own work, and then serves waiters. Listeners are called in order after the lock is released.

May import `tubes.backend` and everything that `tubes.backend` imports.
"""
