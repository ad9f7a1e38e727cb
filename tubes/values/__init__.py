"""What users get in their hands: tasks, batches, counts and codecs. Values: none of them talks to a backend.

May import `tubes.errors` and `tubes.drivers`.
"""
