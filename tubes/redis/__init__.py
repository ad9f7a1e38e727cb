"""The backend on Redis and Valkey: the same tubes for many processes and machines.

A `RedisStore` is one server as one process sees it: scripts, clock, waiters and listeners. A `Connection` is one
connection to it, with a session in every tube that it opens; a `Port` has its methods on a tube. Every method is one
script (`drivers/lua`) and one round trip, and is in `verbs.py`, `looking.py` (those that only read) or `batch_port.py`
(many tasks). It runs for threads (`transport/channel.py`) or for asyncio (`transport/loop_channel.py`). The methods of
every program's inner loop are written out for threads (`quick.py`), and joined for asyncio (`coalesced_puts.py`).

May import `tubes.backend` and what that imports, and its own `scripts` and `transport`.
"""
