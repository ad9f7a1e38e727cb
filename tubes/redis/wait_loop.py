"""The thread that looks after those who wait in one tube of a server."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from tubes.backend.flow import run
from tubes.backend.retry import Outage
from tubes.backend.waiters import PENDING, ThreadWaiter
from tubes.drivers.options import SECOND
from tubes.errors import ConnectionLost, TubesError
from tubes.redis.transport.channel import ThreadChannel
from tubes.redis.transport.script_call import SERVING
from tubes.redis.transport.server import ANSWER_TIMEOUT
from tubes.redis.transport.wire import ErrorReply, error_of
from tubes.redis.wake_timer import WakeTimer

if TYPE_CHECKING:
    from tubes.backend.waiters import Waiter
    from tubes.redis.port import Port
    from tubes.redis.shared_tube import SharedTube
    from tubes.redis.transport.script_call import ScriptCall

#: Seconds for which a waiter sleeps at most before it looks again: what bounds the harm of a marker that was lost
#: together with the process that had it.
LONGEST_SLEEP: Final = 5.0
#: Seconds for which it sleeps on when something is due, since a bell rings for one of those who wait for that moment.
_SLACK: Final = 0.1
#: Seconds by which a server's wait ends before the time of the last who waits: it counts in milliseconds.
_EARLY: Final = 0.0015
#: Seconds after which a server is told again to end a wait that is over, and microseconds for which it is told.
_POKE: Final = 0.001
_GRACE: Final = SECOND // 20


class WaitLoop:
    """One thread at a time: it serves whom it can, and then waits for a marker.

    Behind the command that waits it has sent a take already, for the first who waits: the server does it as soon as
    there is a marker, and both replies come at once. What that take finds goes to that waiter; if it is gone, to the
    next one, or back. A server ends no wait at its very moment: when something is due a `WakeTimer` rings, and when the
    time of all who wait is over the server is poked. A thread whose own time is over waits no longer for a server that
    does not answer: it leaves the rest of the wait to another thread. What the server refuses those who wait are told:
    they would wait for nothing.
    """

    def __init__(self, shared: SharedTube) -> None:
        self._shared_tube: Final = shared
        self._store: Final = shared.store
        #: Whether there is a thread.
        self.on = False
        # Who waits in it.
        self._own: ThreadWaiter | None = None
        self._channel: ThreadChannel | None = None
        # The take that was sent ahead, until it is known what became of it.
        self._sent: tuple[Port[Any], ScriptCall] | None = None
        # What was known when the wait on the server began: the next moment at which something is due, who waits.
        self._soonest = 0
        self._count = 0
        self._wake_timer: Final = WakeTimer(shared)
        self._outage: Final = Outage(longest=1.0)

    def begin(self) -> bool:
        """Somebody waits; whether a thread looks after it already. Else `serve` is to come."""
        begun, self.on = self.on, True
        return begun

    def serve(self, waiter: Waiter) -> None:
        """Look after whoever waits.

        A thread that waits itself does so for all until it is served: that saves a switch of threads, which takes as
        long as a call.
        """
        if isinstance(waiter, ThreadWaiter) and not self._store.manual:
            self._serve(waiter)
        else:
            self._start()

    def forget(self) -> None:
        """Nobody waits: other processes need not think so."""
        channel, shared = self._channel, self._shared_tube
        if channel is not None and not self._closing() and not shared.takers and not shared.putters:
            process = self._store.process
            channel.request(shared.key, "HDEL", f"{shared.key}:waiting", process, f"{process}:room")

    def has_served(self) -> bool:
        """Whether anybody was looked after so far: then the server knows of it."""
        return self._channel is not None

    def dismiss(self, waiters: list[Waiter]) -> None:
        """These have been answered: if the thread is the one of one of them, it need not wait for a marker any more."""
        if self._own is not None and self._own in waiters:
            self.hang_up()

    def hang_up(self) -> None:
        """Wake the thread, for good."""
        with self._shared_tube.lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.hang_up()

    def _start(self) -> None:
        threading.Thread(target=self._serve, name="tubes-waiting", daemon=True).start()

    def _serve(self, own: ThreadWaiter | None = None) -> None:
        """Look after those who wait, as long as there are any; `own`: the thread's own wait, with which it ends."""
        shared = self._shared_tube
        # Where time is in a test's hands, `enlist` has looked already, and what happens at which moment is certain.
        soonest = 0 if self._store.manual else None
        marked = False
        self._own = own
        try:
            while self._goes_on(own):
                try:
                    channel = self._open_line()
                    if not channel.waiting:
                        self._ask_again(channel)
                        if soonest is None:
                            soonest = run(shared.serve_all(), channel.call)
                            marked = False
                            if soonest and self._store.manual:
                                shared.watch(soonest)
                        if self._goes_on(own):
                            self._fall_asleep(channel, soonest)
                    if channel.waiting:
                        marked, soonest = self._sleep(channel, own)
                    self._outage.end()
                except Exception as error:  # Those who wait depend on it.
                    marked, soonest = True, None
                    refusal = error.__cause__ if isinstance(error, ConnectionLost) else error
                    if isinstance(refusal, TubesError):
                        shared.refuse(refusal)
                    if self._goes_on(own):
                        rest = self._outage.rest(f"those who wait on tube {shared.name!r} could not be served", error)
                        time.sleep(rest)
        except BaseException:
            # Interrupted, perhaps in the middle of a call: the channel undoes it.
            if self._channel is not None:
                self._channel.abandon_wait()
            self.hang_up()
            self._sent = None
            marked = True
            raise
        finally:
            self._own = None
            with shared.lock:
                if not self._is_asleep():
                    shared.armed = None
                if own is not None and own.answer is PENDING and not shared.keeps(own):
                    shared.strike(own)  # Its time is over: nobody is to take for it any more.
                self.on = self._is_needed()
                go_on = self.on
            if go_on:
                self._start()
            elif not self._closing():
                if marked:  # It came too late, and goes on to others.
                    self._store.later(shared.tick)
                shared.linger()

    def _is_needed(self) -> bool:
        """Whether there is somebody to look after, or something to find out."""
        shared = self._shared_tube
        return bool(shared.takers or shared.putters or self._sent or self._is_asleep()) and not self._closing()

    def _is_asleep(self) -> bool:
        """Whether the server has a wait that nobody has heard the end of."""
        return self._channel is not None and self._channel.waiting

    def _goes_on(self, own: ThreadWaiter | None) -> bool:
        """Whether the thread stays."""
        if own is None or self._closing():
            return self._is_needed()
        late = own.deadline is not None and own.deadline <= self._store.clock.micros()
        return own.answer is PENDING and not late

    def _closing(self) -> bool:
        return self._shared_tube.gone or self._store.closed

    def _open_line(self) -> ThreadChannel:
        with self._shared_tube.lock:
            if self._channel is None:
                self._channel = ThreadChannel(self._store.server, SERVING)
            return self._channel

    def _fall_asleep(self, channel: ThreadChannel, soonest: int) -> None:
        """Begin to wait until there is a marker, or something is due (0: never)."""
        shared = self._shared_tube
        with shared.lock:
            markers = [marker for marker, who in (("marker", shared.takers), ("room", shared.putters)) if who]
        if not markers:
            return
        if soonest:
            self._store.heed(soonest, channel)
        words = ("BZPOPMIN", *(f"{shared.key}:{marker}" for marker in markers), f"{self._patience(soonest):.4f}")
        first, count = shared.first(shared.takers), shared.count_local()
        port: Port[Any] | None = None if first is None or self._store.manual else first.owner
        call = None if port is None else port.take_ahead(count)

        def sent() -> None:
            if call is not None:
                shared.armed = first

        if port is not None and call is not None:
            self._sent = port, call
        self._soonest, self._count = soonest, count
        if soonest and not self._store.manual:
            self._wake_timer.set(soonest, markers[0])
        try:
            channel.begin_wait(shared.key, words, call, sent)
        except Exception:
            self._sent = None  # It was not.
            raise

    def _sleep(self, channel: ThreadChannel, own: ThreadWaiter | None) -> tuple[bool, int | None]:
        """Wait on; as long as `own` has time, if it is that one's thread. Then another thread goes on with the wait.

        Answers whether there was a marker that nobody has dealt with, and the next moment at which something is due
        (0: never); None: look what there is.
        """
        shared, sent = self._shared_tube, self._sent is not None
        try:
            heard = self._hear(channel, own)
        finally:
            if not channel.waiting:
                self._wake_timer.silence()
        if heard is None:
            return False, None
        answered, reply = heard
        done = sent and self._learn(channel, reply)  # Then another marker is left where there is more.
        if answered.__class__ is ErrorReply:
            raise error_of(answered, self._store.url)
        marked = answered is not None
        if not sent:
            return marked, None if marked or not self._store.manual else self._soonest
        same = reply.__class__ is int and shared.count_local() == self._count and not shared.putters
        return marked and not done, reply if same else None

    def _hear(self, channel: ThreadChannel, own: ThreadWaiter | None) -> tuple[Any, Any] | None:
        """What the channel answers; None: the time of `own` is over, and the server still waits."""
        if own is None or own.deadline is None:
            return channel.end_wait(None)
        store = self._store
        left = max(0, own.deadline - store.clock.micros()) / SECOND
        if left > ANSWER_TIMEOUT:  # By then it has answered, or never will.
            return channel.end_wait(None)
        heard = channel.end_wait(left)
        # On a server that is not told the wait would go on for a while, and take for nobody what is put meanwhile.
        while heard is None and store.clock.micros() < own.deadline + _GRACE:
            store.poke(self._shared_tube.key)
            heard = channel.end_wait(_POKE)
        return heard

    def _patience(self, soonest: int) -> float:
        """Seconds to sleep at most."""
        shared, store = self._shared_tube, self._store
        if store.manual:
            return LONGEST_SLEEP
        now = store.clock.micros()
        seconds = LONGEST_SLEEP
        if soonest:  # The clocks may disagree: what seems to be over does not come at once again and again.
            seconds = min(seconds, max(0.0, (store.local_micros(soonest) - now) / SECOND) + _SLACK)
        # What was sent ahead is not to be done when everybody has gone.
        with shared.lock:
            last = max(
                (waiter.deadline for line in (shared.takers, shared.putters) for waiter in line),
                key=_late,
                default=None,
            )
        if last is not None:
            seconds = min(seconds, (last - now) / SECOND - _EARLY)
        return max(seconds, 0.001)

    def _ask_again(self, channel: ThreadChannel) -> None:
        """Find out what became of a take whose connection was lost: it may have been done."""
        if self._sent is not None:
            self._learn(channel, channel.call(self._sent[1]))

    def _learn(self, channel: ThreadChannel, reply: Any) -> bool:
        """What a take that was sent ahead has answered is given away; whether there was a task."""
        assert self._sent is not None
        port, call = self._sent
        lost = False
        try:
            if reply.__class__ is not bytes:  # Of an error nothing is said here: it comes again when it is asked for.
                return False
            run(self._shared_tube.hand_out(port, call, reply), channel.call)
            return True
        except TubesError:
            lost = True  # Perhaps it was not given back: it is asked about again.
            raise
        finally:
            self._shared_tube.armed = None
            if not lost:
                self._sent = None


def _late(deadline: int | None) -> float:
    return float("inf") if deadline is None else deadline
