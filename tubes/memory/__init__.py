"""The backend in memory: one store per URL, one lock per store (`lock.py`).

A `MemoryStore` keeps tubes (`SharedTube`) and sessions. A `Connection` belongs to a session, alone or with others, and
has a `Port` per tube. Every method is one critical section: it does what is due, then its own work,
and then serves waiters. Listeners are called after the lock is released, in order.

May import `tubes.backend` and what that imports.
"""
