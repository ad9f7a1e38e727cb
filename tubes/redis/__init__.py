"""The backend on Redis and Valkey: the same tubes for many processes and machines.

A `RedisStore` is what one process knows of a server: scripts, clock, who waits and listens here. A `Connection` is one
connection to it, with a session in every tube that it opens; a `Port` has its verbs on a tube. Every verb is one script
(`drivers/lua`) and one round trip; it is written once, as a generator that asks for calls (`port.py`), and run for
threads (`transport/channel.py`) or for asyncio (`transport/loop_channel.py`).
"""
