"""The backend in a folder: the one in memory, with a journal in SQLite.

A `DurableStore` is a `MemoryStore` whose tubes (`DurableTube`) write what has changed at the end of each critical
section, in one transaction, before the lock is released and before a waiter is woken. What is written is the state of
the tasks after the change (`rows.py`), never the call: so a store is read again without doing anything again. The
engine notes what it touches (`engine.py`), and the `Journal` of a tube writes that (`journal.py`).

May import `tubes.memory` and what that imports.
"""
