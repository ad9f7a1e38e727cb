"""Bytes to a server and back: where servers are, connections to them, calls that are sent until they are answered.

May import `tubes.backend` and what that imports, and `tubes.redis.scripts`, which says what replies a script has.
"""
