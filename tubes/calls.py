"""Calls: a caller puts a task, and the worker puts the result into the caller's reply tube.

Each connection has at most one reply tube. The first call creates it. It is dropped after some time without calls, when
the connection is closed, and on a server also when its process dies. The context of the task names the reply tube and
the call. A thread takes the replies and hands them to the callers.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import uuid4

from tubes.backend.flow import run, run_async
from tubes.backend.interface import ApiKind
from tubes.backend.port import connection_of, port_of
from tubes.backend.retry import Outage
from tubes.backend.waiters import ThreadWaiter
from tubes.drivers.options import InternalContext, Seconds, micros, seconds
from tubes.drivers.options import context as check_context
from tubes.errors import (
    CallFailed,
    CallTimeout,
    CodecError,
    ConnectionLost,
    InvalidOption,
    QueueClosed,
    TaskNotFound,
    TubeNotFound,
    TubesError,
)
from tubes.values.task import TaskView

if TYPE_CHECKING:
    from tubes.backend.flow import Flow
    from tubes.backend.interface import AnyConnection, AsyncConnection, Connection, Options, Port
    from tubes.backend.port import HasConnection

    _Queue: TypeAlias = HasConnection[Connection | AsyncConnection]

_log = logging.getLogger("tubes")

#: Names in a context. A call has the reply tube and the number of the call; a reply has the number, and an error.
REPLY_TO: Final = "tubes.reply-to"
CALL: Final = "tubes.call"
ERROR: Final = "tubes.error"
#: The prefix of the names of reply tubes.
_PREFIX: Final = "reply."
#: Seconds without a call after which a reply tube is dropped.
_LINGER: Final = 10.0
_opening: Final = threading.Lock()

#: The result of a handler, for its caller.
Result: TypeAlias = Future[Any]


class ReplyTube:
    """A reply tube, as the API object that its tasks belong to."""

    def __init__(self, port: Port[TaskView]) -> None:
        self._port: Final = port
        self.name: Final = port.shared.name

    def take(self, timeout: Seconds) -> TaskView | None:
        """Take the next reply; return None if there is none within `timeout` seconds."""
        reply = self._port.take()
        if reply is None:
            reply = ThreadWaiter(self._port.clock, micros("timeout", timeout)).wait(self._port)
        return reply

    def ack(self, reply: TaskView) -> None:
        """Remove a reply that its caller has received."""
        self._port.ack(reply)

    def drop(self) -> None:
        self._port.drop(True)


class PendingCalls:
    """The calls of one connection that wait for replies."""

    def __init__(self, connection: Connection[TaskView]) -> None:
        # A separate connection, since its thread waits on the reply tube all the time.
        self._connection: Final = connection
        self.name: Final = f"{_PREFIX}{uuid4().hex[:26]}"
        self._tube: ReplyTube = self._open()
        self._lock: Final = threading.Lock()
        self._pending: Final[dict[str, Result]] = {}
        self._is_over = False
        threading.Thread(target=self._run, name="tubes-replies", daemon=True).start()

    def expect(self) -> tuple[str, Result] | None:
        """Add a call; return its number and the future of its result, or None if the tube is about to be dropped."""
        call = uuid4().hex
        future: Result = Future()
        with self._lock:
            if self._is_over:
                return None
            self._pending[call] = future
        return call, future

    def forget(self, call: str) -> None:
        with self._lock:
            self._pending.pop(call, None)

    def close(self) -> None:
        """Drop the tube. Waiting callers get `QueueClosed`."""
        with self._lock:
            self._is_over = True
            pending = list(self._pending.values())
            self._pending.clear()
        for future in pending:
            with suppress(Exception):  # The future has been cancelled.
                future.set_exception(QueueClosed(why="close() was called"))
        try:
            self._tube.drop()
        except TubesError:
            _log.debug("a reply tube was not dropped", exc_info=True)
        with suppress(TubesError):
            self._connection.close()

    def close_later(self) -> None:
        """Close in a thread, since an event loop must not wait for a server."""
        threading.Thread(target=self.close, name="tubes-replies-end", daemon=True).start()

    def _open(self) -> ReplyTube:
        tube: ReplyTube = self._connection.open_replies(self.name).tube
        return tube

    def _run(self) -> None:
        outage = Outage()
        while True:
            try:
                tube = self._tube
                reply = tube.take(timeout=_LINGER)
                if reply is not None:
                    self._hand_over(reply)
                    tube.ack(reply)
                elif self._is_idle():
                    self.close()
                    return
                outage.end()
            except QueueClosed:
                return
            except TubeNotFound:  # The server has lost the tube, or it was dropped.
                if self._is_over:
                    return
                try:
                    self._tube = self._open()
                except QueueClosed:
                    return
                except Exception as error:
                    time.sleep(outage.next_delay("replies could not be taken", error))
                else:
                    self._notify_callers()
            except Exception as error:  # The thread must keep running: all callers depend on it.
                time.sleep(outage.next_delay("replies could not be taken", error))

    def _notify_callers(self) -> None:
        """Let the callers check their tasks, after the server has lost the tube."""
        with self._lock:
            pending = dict(self._pending)
            new = {call: Result() for call in pending}
            self._pending.update(new)
        for call, future in pending.items():
            with suppress(Exception):  # The future has been cancelled.
                future.set_exception(_TubeLost(new[call]))

    def _is_idle(self) -> bool:
        with self._lock:
            self._is_over = self._is_over or not self._pending
            return self._is_over

    def _hand_over(self, reply: TaskView) -> None:
        context = _context_of(reply)
        with self._lock:
            future = self._pending.pop(context.get(CALL, ""), None)
        if future is None:  # The reply is late, or a second one.
            return
        with suppress(Exception):  # The future has been cancelled.
            if ERROR in context:
                future.set_exception(_Failure(context[ERROR]))
                return
            try:
                data = reply.data
            except CodecError as error:
                future.set_exception(_Failure(str(error)))
                return
            except BaseException as error:  # An error of the codec itself.
                future.set_exception(_Failure(f"the reply cannot be decoded: {type(error)}"))
                return
            future.set_result(data)


class _Failure(Exception):
    """The error text of a failed call."""


class _TubeLost(Exception):
    """The server has lost the reply tube, and perhaps the task. A reply may still come, into `future`."""

    def __init__(self, future: Result) -> None:
        super().__init__()
        self.future: Final = future


def start_call(connection: AnyConnection) -> tuple[PendingCalls, str, Result]:
    """Add a call of a connection; return its pending calls, its number and the future. May talk to the server."""
    while True:
        with _opening:
            connection.check()
            replies = connection.replies
            if not isinstance(replies, PendingCalls) or replies._is_over:
                replies = connection.replies = PendingCalls(connection.sibling(ApiKind(TaskView, ReplyTube)))
        expected = replies.expect()
        if expected is not None:
            return replies, *expected


def _check_options(timeout: Seconds | None, options: Options) -> float | None:
    if "key" in options:
        rule = "must be left out of a call: two callers with one key would wait for the same reply"
        raise InvalidOption(option="key", value=options["key"], rule=rule)
    return None if timeout is None else seconds("timeout", timeout)


def _address_options(replies: PendingCalls, call: str, options: Options) -> Options:
    context = options.get("context")
    checked = check_context("context", context or {}) or {}
    return {**options, "context": InternalContext({**checked, REPLY_TO: replies.name, CALL: call})}


class _TimedOut(Exception):
    """A step has not ended in time."""


class _Step:
    """A step of a flow: a function that may return an awaitable, and must end before the monotonic time `ends`.

    In an event loop it is cancelled then; in a thread it runs to its end.
    """

    def __init__(self, act: Callable[[], object], ends: float | None = None) -> None:
        self._act: Final = act
        self._ends: Final = ends

    @property
    def remaining(self) -> float | None:
        """Remaining seconds, by the monotonic clock."""
        return None if self._ends is None else max(self._ends - time.monotonic(), 0.0)

    def take(self) -> object:
        return self._act()

    async def take_async(self) -> object:
        limit = asyncio.timeout(self.remaining)
        try:
            async with limit:
                result = self._act()
                return await result if inspect.isawaitable(result) else result
        except TimeoutError:
            if not limit.expired():
                raise
            raise _TimedOut from None


class _Wait(_Step):
    """A step that waits for a future until the monotonic time `ends`, also in a thread."""

    def __init__(self, future: Result, ends: float | None) -> None:
        super().__init__(partial(asyncio.wrap_future, future), ends)
        self._future: Final = future

    def take(self) -> object:
        try:
            return self._future.result(self.remaining)
        except TimeoutError:
            raise _TimedOut from None


def call(tube: Any, data: object, timeout: Seconds | None, options: Options) -> Any:
    """Put a task, and wait for the result of its handler."""
    return run(_call(tube, data, timeout, options, start_call), lambda step: step.take())


async def call_async(tube: object, data: object, timeout: Seconds | None, options: Options) -> Any:
    """Put a task, and wait in an event loop for the result of its handler."""

    async def begin(connection: AnyConnection) -> tuple[PendingCalls, str, Result]:
        connection.check()
        return await asyncio.to_thread(start_call, connection)

    return await run_async(_call(tube, data, timeout, options, begin), lambda step: step.take_async())


def _call(
    tube: Any, data: object, timeout: Seconds | None, options: Options, begin: Callable[[AnyConnection], object]
) -> Flow[_Step, object]:
    patience = _check_options(timeout, options)
    connection = port_of(tube).connection
    replies, number, future = yield _Step(partial(begin, connection))
    wait_end = deadline = None if patience is None else time.monotonic() + patience
    try:
        put = partial(tube.put, data, **_address_options(replies, number, options))
        task = yield _Step(partial(put, timeout=0))
        if task is None:
            room = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            task = yield _Step(partial(put, timeout=room))
        if task is None:
            raise port_of(tube).full_error(1)
        try:
            while True:
                try:
                    return (yield _Wait(future, deadline))
                except _TubeLost as lost:
                    future = lost.future
                try:
                    yield _Step(partial(tube.peek, task), deadline)
                except TaskNotFound:
                    break
            longest = time.monotonic() + _REPLY_DELAY
            wait_end = longest if deadline is None or longest < deadline else deadline
            return (yield _Wait(future, wait_end))
        except _Failure as failure:
            raise CallFailed(id=task.id, tube=tube.name, why=str(failure)) from None
        except (_TimedOut, _TubeLost) as error:
            if isinstance(error, _TimedOut) and wait_end is deadline:
                raise CallTimeout(id=task.id, tube=tube.name, timeout=patience) from None
            raise ConnectionLost(url=connection.url, why=_UNSURE) from None
    finally:
        replies.forget(number)


#: Seconds to wait for the reply to a task that the server no longer has.
_REPLY_DELAY: Final = 2.0
#: The reason of a `ConnectionLost` after that time.
_UNSURE: Final = "the server has lost its last writes, so the call may or may not have been done"


# -- for workers -------------------------------------------------------------------------------------------------------


def is_call(task: TaskView) -> bool:
    """Return True if a caller waits for the result of this task."""
    return _context_of(task).get(REPLY_TO, "").startswith(_PREFIX)


def _context_of(task: TaskView) -> dict[str, str]:
    """Return the context of a task, including the library's own names."""
    return (None if task._extras is None else task._extras.context) or {}


def send_reply(queue: _Queue, task: TaskView, result: object = None, why: str | None = None) -> None:
    """Send a reply to the caller of a task: the value that its handler returned, or with `why` its error.

    Raises the errors of the backend. It has no effect if the caller has stopped waiting.
    """
    run(_reply(connection_of(queue), task, result, why), lambda step: step.take())


async def send_reply_async(queue: _Queue, task: TaskView, result: object = None, why: str | None = None) -> None:
    """Send a reply to the caller of a task, in an event loop. See `send_reply`."""
    await run_async(_reply(connection_of(queue), task, result, why), lambda step: step.take_async())


def tell_caller(task: TaskView) -> None:
    """Notify the caller of a task that it was cancelled, if it is the task of a call. Does not raise."""
    run(_tell_caller(task), lambda step: step.take())


async def tell_caller_async(task: TaskView) -> None:
    """Notify the caller of a task that it was cancelled, in an event loop. See `tell_caller`."""
    await run_async(_tell_caller(task), lambda step: step.take_async())


def _tell_caller(task: TaskView) -> Flow[_Step, None]:
    if is_call(task):
        try:
            why = f"cancelled: {task.reason}" if task.reason else "cancelled"
            yield from _reply(port_of(task._tube).connection, task, None, why)
        except TubesError as error:
            _log.warning("the caller of %r could not be notified that it was cancelled: %s", task, error)


def _reply(
    connection: Connection | AsyncConnection, task: TaskView, result: object, why: str | None
) -> Flow[_Step, None]:
    call_context = _context_of(task)
    context = InternalContext({CALL: call_context.get(CALL, "")})
    if why is not None:
        context[ERROR] = why
    try:
        port = yield _Step(partial(connection.find_replies, call_context[REPLY_TO]))
        refused: CodecError | None = None
        # A codec for bytes cannot encode None.
        for data in [None, b""] if result is None else [result]:
            try:
                yield _Step(partial(port.tube.put, data, context=context))
                return
            except CodecError as error:
                refused = error
        if why is None:
            yield from _reply(connection, task, None, f"CodecError: {refused}")
    except TubeNotFound:
        _log.debug("no caller waits for the reply to %r", task)
