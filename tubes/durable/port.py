"""Ports of a store that is opened with `sync=full`, which syncs before a method returns, or with `mode=read`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from typing_extensions import override

from tubes.errors import StoreReadOnly
from tubes.memory.calls import CallPort
from tubes.values.task import F

if TYPE_CHECKING:
    from tubes.backend.waiters import Waiter
    from tubes.durable.syncer import Syncer

T = TypeVar("T")

#: The methods that only read.
READS: Final = frozenset(
    (
        *("due_histogram", "first", "is_empty", "lane_info", "lanes", "oldest_ready_age", "peek", "reach", "reasons"),
        *("select", "statistics"),
    )
)
#: The methods that may change the store.
WRITES: Final = frozenset(
    (
        *("ack", "ack_many", "ack_with", "alter", "block", "bury", "cancel", "change_seen", "checkpoint", "put_again"),
        *("configure", "decline", "delete", "delete_many", "drop", "evict", "forget_key", "kick_task", "listen"),
        *("next", "pause", "put", "put_many", "relay", "release", "release_all", "release_many", "release_unfailed"),
        *("renew_many", "set_ttr", "take", "take_many", "take_task", "touch", "truncate", "update"),
    )
)
# The methods whose result is undone if their caller is cancelled while it waits for the sync: puts and takes. `next`
# has acked its task already, so only its take is undone.
_UNDONE: Final = frozenset(("next", "put", "put_many", "take", "take_many", "take_task"))
#: The methods that return a coroutine in the asyncio API.
METHODS: Final = READS | WRITES


class SyncedPort(CallPort[F]):
    """A port for threads: its methods wait for the sync after they have released the lock.

    A call that is interrupted while it waits has had its full effect.
    """

    syncer: Syncer

    @override
    def put(self, *args: Any, **named: Any) -> F | None:
        return self._wait_for_sync(super().put(*args, **named))

    @override
    def take(self) -> F | None:
        return self._wait_for_sync(super().take())

    @override
    def ack(self, task: Any) -> F:
        return self._wait_for_sync(super().ack(task))

    @override
    def _do(self, act: Callable[[int], T], then: Callable[[T], T] | None = None) -> T:
        return self._wait_for_sync(super()._do(act, then))

    @override
    def _do_part(self, act: Callable[[int], bool]) -> bool:
        return self._wait_for_sync(super()._do_part(act))

    def _wait_for_sync(self, result: T) -> T:
        self.syncer.wait()
        return result


class ReadOnlyPort(CallPort[F]):
    """A port of a read-only store: methods that would change it raise `StoreReadOnly`."""

    @override
    def withdraw(self, waiter: Waiter, *, undo: bool) -> object:
        return None  # `enlist` has raised.


def _refuse(port: ReadOnlyPort[Any], *arguments: object, **options: object) -> object:
    raise StoreReadOnly(url=port.url)


for _name in (*WRITES, "enlist"):
    setattr(ReadOnlyPort, _name, _refuse)


class AsyncSyncedPort:
    """A port for asyncio: its methods await the sync."""

    def __init__(self, port: CallPort[Any], syncer: Syncer) -> None:
        self._port: Final = port
        self._syncer: Final = syncer

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if name not in METHODS:
            return found

        async def method(*arguments: object, **options: object) -> object:
            result = await reply if asyncio.iscoroutine(reply := found(*arguments, **options)) else reply
            if not self._syncer.is_synced:
                await self._sync(result, name)
            return result

        setattr(self, name, method)
        return method

    @property
    def kind(self) -> Any:
        return self._port.kind

    @kind.setter
    def kind(self, kind: Any) -> None:
        self._port.kind = kind

    @property
    def hot(self) -> AsyncSyncedPort:
        return self

    def relay_limit(self, target: object) -> int:
        return self._port.relay_limit(target._port if isinstance(target, AsyncSyncedPort) else target)

    async def relay(self, target: AsyncSyncedPort, *moved: object) -> object:
        return await self.__getattr__("relay")(target._port, *moved)

    async def _sync(self, result: object, name: str) -> None:
        loop = asyncio.get_running_loop()
        synced = loop.create_future()

        def finish() -> None:
            if not synced.done():
                synced.set_result(None)

        def notify() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish)

        self._syncer.call_after_sync(notify)
        try:
            await synced
        except asyncio.CancelledError:
            if name in _UNDONE:
                self._port.shared.give_back(result, is_put=name.startswith("put"))
            raise
        if self._port.closed_error is not None and not self._syncer.is_synced:
            raise self._port.closed_error()
