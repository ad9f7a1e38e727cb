"""The Lua library, `drivers/lua`, as a server runs it: its text (`text.py`) and its functions (`functions.py`).

A server that has functions (Redis 7, Valkey) loads the text once by FUNCTION LOAD and runs it by FCALL. The channel
loads it when a call finds that it is missing (`transport/attempt.py`), for example on a node that was added to a
cluster. Where a server or a user cannot load or call functions, the same text runs as a script by EVALSHA; the last
argument is the name of the function. That takes two to three times as long, since a script defines all functions at
each call. `Server.has_functions` and `why_scripts` say which way is in use, and why.

May import `tubes.drivers` and `tubes.redis.library.replies`.
"""
