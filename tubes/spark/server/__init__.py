"""What only Spark asks of a server: to look at many tasks, to put many all or none, and to take in numbered batches.

May import `tubes.redis`, and whatever that imports.
"""
