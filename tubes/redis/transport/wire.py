"""A connection to a server for one thread at a time: sends packed requests, and parses replies."""

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
from tubes.redis.library.replies import ANY
from tubes.redis.library.replies import ErrorReply as ErrorReply
from tubes.redis.library.replies import Reply as Reply
from tubes.redis.library.text import with_source
from tubes.redis.transport.server import REPLY_TIMEOUT

if TYPE_CHECKING:
    from tubes.redis.transport.server import Server

try:
    import hiredis as _hiredis
except ImportError:  # The extra `hiredis` is not installed: redis-py's own parser takes twice as long.
    _hiredis = None  # type: ignore[assignment]

#: The module, or None if it is not installed.
hiredis: Any = _hiredis
_connections: Final[Any] = redis.Connection
_packer: Final = _connections()

#: An argument of a command.
Word: TypeAlias = str | bytes | int | float

_CHUNK: Final = 65536
#: Errors of a parser for bytes that are not a reply.
GARBAGE: Final[tuple[type[Exception], ...]] = (
    *(() if hiredis is None else (hiredis.HiredisError,)),
    *(ValueError, TypeError, MemoryError, RecursionError),
)


def foreign(reply: object) -> redis.InvalidResponse:
    """Make the error for a reply that does not match its request. The caller closes the connection."""
    return redis.InvalidResponse(f"it replied {short(reply)}, which is not a reply to the command")


def error_of(reply: ErrorReply, url: str) -> TubesError:
    """Return the exception for an error reply."""
    if reply.code == "OOM":
        return ServerFull(url=url)
    return ServerRefused(url=url, why=with_source(reply))


def pack(*words: Word) -> bytes:
    """Encode a command for the wire."""
    if hiredis is not None:
        # Format numbers here: hiredis calls repr, and crashes if a signal handler raises in it.
        texts = [repr(word) if word.__class__ is int or word.__class__ is float else word for word in words]
        packed: bytes = hiredis.pack_command(tuple(texts))
        return packed
    return b"".join(_packer.pack_command(*words))


class Wire:
    """A socket that redis-py connected. hiredis parses the replies if it is installed."""

    def __init__(self, server: Server, key: str, patience: float | None = None) -> None:
        self.url: Final = server.url
        self._connection: Final = server.connect(key, patience)
        self._sock: Final = self._connection._sock
        self._plain: Final = hiredis is not None and _blocks(self._sock)
        self.set_timeout(patience or REPLY_TIMEOUT)
        self._reader: Final = None if hiredis is None else hiredis.Reader(replyError=ErrorReply)
        # Returns a true value if bytes were received that are not parsed yet.
        self._has_more: Final[Callable[[], object]] = (
            self._connection._parser._buffer.unread_bytes if self._reader is None else self._reader.has_data
        )
        self._buffer: Final = bytearray(_CHUNK)
        #: True from before a request is sent until its last reply is read. If that is interrupted, the wire may have an
        #: unread reply and is never used again.
        self.busy = False

    def call(self, packed: bytes, kinds: frozenset[type] = ANY, replies: int = 1) -> Reply:
        """Send a request and return its reply, which may be an `ErrorReply`. Raises `ConnectionLost`.

        `kinds`: the expected types of the reply. A reply of another type or an extra reply belongs to another request
        and ends the connection. `replies`: the number of replies; return the last one, or the first error among them.
        """
        self.busy = True
        try:
            self._sock.sendall(packed)
            reply = self._read() if replies == 1 else _last([self._read() for _ in range(replies)])
            if type(reply) not in kinds or self._has_more():
                raise foreign(reply)
        except (redis.RedisError, OSError) as error:
            raise self._make_lost_error(error) from error
        self.busy = False
        return reply

    def send(self, packed: bytes) -> None:
        """Send requests without waiting for their replies."""
        self.busy = True
        try:
            self._sock.sendall(packed)
        except OSError as error:
            raise self._make_lost_error(error) from error

    def receive(self, kinds: frozenset[type] = ANY, *, last: bool = False) -> Reply:
        """Return the next reply, checked as in `call`; `last`: no further reply is expected."""
        try:
            reply = self._read()
            if type(reply) not in kinds or (last and self._has_more()):
                raise foreign(reply)
        except (redis.RedisError, OSError) as error:
            raise self._make_lost_error(error) from error
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

    def set_timeout(self, seconds: float) -> None:
        """Set the timeout of the socket, in seconds."""
        if not self._plain:
            self._sock.settimeout(seconds)
            return
        # Set the timeout in the kernel: Python's own costs a system call (poll) before each send and receive.
        full = int(seconds)
        self._sock.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._sock.setsockopt(socket.SOL_SOCKET, option, pack_timeval("ll", full, int((seconds - full) * 1e6)))

    def poll(self, seconds: float) -> Reply:
        """Return the next message, or None if none arrives in this many seconds."""
        try:
            if self._reader is None and not self._connection.can_read(seconds):
                return None
            self.set_timeout(seconds)
            return self._read()
        except (TimeoutError, BlockingIOError):
            return None
        except (redis.RedisError, OSError) as error:
            raise self._make_lost_error(error) from error

    def disconnect(self) -> None:
        """Shut the socket down from another thread: a thread that waits for a reply gets `ConnectionLost`."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def _make_lost_error(self, error: Exception) -> ConnectionLost:
        """Close the connection and make the error for its loss."""
        self.close()
        why = "it did not reply in time" if isinstance(error, (TimeoutError, BlockingIOError)) else error
        return ConnectionLost(url=self.url, why=why)


def _blocks(sock: socket.socket) -> bool:
    """Return True if reads block in the kernel. In TLS sockets and gevent's sockets they do not."""
    sock.settimeout(None)
    return not isinstance(sock, ssl.SSLSocket) and os.get_blocking(sock.fileno())


def _last(replies: list[Reply]) -> Reply:
    """Return the reply to EXEC, the last reply of a transaction; or the first error in any of its replies."""
    last = replies[-1]
    parts = last if isinstance(last, list) else []
    for reply in (*replies, *parts):
        if isinstance(reply, redis.ResponseError):  # redis-py's parser puts its exceptions into lists.
            return _value_of(reply)
        if reply.__class__ is ErrorReply:
            return reply
    if len(parts) != len(replies) - 2:
        raise foreign(last)
    return parts


def _value_of(error: redis.RedisError) -> ErrorReply:
    return ErrorReply(_CODES.get(type(error).__name__, "") + str(error))


#: The codes that redis-py removes from errors for which it has a class.
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
