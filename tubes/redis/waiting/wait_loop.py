"""The thread that serves the waiters of one tube in this process.

# How waiting on a server works

A caller whose take finds no task joins a queue of this process: `WaitLoop.enlist`. One thread per tube serves the
queue:

1. It takes for the first waiter, until no task is available (`Serving.serve`). The take registers this process at the
   server as waiting. Puts that wait for room are sent in the same way.
2. It blocks on the server with `BZPOPMIN` on the marker key of the tube, and sends a take for the first waiter right
   behind it (`WaitLoop._block`).
3. A call that makes a task available (a put, a release, a lane that becomes free) pushes one marker if a process is
   waiting, and the server hands the marker to one blocked process. The server runs the take behind the `BZPOPMIN` at
   once, so both replies come back together (`WaitLoop._wait`), and the thread wakes the waiter with the task. That take
   pushes another marker if more tasks are available. So one process wakes up per task, and no process polls. Its
   reply also says when the next task can be taken: unless that is now, the next wait blocks without a look at the tube.

Tasks that become due by time have no such call: the `WakeTimer` of a waiting process pushes a marker when they are due.
Puts that wait for room block on a second marker key, `room`.

Three things can go wrong. (1) The process that popped a marker dies: no wait is longer than `LONGEST_SLEEP`, so another
process looks again. (2) The waiter leaves while its take is on the way: the task goes to the next waiter, or back to
the tube, and the attempt does not count. (3) The connection breaks: the loop reconnects with backoff, and a put whose
reply was lost counts as `UNSURE` until it is sent again.

Each fact has one owner. `WaitQueue`: the waiters, their states (each transition is a row of `WAIT_MOVES`), and the take
that was sent ahead. `Serving`: whose turn it is to call the server for waiters. `WaitLoop`: the thread and its
connection. `RedisTube`: the time at which a task is due.

With a test's clock (`store.manual`) nothing happens by itself: `enlist` and the calls of users serve the waiters, and
the thread takes nothing ahead.
"""

from __future__ import annotations

import logging
import threading
import time
from _thread import start_new_thread
from collections.abc import Sequence
from itertools import repeat
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, TypeVar, cast

from tubes.backend.alarms import Alarm
from tubes.backend.flow import run
from tubes.backend.retry import Outage
from tubes.backend.waiters import PENDING
from tubes.drivers.options import SECOND
from tubes.errors import ConnectionLost, TubeFull, TubesError, Unreadable
from tubes.redis import task_codec
from tubes.redis.library.functions import FUNCTIONS
from tubes.redis.transport.attempt import PortStep, port_step
from tubes.redis.transport.channel import ThreadChannel
from tubes.redis.transport.script_call import AHEAD, SERVING, ScriptCall, WaitForLock
from tubes.redis.transport.wire import ErrorReply, error_of
from tubes.redis.waiting.wait_queue import TakeAhead, WaitState
from tubes.redis.waiting.wake_timer import WakeTimer
from tubes.values.task import TaskView

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.backend.waiters import Waiter
    from tubes.redis.task_codec import Parsed
    from tubes.redis.transport.script_call import Flow
    from tubes.redis.transport.wire import Reply
    from tubes.redis.waiting.protocols import Tube, WaitingPort
    from tubes.redis.waiting.wait_queue import WaitQueue

T = TypeVar("T")
_log = logging.getLogger("tubes")
#: Upper bound of one blocking wait, in seconds. If a marker is lost together with the process that popped it, waiters
#: lose at most this much.
LONGEST_SLEEP: Final = 5.0
#: Extra seconds to sleep past the next due time: a timer pushes a marker then.
_SLACK: Final = 0.1
#: End the server's wait this many seconds before the last deadline: servers round to milliseconds.
_MARGIN: Final = 0.0015
#: Seconds that an idle thread waits for another waiter.
_IDLE_TIMEOUT: Final = 0.1
#: Keep this process registered as waiting for this many microseconds after its last waiter left.
_UNREGISTER_DELAY: Final = SECOND


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

    def serve(self, *, only_one: bool = False) -> Flow[int | None]:
        """Serve all waiters that can be served; return the next due time (0: none).

        `only_one`: serve at most the first waiter for a task; return None if it was served. An interrupt never leaves
        the lock held.
        """
        is_locked = False
        try:
            for is_locked in self._acquisitions:
                if is_locked:
                    break
                yield WaitForLock(self.lock)
            full: set[object] = set()
            while not only_one and self._queue.put_waiters and (yield from self._serve_put(full)):
                pass
            while True:
                soonest = yield from self._serve_take()
                if only_one or soonest is not None:
                    return soonest
        finally:
            if is_locked:
                self.lock.release()

    def serve_one(self) -> Flow[bool]:
        """Serve the first waiter for a task; return False if no task was available for it."""
        return (yield from self.serve(only_one=True)) is None

    def serve_after(self, flow: Flow[T]) -> Flow[T]:
        """Run a flow, then serve the waiters of this process, which need no marker then."""
        result = yield from flow
        try:
            yield from self.serve()
        except TubesError:
            _log.debug("waiters could not be served", exc_info=True)
        return result

    def hand_out(self, ahead: TakeAhead, parsed: Parsed) -> Flow[None]:
        """Give a task that was taken ahead to the first waiter of its session, or back to the tube if there is none."""
        if not self._queue.give_ahead(ahead, _make_result(ahead.port, parsed)):
            yield from ahead.port.undo("undo_take", parsed[0], parsed[3], slot=AHEAD, session=ahead.call.session)

    def _serve_take(self) -> Flow[int | None]:
        """Serve the first waiter for a task; return None, or the next due time (0: none) if no task was available."""
        waiter = self._queue.first(self._queue.take_waiters)
        if waiter is None:
            return 0
        port: WaitingPort = waiter.owner

        def undo(reply: Reply) -> None:
            if waiter.result is PENDING:
                port.undo_waiting_take(reply)

        try:
            reply = yield from port.take_waiting(self._queue.count(), waiter.span, undo)
        except ConnectionLost:
            raise
        except TubesError as error:
            self._queue.give(waiter, error)
            return None
        if isinstance(reply, int):
            return reply
        if not self._queue.give(waiter, _make_result(port, reply)):
            yield from port.undo("undo_take", reply[0], reply[3], slot=SERVING)
        return None

    def _serve_put(self, full: set[object]) -> Flow[bool]:
        """Do the put of the first waiter for room; return False if there is no waiter or no room for its put.

        `full`: the lanes that were found full. Puts into them do not hold up other puts.
        """
        waiter = self._queue.begin_first_put(full)
        if waiter is None:
            return False
        port = waiter.owner
        event = "lose"  # After an unexpected error here, the put may or may not have been done.
        try:
            result: TaskView | Sequence[TaskView] | Exception | None
            try:
                put: Flow[TaskView | Sequence[TaskView] | None] = port.put_waiting(waiter.request)
                result = yield from put
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
                name, words = words_to_undo(waiter, result)
                yield from port.undo(name, *words, slot=SERVING)
            return True
        finally:
            self._queue.move(waiter, event)  # Has no effect on a waiter that has left its queue.


def _make_result(port: WaitingPort, taken: Parsed) -> TaskView | Unreadable:
    """Return the task for a waiter, or the error of an unreadable task, which stays taken."""
    try:
        return port.decode(taken)
    except Unreadable as error:
        return error


def words_to_undo(waiter: Waiter, result: TaskView | Sequence[TaskView]) -> tuple[str, list[int | str]]:
    """Return the function that undoes a waiter's result, and its arguments: the last task comes first."""
    tasks = [result] if isinstance(result, TaskView) else [*reversed(result)]
    if waiter.request is None:
        return "undo_take", [word for task in tasks for word in (task._record.id, task._take)]
    return "undo_put", [
        word for task in tasks if task.created_now for word in (task._record.id, task_codec.put_of(task))
    ]


class WaitLoop:
    """A loop run by one thread at a time: serve all waiters that can be served, then block until a marker arrives.

    A server does not end a blocking wait on time: a `WakeTimer` does so when a task is due, and the last waiter that
    leaves sends a `PING`. If the server refuses a command, the waiters get the error, or they would wait in vain.

    The loop has a thread of its own: signals interrupt only the main thread, and so never the loop.
    """

    def __init__(self, tube: Tube, queue: WaitQueue, serving: Serving) -> None:
        self._tube: Final = tube
        self._store: Final = tube.store
        self._key: Final = tube.key
        self._queue: Final = queue
        self._serving: Final = serving
        #: True while a thread serves the waiters.
        self.is_running = False
        # True once the tube or the store is closed.
        self._is_closed = False
        # True while an idle thread waits for a message: True for a new waiter, False to end.
        self._is_idle = False
        self._work: Final[SimpleQueue[bool]] = SimpleQueue()
        self._channel: ThreadChannel | None = None
        # The next due time and the number of waiters when the wait on the server began.
        self._soonest = 0
        self._count = 0
        self._wake_timer: Final = WakeTimer(tube.store, tube.key)
        self._unregister_alarm: Final = Alarm(tube.store.clock, self._unregister_later)
        self._outage: Final = Outage(longest=1.0)

    # -- callers -------------------------------------------------------------------------------------------------------

    def enlist(self, waiter: Waiter) -> None:
        """Append a waiter to its queue and get it served."""
        queue, manual = self._queue, self._store.manual
        if manual:
            # The waiter counts after its first look for a task; then the test continues.
            queue.arriving.add(waiter)
        with queue.lock:
            closed = waiter.owner.closed_error  # After this check, closing the port finds the waiter.
            if closed is not None:
                queue.arriving.discard(waiter)
                raise closed()
            is_first = queue.enlist(waiter)
            if manual and waiter.deadline is not None:
                self._tube.set_alarm(waiter.deadline)
        if manual:
            self._tube.run_now(self._look_first(waiter))
        # A put into a full lane does not hold up other puts.
        if not self._start() and (is_first or (waiter.request is not None and self._tube.driver.lane is not None)):
            self._store.later(self.mark)

    def _look_first(self, waiter: Waiter) -> Flow[None]:
        """Serve the waiters; from now on `waiter` counts."""
        try:
            yield from self._tube.tick()
        finally:
            self._queue.arriving.discard(waiter)

    def withdraw(self, waiter: Waiter, *, undo: bool) -> object:
        """Remove a waiter; return its result, or None if it has none yet. `undo`: give the result back."""
        queue = self._queue
        with queue.lock:
            queue.move(waiter, "leave")
            is_gone = queue.state(waiter) is WaitState.WITHDRAWN
            result = None if is_gone else cast("TaskView | list[TaskView] | Exception", waiter.result)
            is_last = self.is_running and queue.is_empty()
            has_stale_take = queue.note_stale()
        if has_stale_take:
            self._store.later(self.cancel_stale_take)
        if is_last and not self._store.manual:  # Stop the server's wait, which has no caller any more.
            self._store.end_expired_waits(self._key)
        if result is None and waiter.request is not None:
            self._retry_puts()
        if undo and isinstance(result, TaskView | list):
            port: WaitingPort = waiter.owner
            name, words = words_to_undo(waiter, result)
            self._store.later(lambda: port.undo(name, *words))
        return result

    def cancel_stale_take(self) -> Flow[None]:
        """Cancel the take that was sent ahead, which no caller waits for; a task that it took is given back.

        Other calls of this process do this first, so that they find the task.
        """
        stale = self._queue.stale
        if stale is not None:
            yield from stale.port.undo("disarm", stale.call.number, slot=AHEAD, session=stale.call.session)
            self._queue.forget_stale(stale)

    def dismiss(self, waiters: list[Waiter], error: Callable[[], TubesError]) -> None:
        """Give an error to these waiters if they still wait."""
        with self._queue.lock:
            for waiter in waiters:
                self._queue.move(waiter, "dismiss", error())
        self._retry_puts()

    def _retry_puts(self) -> None:
        """Send the waiting puts again after a waiter has left: the next one may need less room."""
        if self._queue.put_waiters:
            self._store.later(self.mark)

    def mark(self) -> Flow[None]:
        """Push a marker for each kind of waiters of this process, so that the thread looks again."""
        for marker in self._queue.markers():
            yield ScriptCall(FUNCTIONS["wake"], self._key, (marker,))

    def may_be_registered(self) -> bool:
        """Return True if the server may still count this process as waiting, although it has no waiters."""
        with self._queue.lock:
            return self._channel is not None and self._queue.is_empty()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _start(self) -> bool:
        """Start the thread unless it runs; return whether it was started."""
        with self._queue.lock:
            if self.is_running:
                return False
            # CPython raises KeyboardInterrupt only after the call: the flag never stays set without a thread.
            self.is_running = True
            if self._is_idle:
                self._is_idle = False
                self._work.put(True)
                return True
            try:
                start_new_thread(self._run, ())
            except RuntimeError:  # The process cannot start threads now.
                self.is_running = False
                raise
            return True

    def disconnect(self) -> None:
        """End the wait on the server and close the connection."""
        with self._queue.lock:
            self._is_closed = True
            channel, self._channel = self._channel, None
            if self._is_idle:
                self._is_idle = False
                self._work.put(False)
        if channel is not None:
            channel.disconnect()

    def _unregister_later(self, now: int) -> None:
        """Unregister this process as waiting."""
        self._unregister_alarm.cancel()
        self._store.later(self._unregister)

    def _unregister(self) -> None:
        channel = self._channel
        if channel is not None and not self._is_closed and self._queue.is_empty():
            self._queue.note_reply(None)
            process = self._store.process
            channel.request(self._key, "HDEL", f"{self._key}:waiting", process, f"{process}:room")

    def _run(self) -> None:
        """Serve waiters until none has come for a while."""
        # With a test's clock `enlist` has looked already, and everything happens at set moments.
        first_look = 0 if self._store.manual else None
        soonest, has_marker = first_look, False
        while True:
            if not self._should_continue():
                self._end_serving(has_marker)
                if not self._wait_for_work():
                    return
                soonest, has_marker = first_look, False
                continue
            try:
                channel = self._open_channel()
                if not channel.waiting:
                    self._resolve_ahead(channel)
                    if soonest is None and self._queue.knows_none() and not self._queue.put_waiters:
                        soonest = self._queue.soonest
                    if soonest is None:
                        soonest, has_marker = run(self._serving.serve(), channel.call), False
                        if soonest and self._store.manual:
                            self._tube.watch(soonest)
                    if self._is_needed():
                        self._block(channel, soonest or 0)
                if channel.waiting:
                    has_marker, soonest = self._wait(channel)
                self._outage.end()
            except Exception as error:  # The waiters depend on this thread.
                has_marker, soonest = True, None
                self._queue.note_reply(None)
                refusal = error.__cause__ if isinstance(error, ConnectionLost) else error
                if isinstance(refusal, TubesError):
                    self._refuse(refusal)
                if self._is_needed():
                    what = f"the waiters of tube {self._tube.name!r} could not be served"
                    time.sleep(self._outage.next_delay(what, error))

    def _end_serving(self, has_marker: bool) -> None:
        """Pass on a marker that arrived too late for the waiters of this process; unregister the process later."""
        if not self._is_closed:
            if has_marker:
                self._store.later(self._tube.tick)
            self._unregister_alarm.set(self._store.clock.micros() + _UNREGISTER_DELAY)

    def _wait_for_work(self) -> bool:
        """Wait for the next waiter, which saves the start of a thread; return whether one has come."""
        try:
            return self._work.get(timeout=_IDLE_TIMEOUT)
        except Empty:
            with self._queue.lock:
                if self._is_idle:
                    self._is_idle = False
                    return False
            return self._work.get()  # The message arrived just after the timeout.

    def _should_continue(self) -> bool:
        """Return True if the thread has work; if not, it is idle until the next waiter comes."""
        with self._queue.lock:
            self.is_running = self._is_needed()
            self._is_idle = not self.is_running
            return self.is_running

    def _is_needed(self) -> bool:
        """Return True if there is a waiter, or a take whose result is unknown."""
        is_blocked = self._channel is not None and self._channel.waiting
        return not self._is_closed and (is_blocked or self._queue.ahead is not None or not self._queue.is_empty())

    def _refuse(self, refusal: TubesError) -> None:
        """Give the waiters the error of a server that refuses the loop's commands."""
        with self._queue.lock:
            for waiter in self._queue.waiters():
                self._queue.move(waiter, "refuse", type(refusal)(**refusal.facts))

    def _open_channel(self) -> ThreadChannel:
        with self._queue.lock:
            if self._channel is None:
                self._channel = ThreadChannel(self._store.server, SERVING)
            return self._channel

    # -- blocking on the server ----------------------------------------------------------------------------------------

    def _block(self, channel: ThreadChannel, soonest: int) -> None:
        """Send the request that waits until a marker arrives or a task is due (`soonest`; 0: never)."""
        queue, store = self._queue, self._store
        with queue.lock:
            markers = queue.markers()
        if not markers:
            return
        if not {"capacity", "lane_capacity"}.isdisjoint(self._tube.options):
            # These waiters may leave, and another one may wait for the other marker before this wait ends.
            markers = ["marker", "room"]
        if soonest:
            store.check_clock(soonest, channel)
        words = ("BZPOPMIN", *(f"{self._key}:{marker}" for marker in markers), f"{self._patience(soonest):.4f}")
        with queue.lock:  # Under the lock, so that a waiter that leaves finds the take that was sent for it.
            first, count = queue.first(queue.take_waiters), queue.count()
            call = None if first is None or store.manual else first.owner.take_ahead(count, first.span)
            if first is not None and call is not None:
                queue.ahead = TakeAhead(first, call)

        def sent() -> None:
            if call is not None and first is not None:
                queue.move(first, "arm")

        self._soonest, self._count = soonest, count
        if soonest and not store.manual:
            self._wake_timer.set(soonest, markers[0])
        try:
            channel.begin_wait(self._key, words, call, sent)
        except Exception:
            queue.forget_ahead()  # The take was not sent.
            raise

    def _wait(self, channel: ThreadChannel) -> tuple[bool, int | None]:
        """Wait for the replies.

        Return whether there was a marker that still has to be handled, and the next due time (0: never; None: unknown,
        look for tasks).
        """
        sent = self._queue.ahead is not None
        try:
            marker_reply, reply = channel.end_wait()
        finally:
            self._wake_timer.cancel()
        # After a take the server leaves another marker if more tasks are available.
        done = sent and self._deliver(channel, reply)
        if isinstance(marker_reply, ErrorReply):
            raise error_of(marker_reply, self._store.url)
        has_marker = marker_reply is not None
        if not sent:
            return has_marker, None if has_marker or not self._store.manual else self._soonest
        same = self._queue.count() == self._count and not self._queue.put_waiters
        return has_marker and not done, reply if same and isinstance(reply, int) else None

    def _patience(self, soonest: int) -> float:
        """Return the maximum number of seconds to sleep."""
        store = self._store
        if store.manual:
            return LONGEST_SLEEP
        now = store.clock.micros()
        seconds = LONGEST_SLEEP
        if soonest:  # The clocks may disagree: do not loop on a moment that seems to be past.
            seconds = min(seconds, max(0.0, (store.local_micros(soonest) - now) / SECOND) + _SLACK)
        # A take that was sent ahead must not run after all waiters have left.
        deadlines = [waiter.deadline for waiter in self._queue.waiters()]
        ends = [deadline for deadline in deadlines if deadline is not None]
        if ends and len(ends) == len(deadlines):
            seconds = min(seconds, (max(ends) - now) / SECOND - _MARGIN)
        return max(seconds, 0.001)

    # -- takes that were sent ahead ------------------------------------------------------------------------------------

    def _resolve_ahead(self, channel: ThreadChannel) -> None:
        """Request the result of a take whose connection was lost."""
        if self._queue.ahead is not None:
            self._deliver(channel, channel.call(self._queue.ahead.call))

    def _deliver(self, channel: ThreadChannel, reply: Reply) -> bool:
        """Give the task of a take that was sent ahead to a waiter; return whether it took a task."""
        ahead = self._queue.ahead
        assert ahead is not None
        lost = False
        try:
            if port_step("take", reply) is PortStep.MARK:
                run(ahead.port.mark_damaged(), channel.call)
            if isinstance(reply, ErrorReply):  # It is ignored here: the next take gets it again.
                self._queue.note_reply(None)
                return False
            taken = ahead.port.read_waiting(reply)
            if isinstance(taken, int):
                return False
            run(self._serving.hand_out(ahead, taken), channel.call)
            return True
        except TubesError:
            lost = True  # The task may not have been given back: ask again.
            self._queue.move(ahead.waiter, "disarm")
            raise
        finally:
            if not lost:
                self._queue.forget_ahead()
