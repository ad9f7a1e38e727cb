"""The thread that waits on the server for all callers of one tube in this process."""

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
from tubes.redis.wait_queue import TakeAhead
from tubes.redis.wake_timer import WakeTimer

if TYPE_CHECKING:
    from tubes.redis.shared_tube import SharedTube

#: The longest sleep of the thread, in seconds: the most that waiters lose if a marker is lost with the process that had
#: it.
LONGEST_SLEEP: Final = 5.0
#: Seconds for which it sleeps on when something is due, since a timer rings for one of the waiters then.
_SLACK: Final = 0.1
#: Seconds by which a server's wait ends before the deadline of the last waiter: servers count in milliseconds.
_EARLY: Final = 0.0015
#: Seconds for which an idle thread waits for another waiter.
_IDLE: Final = 0.1
#: Microseconds after which other processes learn that nobody waits here any more.
_LINGER: Final = SECOND


class WaitLoop:
    """One thread at a time: it serves as many as it can, and then waits for a marker on the server.

    Behind the command that waits it sends a take for the first waiter. The server runs that take as soon as there is a
    marker, and both replies come at once. A task that it finds goes to that waiter; if the waiter is gone, to the next
    one, or back.

    A server does not end a wait on time. When something is due a `WakeTimer` rings, and the last waiter that leaves
    pokes the server. If the server refuses, the waiters get the error: else they would wait for nothing.

    The loop has a thread of its own: signals interrupt only the main thread, and so never the loop.
    """

    def __init__(self, shared: SharedTube) -> None:
        self._shared: Final = shared
        self._store: Final = shared.store
        self._key: Final = shared.key
        self._queue: Final = shared.queue
        #: Whether there is a thread that serves the waiters.
        self.on = False
        # Whether an idle thread waits for a message: True if there is a waiter, False if it is to end.
        self._is_idle = False
        self._work: Final[SimpleQueue[bool]] = SimpleQueue()
        self._channel: ThreadChannel | None = None
        # The take that was sent ahead, until its result is known.
        self._ahead: TakeAhead | None = None
        # When the wait on the server began: the next moment at which something is due, and the number of waiters.
        self._soonest = 0
        self._count = 0
        self._wake_timer: Final = WakeTimer(shared.store, shared.key)
        self._leaving: Final = Alarm(shared.store.clock, self._leave)
        self._outage: Final = Outage(longest=1.0)

    def start(self) -> bool:
        """Start the thread, unless it runs; returns whether it was started."""
        with self._queue.lock:
            if self.on:
                return False
            # CPython raises KeyboardInterrupt only after the call: `on` never stays set without a thread.
            self.on = True
            if self._is_idle:
                self._is_idle = False
                self._work.put(True)
                return True
            try:
                start_new_thread(self._run, ())
            except RuntimeError:  # No more threads, for now.
                self.on = False
                raise
            return True

    def has_served(self) -> bool:
        """Whether the thread has served anybody so far: then the server knows of this process."""
        return self._channel is not None

    def hang_up(self) -> None:
        """End the wait on the server, and the connection."""
        with self._queue.lock:
            channel, self._channel = self._channel, None
            if self._is_idle:
                self._is_idle = False
                self._work.put(False)
        if channel is not None:
            channel.hang_up()

    def _leave(self, now: int) -> None:
        """Tell other processes that nobody waits here any more."""
        self._leaving.cancel()
        self._store.later(self._forget)

    def _forget(self) -> None:
        channel = self._channel
        if channel is not None and not self._closing() and self._queue.is_empty():
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
        """Wait for the next waiter, which saves the start of a thread; returns whether one has come."""
        try:
            return self._work.get(timeout=_IDLE)
        except Empty:
            with self._queue.lock:
                if self._is_idle:
                    self._is_idle = False
                    return False
            return self._work.get()  # It came at the last moment.

    def _serve(self) -> None:
        """Serve the waiters, as long as there are any."""
        # If a test sets the time, `enlist` has looked already, and all happens at a certain moment.
        soonest = 0 if self._store.manual else None
        marked = False
        while self._goes_on():
            try:
                channel = self._open_channel()
                if not channel.waiting:
                    self._ask_again(channel)
                    if soonest is None:
                        soonest = run(self._shared.serving.serve_all(), channel.call)
                        marked = False
                        if soonest and self._store.manual:
                            self._shared.watch(soonest)
                    if self._is_needed():
                        self._fall_asleep(channel, soonest)
                if channel.waiting:
                    marked, soonest = self._sleep(channel)
                self._outage.end()
            except Exception as error:  # The waiters depend on it.
                marked, soonest = True, None
                refusal = error.__cause__ if isinstance(error, ConnectionLost) else error
                if isinstance(refusal, TubesError):
                    self._refuse(refusal)
                if self._is_needed():
                    what = f"the waiters of tube {self._shared.name!r} could not be served"
                    time.sleep(self._outage.rest(what, error))
        if not self._closing():
            if marked:  # A marker came too late for this thread: it is for others.
                self._store.later(self._shared.tick)
            self._leaving.set(self._store.clock.micros() + _LINGER)

    def _goes_on(self) -> bool:
        """Whether the thread has work; if not, it is idle until the next waiter comes."""
        with self._queue.lock:
            self.on = self._is_needed()
            self._is_idle = not self.on
            return self.on

    def _is_needed(self) -> bool:
        """Whether there is a waiter, or a result to find out."""
        has_work = not self._queue.is_empty() or self._ahead is not None or self._is_asleep()
        return has_work and not self._closing()

    def _is_asleep(self) -> bool:
        """Whether a wait on the server has not ended, as far as this process knows."""
        return self._channel is not None and self._channel.waiting

    def _closing(self) -> bool:
        return self._shared.closed_error or self._store.closed

    def _refuse(self, refusal: TubesError) -> None:
        """The server refuses a command of the thread: give the error to the waiters."""
        with self._queue.lock:
            waiters = self._queue.waiters()
            for waiter in waiters:
                self._queue.move(waiter, "refuse", type(refusal)(**refusal.facts))

    def _open_channel(self) -> ThreadChannel:
        with self._queue.lock:
            if self._channel is None:
                self._channel = ThreadChannel(self._store.server, SERVING)
            return self._channel

    # -- asleep --------------------------------------------------------------------------------------------------------

    def _fall_asleep(self, channel: ThreadChannel, soonest: int) -> None:
        """Begin to wait until there is a marker, or something is due (0: never)."""
        queue, store = self._queue, self._store
        with queue.lock:
            markers = [marker for marker, line in (("marker", queue.take_waiters), ("room", queue.put_waiters)) if line]
        if not markers:
            return
        if soonest:
            store.heed(soonest, channel)
        words = ("BZPOPMIN", *(f"{self._key}:{marker}" for marker in markers), f"{self._patience(soonest):.4f}")
        with queue.lock:  # A waiter that leaves finds what was sent for it.
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
            self._forget_ahead()  # It was not sent.
            raise

    def _sleep(self, channel: ThreadChannel) -> tuple[bool, int | None]:
        """Wait for the replies.

        Returns whether there was a marker that still has to be handled, and the next moment at which something is due
        (0: never); None: look for tasks.
        """
        sent = self._ahead is not None
        try:
            answered, reply = channel.end_wait()
        finally:
            self._wake_timer.cancel()
        done = sent and self._learn(channel, reply)  # Then another marker is left where there is more.
        if isinstance(answered, ErrorReply):
            raise error_of(answered, self._store.url)
        marked = answered is not None
        if not sent:
            return marked, None if marked or not self._store.manual else self._soonest
        same = self._queue.count() == self._count and not self._queue.put_waiters
        return marked and not done, reply if same and isinstance(reply, int) else None

    def _patience(self, soonest: int) -> float:
        """Seconds to sleep at most."""
        store = self._store
        if store.manual:
            return LONGEST_SLEEP
        now = store.clock.micros()
        seconds = LONGEST_SLEEP
        if soonest:  # The clocks may disagree: do not loop on a moment that seems to be over.
            seconds = min(seconds, max(0.0, (store.local_micros(soonest) - now) / SECOND) + _SLACK)
        # A take that was sent ahead must not be done when all waiters have gone.
        deadlines = [waiter.deadline for waiter in self._queue.waiters()]
        ends = [deadline for deadline in deadlines if deadline is not None]
        if ends and len(ends) == len(deadlines):
            seconds = min(seconds, (max(ends) - now) / SECOND - _EARLY)
        return max(seconds, 0.001)

    # -- takes that were sent ahead ------------------------------------------------------------------------------------

    def _disarm(self) -> None:
        """Note that the server has no take of this process any more."""
        if self._ahead is not None:
            self._queue.move(self._ahead.waiter, "disarm")

    def _ask_again(self, channel: ThreadChannel) -> None:
        """Find out whether a take was done whose connection was lost."""
        if self._ahead is not None:
            self._learn(channel, channel.call(self._ahead.call))

    def _learn(self, channel: ThreadChannel, reply: object) -> bool:
        """Give the task of a take that was sent ahead to a waiter; returns whether there was one."""
        assert self._ahead is not None
        lost = False
        try:
            if not isinstance(reply, bytes):  # An error is not reported here: the next take gets it again.
                return False
            run(self._shared.serving.hand_out(self._ahead.port, self._ahead.call, reply), channel.call)
            return True
        except TubesError:
            lost = True  # Perhaps it was not given back: find out again.
            raise
        finally:
            if lost:
                self._disarm()
            else:
                self._forget_ahead()

    def _forget_ahead(self) -> None:
        """The take that was sent ahead is over, if there is one."""
        self._disarm()
        self._queue.forget_ahead(self._ahead)
        self._ahead = None
