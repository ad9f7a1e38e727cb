"""The rights that each kind of user needs, found in the scripts; and as the page has them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import redis

from tests.support.scripts import DRIVERS, VERBS, verbs_of
from tubes.redis.scripts.assembly import script
from tubes.redis.scripts.gate import commands
from tubes.testing import LocalServer

_PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "howto" / "permissions.md"
#: The scripts of every session, and what opens, makes and finds tubes.
_SESSION: Final = ("open", "beat", "leave", "tick", "names", "there", "living", "ring", "mark")
_PUTS: Final = ("put", "put_many", "put_keyed", "put_limited", "stage", "unput")
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
    *("bury", "decline", "touch", "renew_many", "statistics", "session"),
)
#: What is sent besides scripts.
_CALLS: Final = {"EVAL", "EVALSHA", "CLIENT|SETINFO", "CONFIG|GET"}
_WAITS: Final = {"BZPOPMIN", "PING"}
_LOOKS: Final = {"MULTI", "EXEC", "HSTRLEN", "HMGET", "ZMSCORE", "EXISTS", "SMEMBERS", "HGET"}
_HEARS: Final = {"SUBSCRIBE", "UNSUBSCRIBE", "PING"}


@cache
def of_scripts(*verbs: str) -> frozenset[str]:
    """All commands of these scripts, for whatever driver."""
    return frozenset(
        command
        for verb in verbs
        for driver, settings in DRIVERS.values()
        if verb in verbs_of(driver)
        for command in commands(script(verb, driver, settings).text.decode())
    )


def wanted() -> dict[str, frozenset[str]]:
    """By kind of user what it needs."""
    putting = of_scripts(*_SESSION, *_PUTS) | _CALLS | _WAITS
    working = putting | of_scripts(*_TAKES)
    # Who only looks at names adds none, and writes down nothing.
    looking = (of_scripts("overview", "names", "living", "there", "age") | _CALLS) - {"SADD", "SREM", "HSET"}
    sparks = (verb for verb in VERBS if verb.startswith(("stream", "write", "extent", "heads", "ids", "oldest")))
    spark = of_scripts(*_SESSION, *_PUTS, *sparks)
    return {
        "producer": putting,
        "worker": working,
        "monitor": looking,
        "listener": of_scripts(*_SESSION, "listen") | _CALLS | _HEARS,
        "spark": spark | _CALLS | _WAITS | _LOOKS,
        "app": of_scripts(*VERBS) | _CALLS | _WAITS | _LOOKS | _HEARS,
    }


def told() -> dict[str, list[str]]:
    """By kind of user its rights, as the page has them."""
    text = _PAGE.read_text().replace("\\\n", "")
    lines = re.findall(r"^    ACL SETUSER (\w+) on >secret (.*)", text, re.MULTILINE)
    return {name: words.split() for name, words in lines}


class Users:
    """A user of each kind on a server, with the rights that the page gives, and with any prefix of keys."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self.admin: Any = server.client()
        for name, words in told().items():
            anywhere = [word.replace("tubes:*", "*") for word in words]
            try:
                self._set(name, *anywhere)
            except redis.ResponseError:  # Redis before 7.2 has no CLIENT SETINFO.
                self._set(name, *(word for word in anywhere if word != "+client|setinfo"))

    def _set(self, name: str, *words: str) -> None:
        self.admin.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", *words)

    def url(self, name: str) -> str:
        return f"unix://{name}:secret@{self.server.socket}"

    def refusals(self) -> list[Any]:
        """What the server has refused since the last look."""
        log: list[Any] = self.admin.execute_command("ACL", "LOG")
        if log:
            self.forget()
        return log

    def forget(self) -> None:
        """Forget what the server has refused."""
        self.admin.execute_command("ACL", "LOG", "RESET")


@cache
def users_of(server: LocalServer) -> Users:
    """The users of a server, made once."""
    return Users(server)
