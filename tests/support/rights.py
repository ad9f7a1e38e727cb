"""The rights that each kind of user needs: derived from the scripts, and as documented on the page."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import redis

from tests.support.scripts import DRIVERS, METHODS, methods_of
from tubes.redis.scripts.assembly import script
from tubes.testing import LocalServer

_PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "howto" / "permissions.md"
#: The scripts of every session, and the scripts that open, create and find tubes.
_TUBES: Final = ("tube_names", "describe", "tube_drivers")
_SESSION: Final = ("open", "heartbeat", "leave", "tick", "wake_at_due", "wake", "damage", *_TUBES)
_PUTS: Final = ("put", "put_many", "put_keyed", "put_limited", "upload_words", "unput")
_TAKES: Final = (
    *(
        "take",
        "take_many",
        "take_for",
        "take_task",
        "set_ttr",
        "next",
        "untake",
        "disarm",
        "peek",
        "ack",
        "ack_many",
        "release",
        "release_many",
    ),
    *("bury", "checkpoint", "decline", "touch", "renew_many", "statistics", "session"),
)
#: Commands that clients send in addition to those in scripts.
_CALLS: Final = {"EVAL", "EVALSHA", "CLIENT|SETINFO", "CONFIG|GET"}
_WAITS: Final = {"BZPOPMIN", "PING"}
_LOOKS: Final = {"MULTI", "EXEC", "HSTRLEN", "HMGET", "ZMSCORE", "EXISTS", "SMEMBERS", "HGET"}
_HEARS: Final = {"SUBSCRIBE", "UNSUBSCRIBE", "PING"}


@cache
def of_scripts(*methods: str) -> frozenset[str]:
    """Return all commands of these scripts, for all drivers."""
    return frozenset(
        command
        for method in methods
        for driver, settings in DRIVERS.values()
        if method in methods_of(driver)
        for command in script(method, driver, settings).commands
    )


def required_rights() -> dict[str, frozenset[str]]:
    """Return the required rights by kind of user."""
    putting = of_scripts(*_SESSION, *_PUTS) | _CALLS | _WAITS
    working = putting | of_scripts(*_TAKES)
    # A user who only lists names writes nothing.
    looking = (of_scripts("overview", "age", *_TUBES) | _CALLS) - {"SADD", "SREM", "HSET"}
    sparks = (
        method
        for method in METHODS
        if method.startswith(("stream", "write", "extent", "task_headers", "scan_ids", "oldest"))
    )
    spark = of_scripts(*_SESSION, *_PUTS, *sparks)
    return {
        "producer": putting,
        "worker": working | {"SUBSCRIBE"},
        "monitor": looking,
        "listener": of_scripts(*_SESSION, "listen") | _CALLS | _HEARS,
        "spark": spark | _CALLS | _WAITS | _LOOKS,
        "app": of_scripts(*METHODS) | _CALLS | _WAITS | _LOOKS | _HEARS,
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
            try:
                self._set(name, *anywhere)
            except redis.ResponseError:  # Redis before 7.2 lacks CLIENT SETINFO.
                self._set(name, *(word for word in anywhere if word != "+client|setinfo"))

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
