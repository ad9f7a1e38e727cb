"""What administrators do with the Lua library of a server: the door of this folder for `tubes.cli`."""

from __future__ import annotations

import re
from typing import Any

import redis

from tubes.backend.url import read
from tubes.errors import ConnectionLost, InvalidOption, ServerRefused
from tubes.redis.library import text
from tubes.redis.library.functions import FUNCTIONS
from tubes.redis.transport.channel import ThreadChannel
from tubes.redis.transport.script_call import ScriptCall
from tubes.redis.transport.server import Server, ServerConnection, locate


def library_text() -> str:
    """Return the text of the library for FUNCTION LOAD."""
    return text.library().decode()


def library_name() -> str:
    """Return the name of the library, which contains a hash of its text."""
    return f"tubes_{text.version()}"


def load(url: str, timeout: float) -> None:
    """Load the library into each server of a URL."""
    server = _locate(url)
    for connection in server.connect_all(timeout):
        _run(server, connection, "FUNCTION", "LOAD", text.library())
        connection.disconnect()


def prune(url: str, timeout: float) -> list[str]:
    """Delete other versions of the library from each server of a URL; return their names."""
    server, found = _locate(url), list[str]()
    for connection in server.connect_all(timeout):
        for row in _run(server, connection, "FUNCTION", "LIST", "LIBRARYNAME", "tubes_*"):
            name = row[1].decode()
            if name != library_name() and re.fullmatch("tubes_[0-9a-f]{12}", name):
                _run(server, connection, "FUNCTION", "DELETE", name)
                found.append(name)
        connection.disconnect()
    return sorted(found)


def why_scripts(url: str, timeout: float) -> str:
    """Return why a server runs the library as a script; '' if it has it as functions, and for other backends."""
    if read(url).scheme in ("memory", "file"):
        return ""
    server, _ = locate(url)
    channel = ThreadChannel(server, "l", timeout)
    channel.call(ScriptCall(FUNCTIONS["ping"], "", ()))
    channel.close()
    return server.why_scripts


def _locate(url: str) -> Server:
    known = read(url)
    if known.scheme in ("memory", "file"):
        rule = "must be the URL of a server: the others do not run Lua"
        raise InvalidOption(option="url", value=known.redacted, rule=rule)
    return locate(url)[0]


def _run(server: Server, connection: ServerConnection, *words: str | bytes) -> Any:
    """Run a command of an administrator, and return its reply."""
    try:
        connection.send_command(*words)
        return connection.read_response(disable_decoding=True)
    except redis.ResponseError as error:
        if "already exists" in str(error):
            return None
        raise ServerRefused(url=server.url, why=error) from error
    except (redis.RedisError, OSError) as error:
        raise ConnectionLost(url=server.url, why=error) from error
