"""Requests to a server: finding servers, connecting, and sending calls until a reply arrives.

May import `tubes.backend` with its own imports, and `tubes.redis.library`, which knows the type of each reply.
"""
