"""The Lua that a server runs: put together for a verb and a driver from the files of `drivers/lua`.

May import `tubes.drivers` and `tubes.errors`.
"""
