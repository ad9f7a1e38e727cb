"""The text of the library: the files of `drivers/lua` as one Lua text, for FUNCTION LOAD and for EVAL.

Each file is a module that `require` returns. A server defines all functions when it first runs one of the library, not
while it loads the text: `redis.call`, `string` and `struct` do not exist until then. Comments are left out, lines are
kept, so the number of a line in a server's error leads to a file and its line (`with_source`).

The names of the library and of its functions contain a hash of the text, so several versions live side by side.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final

from tubes.redis.library.functions import FUNCTIONS

_LUA: Final = files("tubes.drivers") / "lua"
#: The files in an order in which each requires only files before it; others are required when a function runs.
MODULES: Final = (
    *("plan", "lists", "pending", "call", "chance", "bucket", "entry", "ready", "rate_limits", "lanes", "keys", "done"),
    *("waiting", "room", "engine", "sessions", "timers", "many", "reads", "tube", "bulk", "checks", "functions"),
)
_HEAD: Final = (
    "local function load_library()",
    "local modules = {}",
    "local function require(name) return modules[name] end",
)
_COMMENT: Final = re.compile(r"(^|\s)--.*")
_LINE: Final = re.compile(r"\b(?:user_script|user_function|tubes_\w+):(\d+)")


@cache
def _lines() -> list[tuple[str, str]]:
    """Return the lines of `load_library`, each with its source."""
    lines = [(text, "") for text in _HEAD]
    for name in MODULES:
        lines.append((f"modules['{name}'] = (function()", ""))
        text = (_LUA / f"{name}.lua").read_text()
        lines += [(_COMMENT.sub("", line).strip(), f"{name}.lua:{n}") for n, line in enumerate(text.splitlines(), 1)]
        lines.append(("end)()", ""))
    return [*lines, ("return require('functions')", ""), ("end", "")]


@cache
def _body() -> str:
    return "\n".join(text for text, _ in _lines())


@cache
def version() -> str:
    """Return the hash of the text, which is part of all names."""
    return sha1(_body().encode(), usedforsecurity=False).hexdigest()[:12]


def function_name(name: str) -> str:
    """Return the name by which a server knows a function of the library."""
    return f"tubes_{version()}_{name}"


@cache
def library() -> bytes:
    """Return the text for FUNCTION LOAD."""
    registered = [
        f"redis.register_function{{function_name='{function_name(name)}', callback=function_of('{name}'){flags}}}"
        for name, function in FUNCTIONS.items()
        for flags in [f", flags={{{', '.join(map(repr, function.flags))}}}" if function.flags else ""]
    ]
    return "\n".join((
        f"#!lua name=tubes_{version()}", _body(),
        "local functions",
        "local function function_of(name)",
        "return function(keys, args)",
        "functions = functions or load_library()",
        "return functions.run(name, keys, args)",
        "end",
        "end",
        *registered,
    )).encode()  # fmt: skip


@cache
def script() -> bytes:
    """Return the text for EVAL: the last argument is the name of the function.

    A server that is out of memory refuses the first command of a script that needs memory, unless it has written.
    So functions that free memory in a tube first remove a key that does not exist, and those that add tasks first
    change a member of it. Functions that only read do neither: their users need no right to write.
    """
    frees = " ".join(
        name
        for name, function in FUNCTIONS.items()
        if function.flags == ("allow-oom",) and "early" not in function.traits
        if "tube" not in function.traits or function.commands & {"HDEL", "HSET", "UNLINK", "ZADD"}
    )
    adds = " ".join(name for name, function in FUNCTIONS.items() if not function.flags)
    return "\n".join((
        "", _body(),
        "local name, key = ARGV[#ARGV], KEYS[1] or ''",
        "ARGV[#ARGV] = nil",
        "local function is_in(names)",
        "return string.sub(key, -1) == '}' and string.find(names, ' ' .. name .. ' ', 1, true)",
        "end",
        f"if is_in(' {frees} ') then redis.call('UNLINK', key .. ':') end",
        f"if is_in(' {adds} ') then redis.call('ZADD', key .. ':', 'XX', 0, '') end",
        "return load_library().run(name, KEYS, ARGV)",
    )).encode()  # fmt: skip


@cache
def script_sha() -> bytes:
    """Return the SHA-1 by which a server that has loaded the script runs it."""
    return sha1(script(), usedforsecurity=False).hexdigest().encode()


def with_source(error: object) -> str:
    """Return the text of a server's error, with the file and the line of the Lua code that raised it, if known."""
    error = str(error)
    if line := _LINE.search(error):
        number = int(line[1]) - 2  # The first line is the name of the library, or empty.
        lines = _lines()
        if 0 <= number < len(lines) and (source := lines[number][1]):
            return f"{error} (drivers/lua/{source})"
    return error
