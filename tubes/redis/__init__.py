"""The backend on Redis and Valkey: the same tubes for many processes and machines.

A `RedisStore` is what one process knows of a server: scripts, clock, who waits and listens here. A `Connection` is one
connection to it, with a session in every tube that it opens; a `Port` has its verbs on a tube. Every verb is one script
(`drivers/lua`) and one round trip, and stands in `verbs.py`, `looking.py` (what only looks) or `batch_port.py` (many
tasks). It is run for threads (`transport/channel.py`) or for asyncio (`transport/loop_channel.py`). Those of every
program's inner loop are written out for threads (`quick.py`), and joined for asyncio (`coalesced_puts.py`).

May import `tubes.backend` and what that imports, and its own `scripts` and `transport`.
"""
