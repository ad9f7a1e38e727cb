"""Server operations that only Spark uses: bulk reads, transactional bulk writes, and takes in numbered batches.

It may import `tubes.redis`, and all that `tubes.redis` may import.
"""
