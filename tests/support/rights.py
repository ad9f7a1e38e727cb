"""The rights that each kind of user needs: derived from the library, and as documented on the page."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import redis

from tubes.redis.library.functions import FUNCTIONS, NEEDED, commands_of
from tubes.testing import LocalServer

_PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "howto" / "permissions.md"
#: The functions of every session, and the functions that open, create and find tubes.
_TUBES: Final = ("tube_names", "describe", "tube_drivers")
_SESSION: Final = ("open", "heartbeat", "leave", "tick", "wake_at_due", "wake", "damage", *_TUBES)
_PUTS: Final = ("put", "put_many", "put_keyed", "put_limited", "upload_words", "undo_put")
_TAKES: Final = (
    *(
        "take",
        "take_many",
        "take_for",
        "take_task",
        "set_ttr",
        "next",
        "undo_take",
        "disarm",
        "peek",
        "ack",
        "ack_many",
        "release",
        "release_many",
    ),
    *("bury", "checkpoint", "decline", "touch", "renew_many", "statistics", "session"),
)
#: Commands that clients send in addition to those in functions.
_CALLS: Final = {"FCALL", "FUNCTION|LOAD", "CLIENT|SETINFO", "CONFIG|GET"}
_WAITS: Final = {"BZPOPMIN", "PING"}
_LOOKS: Final = {"MULTI", "EXEC", "HSTRLEN", "HMGET", "ZMSCORE", "EXISTS", "SMEMBERS", "HGET"}
_HEARS: Final = {"SUBSCRIBE", "UNSUBSCRIBE", "PING"}
_NEW: Final = ("+client|setinfo", "+spublish", "+ssubscribe", "+sunsubscribe")
_WAKE_UPS: Final = {"SSUBSCRIBE", "SUNSUBSCRIBE"}


def of_functions(*names: str) -> frozenset[str]:
    """Return all commands that these functions may run, and those that every call runs."""
    return frozenset().union(NEEDED, ("PUBLISH", "SPUBLISH"), *map(commands_of, names))


def required_rights() -> dict[str, frozenset[str]]:
    """Return the required rights by kind of user."""
    putting = of_functions(*_SESSION, *_PUTS) | _CALLS | _WAITS
    working = putting | of_functions(*_TAKES)
    # A user who only lists names writes nothing.
    looking = (frozenset().union(*map(commands_of, ("overview", "age", *_TUBES)), ("TIME",)) | _CALLS) - {
        "SADD",
        "SREM",
        "HSET",
    }
    sparks = (
        method
        for method in FUNCTIONS
        if method.startswith(("stream", "write", "extent", "task_headers", "scan_ids", "oldest"))
    )
    spark = of_functions(*_SESSION, *_PUTS, *sparks)
    return {
        "producer": putting,
        "worker": working | _WAKE_UPS | {"SUBSCRIBE"},
        "monitor": looking,
        "listener": of_functions(*_SESSION, "listen") | _CALLS | _HEARS,
        "spark": spark | _CALLS | _WAITS | _LOOKS,
        "app": of_functions(*FUNCTIONS) | _CALLS | _WAITS | _LOOKS | _HEARS | _WAKE_UPS,
    }


def documented_rights() -> dict[str, list[str]]:
    """Return the documented rights by kind of user."""
    text = _PAGE.read_text().replace("\\\n", "")
    lines = re.findall(r"^    ACL SETUSER (\w+) on >secret (.*)", text, re.MULTILINE)
    return {name: words.split() for name, words in lines}


class Users:
    """A user of each kind on a server, with the documented rights and any key prefix."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self.admin: Any = server.client()
        for name, words in documented_rights().items():
            anywhere = [word.replace("tubes:*", "*") for word in words]
            if not self._has_functions():
                anywhere = [word for word in anywhere if word not in ("+fcall", "+function|load")] + [
                    "+eval",
                    "+evalsha",
                ]
            try:
                self._set(name, *anywhere)
            except redis.ResponseError:  # Redis before 7.2 lacks CLIENT SETINFO, Redis 6 the other three.
                self._set(name, *(word for word in anywhere if word not in _NEW))

    def _has_functions(self) -> bool:
        return bool(self.admin.execute_command("COMMAND LIST", "FILTERBY", "PATTERN", "fcall"))

    def _set(self, name: str, *words: str) -> None:
        self.admin.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", *words)

    def url(self, name: str) -> str:
        return f"unix://{name}:secret@{self.server.socket}"

    def refusals(self) -> list[Any]:
        """Return the commands that the server has refused since the last call."""
        log: list[Any] = self.admin.execute_command("ACL", "LOG")
        if log:
            self.forget()
        return log

    def forget(self) -> None:
        """Clear the list of refused commands."""
        self.admin.execute_command("ACL", "LOG", "RESET")


@cache
def users_of(server: LocalServer) -> Users:
    """Return the users of a server, which are created once."""
    return Users(server)
