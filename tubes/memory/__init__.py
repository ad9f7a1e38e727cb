"""The backend in memory: one store per URL, one lock per store.

A `MemoryStore` keeps tubes (`SharedTube`) and sessions. A `Connection` belongs to a session, alone or with others, and
has a `Port` per tube. Every verb is one critical section: what is due happens, then the verb, then whoever
waits for what it made possible is served. Listeners are told after the lock is released, in order.

May import `tubes.backend` and what that imports.
"""
