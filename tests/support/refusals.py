"""Refuse each command of each function in turn: the function succeeds, or a repair makes the tube consistent."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import redis

import tubes
from tubes.redis.transport.channel import ThreadChannel
from tubes.redis.transport.script_call import ScriptCall, numbers
from tubes.testing import LocalServer

_USER = "refused"
_PASSWORD = "pw"


class Refusals:
    """Run every function before its real call: once for each of its commands, as a user without the right to it.

    The server must support DEBUG. `refused`, `harmless` and `repaired` count refusals by command: all, those without
    effect on the result, and those after which the tube was repaired. `harm`: problems that remain after a repair.
    """

    def __init__(self, server: LocalServer, monkeypatch: pytest.MonkeyPatch, queue: tubes.Queue, tube: str) -> None:
        self.refused: Counter[str] = Counter()
        self.harmless: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self.harm: list[str] = []
        self._admin: Any = server.client()
        self._queue = queue.session()
        self._tube = tube
        self._is_trying = False
        self._allow()
        pool: Any = redis.UnixDomainSocketConnection
        self._line: Any = pool(path=str(server.socket), username=_USER, password=_PASSWORD)
        self._line.connect()
        original = ThreadChannel.call
        # Other threads of a store run before or after a trial.
        lock = threading.RLock()

        def call(line: ThreadChannel, call: ScriptCall) -> Any:
            with lock:
                if self._is_trying:
                    return original(line, call)
                call.begin(line.slot)
                # The call keeps its number, so it is executed once in the end.
                call.resent = True
                self._is_trying = True
                try:
                    self._try(call)
                finally:
                    self._is_trying = False
                return original(line, call)

        def exchange(line: ThreadChannel, key: str, head: bytes, tail: bytes, again: Any, *about: Any) -> Any:
            return call(line, again(next(numbers), *about))

        monkeypatch.setattr(ThreadChannel, "call", call)
        monkeypatch.setattr(ThreadChannel, "exchange", exchange)

    def close(self) -> None:
        self._line.disconnect()
        self._queue.close()
        self._admin.execute_command("ACL", "DELUSER", _USER)
        self._admin.close()

    def _allow(self, *but: str) -> None:
        rights = ("reset", "on", f">{_PASSWORD}", "~*", "&*", "+@all", *(f"-{name}" for name in but))
        self._admin.execute_command("ACL", "SETUSER", _USER, *rights)

    def _try(self, call: ScriptCall) -> None:
        connection: Any = self._queue._connection
        packed = call.pack(connection.store.server)
        before = self._dump()
        digest_before = self._digest()
        self._allow()
        self._ask(packed)
        done = self._digest()
        if done != digest_before:
            self._restore(before)
            assert self._digest() == digest_before
        for name in sorted(call.function.commands):
            self._allow(name)
            reply = self._ask(packed)
            after, refused = self._digest(), isinstance(reply, redis.ResponseError)
            (self.refused if refused else self.harmless)[name] += 1
            if refused and after != digest_before and self._tube in self._queue.tubes():
                self.repaired[name] += 1
                for _ in range(2):  # A session that a repair puts back is counted by the next one.
                    self._queue.admin.repair(self._tube)
                self.harm += [f"{call.function.name} {name}: {found}" for found in self._queue.admin.check(self._tube)]
            elif not refused and after != done:
                self.harm.append(f"{call.function.name} {name}: {difference(self._content(), {})}")
            if self._digest() != digest_before:
                self._restore(before)

    def _ask(self, packed: bytes) -> Any:
        self._line.send_packed_command([packed])
        try:
            return self._line.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            return error

    def _dump(self) -> dict[bytes, tuple[bytes, int]]:
        keys: list[bytes] = self._admin.keys("*")
        with self._admin.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.dump(key).pttl(key)
            replies = pipe.execute()
        return dict(zip(keys, zip(replies[::2], replies[1::2], strict=True), strict=True))

    def _restore(self, dumped: dict[bytes, tuple[bytes, int]]) -> None:
        with self._admin.pipeline(transaction=False) as pipe:
            pipe.flushdb()
            for key, (value, ttl) in dumped.items():
                pipe.restore(key, max(ttl, 0), value)
            pipe.execute()

    def _digest(self) -> bytes:
        """Return a digest of all keys: their values, and whether they expire."""
        digest: bytes = self._admin.execute_command("DEBUG", "DIGEST")
        return digest

    def _content(self) -> dict[bytes, Any]:
        """Return the content of `_digest` by key, in readable form."""
        keys: list[bytes] = sorted(self._admin.keys("*"))
        kinds: list[bytes] = _execute_all(self._admin, [("TYPE", key) for key in keys])
        readers = {b"hash": "HGETALL", b"set": "SMEMBERS", b"string": "GET"}
        ranges = {b"list": "LRANGE", b"zset": "ZRANGE"}
        reads: list[tuple[Any, ...]] = []
        for key, kind in zip(keys, kinds, strict=True):
            if kind in readers:
                reads.append((readers[kind], key))
            else:
                reads.append((ranges[kind], key, 0, -1, *(("WITHSCORES",) if kind == b"zset" else ())))
        values = _execute_all(self._admin, reads)
        ttls = _execute_all(self._admin, [("PTTL", key) for key in keys])
        return {key: (value, ttl < 0) for key, value, ttl in zip(keys, values, ttls, strict=True)}


def _execute_all(client: Any, reads: list[tuple[Any, ...]]) -> list[Any]:
    with client.pipeline(transaction=False) as pipe:
        for words in reads:
            pipe.execute_command(*words)
        replies: list[Any] = pipe.execute()
        return replies


def difference(one: dict[bytes, Any], other: dict[bytes, Any]) -> str:
    """Describe the differences."""
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return "; ".join(f"{name.decode()}: {one.get(name)} is {other.get(name)}" for name in names)
