"""The backend on Redis and Valkey: tubes shared by many processes and machines.

A `RedisStore` represents one server in one process: its clock, waiters and listeners (`sessions/`). A
`RedisConnection` is one connection to it and has a session in every tube that it opens. A `RedisPort` offers the
methods of a connection on one tube (`port/`); each method runs one function of the Lua library (`library/`, written in
`drivers/lua`) in one round trip (`transport/`). One thread per process and tube waits on the server for all waiters
(`waiting/`).

This package may import `tubes.backend` and its dependencies.
"""
