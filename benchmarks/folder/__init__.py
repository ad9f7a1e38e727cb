"""The cost of a store in a folder, compared with other queues that need no server."""
