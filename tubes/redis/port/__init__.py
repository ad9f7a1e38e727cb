"""The methods of one connection on one tube.

`connection.py` makes a `ThreadPort` (`quick.py`) or, for an event loop, a `LoopPort` (`coalesced_puts.py`). These two
only speed up the inner loops of programs: put, take, ack and next of threads, and puts of event loops. Everything else
comes from `TubePort` (`methods.py`), which names a function for each method, by subject: `puts`, `takes`, `ends`,
`tube`, `reads`, `batch`. These call the Lua functions of the server through `RedisPort` (`base.py`), which adds the
session, the options of the tube and what follows an error reply.

A put of a thread: `quick.py` packs the request, `ThreadChannel.exchange` sends it, `puts.show_put` makes the task.
"""
