"""What all backends share: the interface that queues and tubes call, callers that wait, clocks, and URLs.

May import `tubes.values`, `tubes.drivers` and `tubes.errors`.
"""
