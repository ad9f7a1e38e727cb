"""The objects that users get: tasks, batches, counts and codecs. They are values, and never call a backend.

May import `tubes.errors` and `tubes.drivers`.
"""
