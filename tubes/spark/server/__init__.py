"""Server operations that only Spark uses: bulk reads, transactional bulk writes, and takes in numbered batches.

From `tubes.redis` it imports only `tubes.redis.bulk`.
"""
