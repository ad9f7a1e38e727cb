"""The thread that waits on the server for all callers of one tube in this process.

**How waiting works.** A caller whose take finds no task joins a queue in this process (`WaitQueue`). One thread per
tube runs `WaitLoop`: it blocks on the server with `BZPOPMIN` on the tube's marker key, and sends a take for the first
waiter right behind it. So the server runs that take as soon as a marker arrives, and both replies come back together. A
call that makes a task available (a put, a release, a lane that becomes free) pushes one marker, and the server hands it
to one blocked process. Tasks that become due by time have no such call: a `WakeTimer` in one of the waiting processes
pushes a marker when they are due. Puts that wait for room use a second marker key, `room`.

Three things can go wrong. (1) The process that popped a marker dies: no wait is longer than `LONGEST_SLEEP`, so another
process looks again. (2) The waiter leaves while its take is on the way: the task goes to the next waiter, or back to
the tube, and the attempt does not count. (3) The connection breaks: the loop reconnects with backoff, and a put whose
reply was lost counts as `UNSURE` until it is sent again. Every transition of a waiter is a row of `WAIT_MOVES`.
"""

from __future__ import annotations

import time
from _thread import start_new_thread
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from tubes.backend.alarms import Alarm
from tubes.backend.flow import run
from tubes.backend.retry import Outage
from tubes.drivers.options import SECOND
from tubes.errors import ConnectionLost, TubesError
from tubes.redis.transport.channel import ThreadChannel
from tubes.redis.transport.script_call import SERVING
from tubes.redis.transport.wire import ErrorReply, error_of
from tubes.redis.waiting.wait_queue import TakeAhead
from tubes.redis.waiting.wake_timer import WakeTimer

if TYPE_CHECKING:
    from tubes.redis.waiting.protocols import Tube
    from tubes.redis.waiting.serving import Serving
    from tubes.redis.waiting.wait_queue import WaitQueue

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
        # The take that was sent ahead, until its result is known.
        self._ahead: TakeAhead | None = None
        # The next due time and the number of waiters when the wait on the server began.
        self._soonest = 0
        self._count = 0
        self._wake_timer: Final = WakeTimer(tube.store, tube.key)
        self._unregister_alarm: Final = Alarm(tube.store.clock, self._unregister_later)
        self._outage: Final = Outage(longest=1.0)

    def start(self) -> bool:
        """Start the thread unless it runs; return whether it was started."""
        with self._queue.lock:
            if self.is_running:
                return False
            # CPython raises KeyboardInterrupt only after the call: `on` never stays set without a thread.
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

    def has_served(self) -> bool:
        """Return True once the loop has sent a request: only then has the server registered this process."""
        return self._channel is not None

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
            process = self._store.process
            channel.request(self._key, "HDEL", f"{self._key}:waiting", process, f"{process}:room")

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Serve waiters until none has come for a while."""
        while True:
            self._serve()
            if not self._wait_for_work():
                return

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

    def _serve(self) -> None:
        """Serve the waiters while there are any."""
        # With a test's clock `enlist` has looked already, and everything happens at set moments.
        soonest = 0 if self._store.manual else None
        has_marker = False
        while self._should_continue():
            try:
                channel = self._open_channel()
                if not channel.waiting:
                    self._resolve_ahead(channel)
                    if soonest is None:
                        soonest = run(self._serving.serve_all(), channel.call)
                        has_marker = False
                        if soonest and self._store.manual:
                            self._tube.watch(soonest)
                    if self._is_needed():
                        self._block(channel, soonest)
                if channel.waiting:
                    has_marker, soonest = self._wait(channel)
                self._outage.end()
            except Exception as error:  # The waiters depend on this thread.
                has_marker, soonest = True, None
                refusal = error.__cause__ if isinstance(error, ConnectionLost) else error
                if isinstance(refusal, TubesError):
                    self._refuse(refusal)
                if self._is_needed():
                    what = f"the waiters of tube {self._tube.name!r} could not be served"
                    time.sleep(self._outage.next_delay(what, error))
        if not self._is_closed:
            if has_marker:  # A marker arrived too late for the waiters of this process: use it for others.
                self._store.later(self._tube.tick)
            self._unregister_alarm.set(self._store.clock.micros() + _UNREGISTER_DELAY)

    def _should_continue(self) -> bool:
        """Return True if the thread has work; if not, it is idle until the next waiter comes."""
        with self._queue.lock:
            self.is_running = self._is_needed()
            self._is_idle = not self.is_running
            return self.is_running

    def _is_needed(self) -> bool:
        """Return True if there is a waiter, or a take whose result is unknown."""
        has_work = not self._queue.is_empty() or self._ahead is not None or self._is_blocked()
        return has_work and not self._is_closed

    def _is_blocked(self) -> bool:
        """Return True if a wait on the server has not ended, as far as this process knows."""
        return self._channel is not None and self._channel.waiting

    def _refuse(self, refusal: TubesError) -> None:
        """Give the waiters the error of a server that refuses the loop's commands."""
        with self._queue.lock:
            waiters = self._queue.waiters()
            for waiter in waiters:
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
            markers = [marker for marker, line in (("marker", queue.take_waiters), ("room", queue.put_waiters)) if line]
        if not markers:
            return
        if soonest:
            store.check_clock(soonest, channel)
        words = ("BZPOPMIN", *(f"{self._key}:{marker}" for marker in markers), f"{self._patience(soonest):.4f}")
        with queue.lock:  # Under the lock, so that a waiter that leaves finds the take that was sent for it.
            first, count = queue.first(queue.take_waiters), queue.count()
            call = None if first is None or store.manual else first.owner.take_ahead(count)
            if first is not None and call is not None:
                self._ahead = queue.ahead = TakeAhead(first, first.owner, call)

        def sent() -> None:
            if call is not None and first is not None:
                queue.move(first, "arm")

        self._soonest, self._count = soonest, count
        if soonest and not store.manual:
            self._wake_timer.set(soonest, markers[0])
        try:
            channel.begin_wait(self._key, words, call, sent)
        except Exception:
            self._forget_ahead()  # The take was not sent.
            raise

    def _wait(self, channel: ThreadChannel) -> tuple[bool, int | None]:
        """Wait for the replies.

        Return whether there was a marker that still has to be handled, and the next due time (0: never). None instead
        of a time: look for tasks.
        """
        sent = self._ahead is not None
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
        """Return the seconds to sleep at most."""
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

    def _disarm(self) -> None:
        """Record that the server has no take of this process any more."""
        if self._ahead is not None:
            self._queue.move(self._ahead.waiter, "disarm")

    def _resolve_ahead(self, channel: ThreadChannel) -> None:
        """Learn the result of a take whose connection was lost."""
        if self._ahead is not None:
            self._deliver(channel, channel.call(self._ahead.call))

    def _deliver(self, channel: ThreadChannel, reply: object) -> bool:
        """Give the task of a take that was sent ahead to a waiter; return whether it took a task."""
        assert self._ahead is not None
        lost = False
        try:
            if not isinstance(reply, bytes):  # An error is ignored here: the next take gets it again.
                return False
            run(self._serving.hand_out(self._ahead.port, self._ahead.call, reply), channel.call)
            return True
        except TubesError:
            lost = True  # The task may not have been given back: ask again.
            raise
        finally:
            if lost:
                self._disarm()
            else:
                self._forget_ahead()

    def _forget_ahead(self) -> None:
        """Forget the take that was sent ahead."""
        self._disarm()
        self._queue.forget_ahead(self._ahead)
        self._ahead = None
