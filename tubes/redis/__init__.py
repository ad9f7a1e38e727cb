"""The backend on Redis and Valkey: tubes shared by many processes and machines.

A `RedisStore` represents one server in one process: its scripts, clock, waiters and listeners. A `Connection` is one
connection to it and has a session in every tube that it opens. A `Port` offers the methods of a connection on one tube.
Each method runs one script (`drivers/lua`) in one round trip. The methods are in `verbs.py`, `looking.py` (read-only
methods) and `batch_port.py` (many tasks); they run in threads (`transport/channel.py`) or on asyncio
(`transport/loop_channel.py`). Two files speed up the inner loops of programs: `quick.py` packs the requests of threads
in advance, and `coalesced_puts.py` batches the puts of an event loop.

This package may import `tubes.backend` and its dependencies, and its own `scripts` and `transport`.
"""
