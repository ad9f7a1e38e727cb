"""The objects that users get: tasks, batches, statistics and codecs. They are values that never call a backend.

May import `tubes.errors` and `tubes.drivers`.
"""
