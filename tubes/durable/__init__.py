"""The backend in a folder: the memory backend, with a journal in SQLite.

A `DurableStore` is a `MemoryStore` whose tubes (`DurableTube`) write their changes at the end of each critical
section: in one transaction, before the lock is released and before a waiter is woken. They write the state of the
changed tasks (`rows.py`), not the calls, so that opening a store repeats no calls. The engine notes its changes
(`engine.py`), and the `Journal` of a tube writes them (`journal.py`, which describes how).

May import `tubes.memory` and all packages that it imports.
"""
