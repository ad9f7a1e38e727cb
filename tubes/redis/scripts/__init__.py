"""Assembly of the Lua scripts that a server runs, from the files of `drivers/lua`: one script per method and driver.

May import `tubes.drivers` and `tubes.errors`.
"""
