"""The code that all backends share: the interface that queues and tubes call, waiters, clocks, and URLs.

May import `tubes.values`, `tubes.drivers` and `tubes.errors`.
"""
