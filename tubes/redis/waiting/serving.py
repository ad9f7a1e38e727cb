"""Serve the waiters of one tube in this process: call the server for them, and hand over the results."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final, TypeVar

from tubes.backend.waiters import PENDING
from tubes.errors import ConnectionLost, TubeFull, TubesError, Unreadable
from tubes.redis import task_codec
from tubes.redis.transport.script_call import AHEAD, SERVING, WaitForLock
from tubes.values.task import TaskView

if TYPE_CHECKING:
    from tubes.backend.waiters import Waiter
    from tubes.redis.task_codec import Parsed
    from tubes.redis.transport.script_call import Flow, ScriptCall
    from tubes.redis.transport.wire import Reply
    from tubes.redis.waiting.protocols import Port
    from tubes.redis.waiting.wait_queue import WaitQueue

T = TypeVar("T")
_log = logging.getLogger("tubes")


class Serving:
    """The flows that serve waiters. One flow runs at a time, so waiters are served in the order of arrival.

    If a waiter has left, the call made for it is undone.
    """

    def __init__(self, queue: WaitQueue) -> None:
        self._queue: Final = queue
        #: Held while a flow serves.
        self.lock: Final = threading.Lock()
        # Each item tries to acquire the lock: no interrupt comes between an acquisition and the body of the `for` loop.
        self._acquisitions: Final = map(self.lock.acquire, repeat(False))

    def serve_one(self) -> Flow[bool]:
        """Serve the first waiter for a task; return False if no task was available for it."""
        soonest = yield from self._run_exclusively(self._serve_take())
        return soonest is None

    def serve_all(self) -> Flow[int]:
        """Serve all waiters that can be served; return the next due time (0: none)."""
        return (yield from self._run_exclusively(self._serve_all()))

    def _serve_all(self) -> Flow[int]:
        full: set[object] = set()
        while self._queue.put_waiters and (yield from self._serve_putter(full)):
            pass
        while True:
            soonest = yield from self._serve_take()
            if soonest is not None:
                return soonest

    def serve_after(self, verb: Flow[T]) -> Flow[T]:
        """Run a flow, then serve the waiters of this process, which need no marker then."""
        result = yield from verb
        try:
            yield from self.serve_all()
        except TubesError:
            _log.debug("waiters could not be served", exc_info=True)
        return result

    def hand_out(self, port: Port, call: ScriptCall, reply: bytes) -> Flow[None]:
        """Give a task that was taken ahead to the first waiter of its session; give it back without such a waiter."""
        task = _shown(port, task_codec.parse(reply))
        with self._queue.lock:
            first = self._queue.receiver(call)
            if first is not None and self._queue.give(first, task):
                self._queue.ahead = None
                return
        id, _, _, take, _, _ = task_codec.parse(reply)
        yield from port.undo("untake", id, take, slot=AHEAD, session=call.session)

    def _run_exclusively(self, flow: Flow[T]) -> Flow[T]:
        """Run a flow while no other flow serves. An interrupt never leaves the lock held."""
        is_locked = False
        try:
            for is_locked in self._acquisitions:
                if is_locked:
                    break
                yield WaitForLock(self.lock)
            return (yield from flow)
        finally:
            if is_locked:
                self.lock.release()

    def _serve_take(self) -> Flow[int | None]:
        """Serve the first waiter for a task; return None, or the next due time (0: none) if no task was available."""
        waiter = self._queue.first(self._queue.take_waiters)
        if waiter is None:
            return 0
        port: Port = waiter.owner

        def undo(reply: Reply) -> None:
            if waiter.result is PENDING:
                port.untake(reply)

        try:
            reply = yield from port.take_waiting(self._queue.count(), undo)
        except ConnectionLost:
            raise
        except TubesError as error:
            self._queue.give(waiter, error)
            return None
        if isinstance(reply, int):
            return reply
        if not self._queue.give(waiter, _shown(port, reply)):
            yield from port.undo("untake", reply[0], reply[3], slot=SERVING)
        return None

    def _serve_putter(self, full: set[object]) -> Flow[bool]:
        """Do the put of the first waiter for room; return False without a waiter or without room for it.

        `full`: lanes found full. Puts into them do not hold up others.
        """
        waiter = self._queue.ask_first_putter(full)
        if waiter is None:
            return False
        port = waiter.owner
        event = "lose"  # After an unexpected error here, the put may or may not have been done.
        try:
            result: TaskView | Sequence[TaskView] | Exception | None
            try:
                result = yield from port.put_waiting(waiter.request)
            except ConnectionLost:
                raise
            except Exception as error:
                result = error
            if isinstance(result, TubeFull) and "utube" in result.facts:
                event = "no_room"
                full.add(result.facts["utube"])
                return True
            if result is None:
                event = "no_room"
                return False
            if not self._queue.give(waiter, result) and not isinstance(result, Exception):
                verb, words = words_to_undo(waiter, result)
                yield from port.undo(verb, *words, slot=SERVING)
            return True
        finally:
            self._queue.move(waiter, event)  # Has no effect on a waiter that has left its queue.


def _shown(port: Port, taken: Parsed) -> TaskView | Unreadable:
    """Return the task for a waiter, or the error of an unreadable task, which stays taken."""
    try:
        shown: TaskView = port.show(taken)
    except Unreadable as error:
        return error
    return shown


def words_to_undo(waiter: Waiter, result: TaskView | Sequence[TaskView]) -> tuple[str, list[int | str]]:
    """Return the script that undoes a waiter's result, and its arguments: the last task comes first."""
    tasks = [result] if isinstance(result, TaskView) else [*reversed(result)]
    if waiter.request is None:
        return "untake", [word for task in tasks for word in (task.id, task._take)]
    return "unput", [word for task in tasks if task.created_now for word in (task.id, task_codec.put_of(task))]
