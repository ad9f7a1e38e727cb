"""Puts of one pass of an event loop, sent to the server as one call.

A call costs a server more than a put, so this helps most if many tasks put at a time. Each caller gets the result of
its own put: if the server rejects the call, each put is sent again alone, after the calls that were made meanwhile.
Otherwise puts keep their order relative to other calls on the tube.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tubes.redis import task_codec
from tubes.redis.library import replies
from tubes.redis.library.replies import ErrorReply, Reply
from tubes.redis.port import puts
from tubes.redis.port.methods import TubePort
from tubes.redis.port.puts import NEEDS_OTHER_SCRIPT
from tubes.redis.transport.loop_channel import LoopChannel, ThreadedChannel
from tubes.redis.transport.script_call import Library, ScriptCall
from tubes.values.options import put_options
from tubes.values.task import F

if TYPE_CHECKING:
    from tubes.backend.interface import Options
    from tubes.errors import TubesError
    from tubes.redis.options_version import TubeSession
    from tubes.redis.port.base import PortConnection
    from tubes.redis.waiting.shared_tube import RedisTube

#: The channels of a connection by event loop.
Channels: TypeAlias = dict[asyncio.AbstractEventLoop, LoopChannel | ThreadedChannel]
#: Limits of one call, in puts and in bytes: a call must be short.
MOST: Final = 100
BYTES: Final = 500_000
#: The error code of a failed call. Such a call has put nothing, not even in an earlier attempt: otherwise the server
#: would have returned the stored reply. After any other error, the result is unknown.
_FAILED: Final = "ERR"


class CoalescedPuts(ScriptCall):
    """Puts of one session into one tube that are sent as one call. Puts are added until the call is packed."""

    grows = True

    __slots__ = ("_futures", "_growing", "_port", "_runs", "_size", "_version")

    def __init__(self, port: LoopPort, session: TubeSession, growing: dict[str, ScriptCall]) -> None:
        put_function, now = session.version.function("put"), port.connection.store.now()
        super().__init__(put_function, port.shared.key, (), session, now)
        self._version: Final = session.version
        # These puts have no keys, and never wait for room.
        self.reply_types = replies.BYTES
        self._port: Final = port
        # The calls of the channel that still accept puts.
        self._growing: Final = growing
        #: The data of all puts in order; the puts of one pair share their options.
        self._runs: Final[list[tuple[task_codec.NewTask, list[bytes]]]] = []
        self._futures: Final[list[asyncio.Future[Reply]]] = []
        self._size = 0

    def add(self, new: task_codec.NewTask, raw: bytes, future: asyncio.Future[Reply]) -> None:
        """Add a put. `future` receives the reply that the function `put` would give."""
        runs, futures = self._runs, self._futures
        if runs and runs[-1][0] is new:
            runs[-1][1].append(raw)
        else:
            runs.append((new, [raw]))
        futures.append(future)
        self._size += len(raw)
        count = len(futures)
        if count == 2:
            self.function = self._version.function("put_many")
        if count == MOST or self._size >= BYTES:
            self._close()

    def _close(self) -> None:
        if self._growing.get(self.key) is self:
            del self._growing[self.key]

    def pack(self, server: Library, *, with_text: bool = False) -> bytes:
        """Return the packed request; a single put uses the function `put`."""
        if not self.args:
            self._close()
            self._make_arguments()
        return super().pack(server, with_text=with_text)

    def _make_arguments(self) -> None:
        if len(self._futures) == 1:
            new, [raw] = self._runs[0]
            self.args = puts.put_words(self._port, self._version, new, raw)
            return
        words = task_codec.put_words(self._runs, laned=self._port.shared.driver.lane is not None)
        self.args = (len(self._futures), "", len(words), "", "", "", *words)

    # -- the methods of a future, for the channel ----------------------------------------------------------------------

    def done(self) -> bool:
        """Return False: every put has a future of its own, and a cancelled one is skipped when the reply arrives."""
        return False

    def set_result(self, reply: Reply) -> None:
        """Give each put its part of the reply, or the server's error."""
        self._close()
        is_batch = type(reply) is bytes and len(self._futures) > 1
        created, first = (reply[:7], int(reply[7:])) if type(reply) is bytes and is_batch else (b"", 0)
        for id, future in enumerate(self._futures, first):
            if not future.done():
                future.set_result(b"%b%d" % (created, id) if is_batch else reply)

    def set_exception(self, error: TubesError) -> None:
        """Give each put the error of a lost connection."""
        self._close()
        for future in self._futures:
            if not future.done():
                future.set_exception(type(error)(**error.facts))


class LoopPort(TubePort[F]):
    """A port for event loops."""

    def __init__(self, connection: PortConnection, shared: RedisTube, channels: Channels) -> None:
        super().__init__(connection, shared)
        self._channels: Final = channels
        #: True once several puts were sent as one call.
        self.has_coalesced = False
        self._coalesces: Final = not connection.store.manual

    def put(self, data: object, options: Options, *usual: Any) -> F | None:
        """Add a task; return None if the tube is full."""
        options = put_options(options, *usual)
        try:
            channel = self._channels.get(asyncio.get_running_loop())
        except RuntimeError:  # A forked child has no loop; the put below raises its error.
            channel = None
        session = self.session
        if session is None or not self._coalesces or not isinstance(channel, LoopChannel):
            return super().put(data, options)
        if session.version.is_bounded or (options and not NEEDS_OTHER_SCRIPT.isdisjoint(options)):
            return super().put(data, options)  # Each of these puts needs its own reply: the tube may be full.
        if session.version.lacks:  # A group needs more commands than a put.
            return super().put(data, options)
        raw, options = self.prepare(data, options)
        new = session.version.write(options)
        return self._put_coalesced(channel, session, new, raw, options)  # type: ignore[return-value]

    async def _put_coalesced(
        self, channel: LoopChannel, session: TubeSession, new: task_codec.NewTask, raw: bytes, options: Options
    ) -> F | None:
        if self.closed_error is not None:
            raise self.closed_error()
        future: asyncio.Future[Reply] = channel.loop.create_future()
        group = channel.growing.get(self.shared.key)
        if isinstance(group, CoalescedPuts) and group.session is session:
            group.add(new, raw, future)
        else:
            group = CoalescedPuts(self, session, channel.growing)
            group.add(new, raw, future)
            channel.submit(group, group)
        reply = await future
        if type(reply) is bytes:
            return puts.show_put(self, reply, new, raw)
        if type(reply) is ErrorReply and reply.code != _FAILED:
            settled: Any = self.run(self.settle("put", reply, session, resent=group.resent))
            await settled
        # The call put nothing, perhaps because of another put in it.
        single: Any = self.run(puts.put_encoded(self, raw, options, waits=False))
        return await single  # type: ignore[no-any-return]
