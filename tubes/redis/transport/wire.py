"""One connection to a server, for one thread at a time: requests go out packed, replies come in."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from reprlib import repr as short
from struct import pack as pack_timeval
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import redis

from tubes.errors import ConnectionLost, ServerFull, ServerRefused, TubesError
from tubes.redis.scripts.assembly import with_source
from tubes.redis.scripts.replies import ANY
from tubes.redis.scripts.replies import ErrorReply as ErrorReply
from tubes.redis.scripts.replies import Reply as Reply
from tubes.redis.transport.server import ANSWER_TIMEOUT

if TYPE_CHECKING:
    from tubes.redis.transport.server import Server

try:
    import hiredis as _hiredis
except ImportError:  # The extra `hiredis`: without it redis-py's own parser works, at half the speed.
    _hiredis = None  # type: ignore[assignment]

#: The module, or None.
hiredis: Any = _hiredis
_connections: Final[Any] = redis.Connection
_packer: Final = _connections()

#: What a command is made of.
Word: TypeAlias = str | bytes | int | float

_CHUNK: Final = 65536
#: Errors of a parser for bytes that are no reply.
GARBAGE: Final[tuple[type[Exception], ...]] = (
    *(() if hiredis is None else (hiredis.HiredisError,)),
    *(ValueError, TypeError, MemoryError, RecursionError),
)


def foreign(reply: object) -> redis.InvalidResponse:
    """The error for a reply that fits no command: the connection is closed."""
    return redis.InvalidResponse(f"it replied {short(reply)}, which is not a reply to the command")


def error_of(reply: ErrorReply, url: str) -> TubesError:
    """The exception for an error of a server."""
    if reply.code == "OOM":
        return ServerFull(url=url)
    return ServerRefused(url=url, why=with_source(reply))


def pack(*words: Word) -> bytes:
    """A command as it goes over the wire."""
    if hiredis is not None:
        # hiredis formats numbers by repr, and crashes if a signal handler raises there.
        texts = [repr(word) if word.__class__ is int or word.__class__ is float else word for word in words]
        packed: bytes = hiredis.pack_command(tuple(texts))
        return packed
    return b"".join(_packer.pack_command(*words))


class Wire:
    """A socket that redis-py connected; hiredis parses, where it is installed."""

    def __init__(self, server: Server, key: str, patience: float | None = None) -> None:
        self.url: Final = server.url
        self._connection: Final = server.connect(key, patience)
        self._sock: Final = self._connection._sock
        self._plain: Final = hiredis is not None and _blocks(self._sock)
        self.wait(patience or ANSWER_TIMEOUT)
        self._reader: Final = None if hiredis is None else hiredis.Reader(replyError=ErrorReply)
        # Whether more has come than was read.
        self._has_more: Final[Callable[[], object]] = (
            self._connection._parser._buffer.unread_bytes if self._reader is None else self._reader.has_data
        )
        self._buffer: Final = bytearray(_CHUNK)
        #: True from before a request is sent until its last reply is read: a wire on which that was interrupted may
        #: have an unread reply, and is never used again.
        self.busy = False

    def call(self, packed: bytes, answers: frozenset[type] = ANY, replies: int = 1) -> Reply:
        """Send a request and wait for its reply; an error of the server is answered. Raises `ConnectionLost`.

        `answers`: the kinds of replies to it: another one is somebody else's, and ends the connection, as one too many
        does. Of several `replies` the last one, or the first error in any.
        """
        self.busy = True
        try:
            self._sock.sendall(packed)
            reply = self._read() if replies == 1 else _last([self._read() for _ in range(replies)])
            if type(reply) not in answers or self._has_more():
                raise foreign(reply)
        except (redis.RedisError, OSError) as error:
            raise self._lost(error) from error
        self.busy = False
        return reply

    def send(self, packed: bytes) -> None:
        """Send requests."""
        self.busy = True
        try:
            self._sock.sendall(packed)
        except OSError as error:
            raise self._lost(error) from error

    def receive(self, answers: frozenset[type] = ANY, *, last: bool = False) -> Reply:
        """The next reply; `last`: no more are to come. Else as `call`."""
        try:
            reply = self._read()
            if type(reply) not in answers or (last and self._has_more()):
                raise foreign(reply)
        except (redis.RedisError, OSError) as error:
            raise self._lost(error) from error
        self.busy = not last
        return reply

    def _read(self) -> Reply:
        reader = self._reader
        if reader is None:
            try:
                read: Reply = self._connection.read_response(disable_decoding=True)
                return read
            except (redis.ResponseError, redis.AuthenticationError) as error:
                return _value_of(error)
            except GARBAGE as error:
                raise redis.InvalidResponse(f"its reply is not valid: {error}") from error
        while True:
            try:
                reply: Reply = reader.gets()
            except GARBAGE as error:
                raise redis.InvalidResponse(f"its reply is not valid: {error}") from error
            if reply is not False:
                return reply
            size = self._sock.recv_into(self._buffer)
            if not size:
                raise ConnectionResetError("the server closed the connection")
            reader.feed(self._buffer, 0, size)

    def wait(self, seconds: float) -> None:
        """How long to wait for the next reply."""
        if not self._plain:
            self._sock.settimeout(seconds)
            return
        # The kernel keeps this timeout: Python's own would ask for it with a system call before each send and receive.
        whole = int(seconds)
        self._sock.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._sock.setsockopt(socket.SOL_SOCKET, option, pack_timeval("ll", whole, int((seconds - whole) * 1e6)))

    def hear(self, seconds: float) -> Reply:
        """The next message; None after so many seconds of silence."""
        try:
            if self._reader is None and not self._connection.can_read(seconds):
                return None
            self.wait(seconds)
            return self._read()
        except (TimeoutError, BlockingIOError):
            return None
        except (redis.RedisError, OSError) as error:
            raise self._lost(error) from error

    def hang_up(self) -> None:
        """Wake whoever waits for a reply, from another thread: it gets `ConnectionLost`."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection."""
        self._connection.disconnect()

    def _lost(self, error: Exception) -> ConnectionLost:
        self.close()
        late = isinstance(error, (TimeoutError, BlockingIOError))
        why = "it did not reply in time" if late else error
        return ConnectionLost(url=self.url, why=why)


def _blocks(sock: socket.socket) -> bool:
    """Whether the kernel waits in it: not where the socket is encrypted, or gevent's, whatever its timeout is."""
    sock.settimeout(None)
    return not isinstance(sock, ssl.SSLSocket) and os.get_blocking(sock.fileno())


def _last(replies: list[Reply]) -> Reply:
    """The reply of a transaction: it follows one for its beginning and one for each command."""
    last = replies[-1]
    parts = last if isinstance(last, list) else []
    for reply in (*replies, *parts):
        if isinstance(reply, redis.ResponseError):  # As redis-py's parser leaves it in a list.
            return _value_of(reply)
        if reply.__class__ is ErrorReply:
            return reply
    if len(parts) != len(replies) - 2:
        raise foreign(last)
    return parts


def _value_of(error: redis.RedisError) -> ErrorReply:
    return ErrorReply(_CODES.get(type(error).__name__, "") + str(error))


#: The words that redis-py cuts off where it knows an error by a class of its own.
_CODES: Final = {
    "NoScriptError": "NOSCRIPT ",
    "NoPermissionError": "NOPERM ",
    "AuthenticationError": "NOAUTH ",
    "OutOfMemoryError": "OOM ",
    "ReadOnlyError": "READONLY ",
    "BusyLoadingError": "LOADING ",
    "ClusterDownError": "CLUSTERDOWN ",
    "MasterDownError": "MASTERDOWN ",
    "MovedError": "MOVED ",
    "AskError": "ASK ",
    "TryAgainError": "TRYAGAIN ",
}
