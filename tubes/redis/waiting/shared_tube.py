"""One tube of a server in one process: its waiters and listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakSet

from tubes.backend.alarms import Alarm
from tubes.errors import TubeNotFound
from tubes.redis.scripts.assembly import script
from tubes.redis.scripts.replies import number_of
from tubes.redis.transport.script_call import AHEAD, ScriptCall
from tubes.redis.waiting.emptiness import Emptiness
from tubes.redis.waiting.event_subscription import EventSubscription
from tubes.redis.waiting.serving import Serving, words_to_undo
from tubes.redis.waiting.wait_loop import WaitLoop
from tubes.redis.waiting.wait_queue import WaitQueue
from tubes.redis.waiting.wait_states import WaitState
from tubes.values.task import TaskView

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tubes.backend.waiters import Waiter
    from tubes.drivers.driver import Driver
    from tubes.errors import TubesError
    from tubes.redis.options_version import OptionsVersion
    from tubes.redis.transport.script_call import Flow
    from tubes.redis.waiting.protocols import Port, Store


class SharedTube:
    """One tube of a server in one process.

    `queue` contains the waiters of this process, `serving` calls the server for them, and `wait_loop` is the thread
    that does so while there are waiters. When no task is available, the thread blocks on a marker, which a script
    pushes when a task becomes available. The process that gets the marker takes a task, and pushes another marker if
    more tasks are available. So one process wakes up per task, and none polls.
    """

    def __init__(self, store: Store, name: str, key: str, driver: Driver, version: OptionsVersion, born: str) -> None:
        self.store: Final = store
        self.name: Final = name
        self.key: Final = key
        self.driver: Final = driver
        #: The newest options known to this process; calls use the options of their session.
        self.version = version
        #: The number of the request that has returned it.
        self.version_request = 0
        #: True if a script was refused halfway, and the tube could not be marked as damaged.
        self.is_damaged = False
        #: Distinguishes this tube from others that have had its name.
        self.born: Final = born
        self.ports: Final[WeakSet[Port]] = WeakSet()
        #: True once the tube was dropped.
        self.is_gone = False
        #: True if a put without a lane was logged.
        self.has_warned = False
        # With a test's clock `fire` ends waits, after handling the tasks that are due at the same moment.
        self.queue: Final = WaitQueue((lambda: 0) if store.manual else store.clock.micros, store.url)
        self.serving: Final = Serving(self.queue)
        self.wait_loop: Final = WaitLoop(self, self.queue, self.serving)
        self.emptiness: Final = Emptiness(self, self.queue)
        self.subscription: Final = EventSubscription(self, self.emptiness)
        self._alarm: Final = Alarm(store.clock, self.fire)

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the tube, checked and in internal units."""
        return self.version.options

    # -- waiters -------------------------------------------------------------------------------------------------------

    def enlist(self, waiter: Waiter) -> None:
        """Append a waiter to its queue and get it served."""
        queue, manual = self.queue, self.store.manual
        if manual:
            # The waiter counts after its first look for a task; then the test continues.
            queue.arriving.add(waiter)
        with self.queue.lock:
            if (
                closed := waiter.owner.closed_error
            ) is not None:  # After this check, closing the port finds the waiter.
                queue.arriving.discard(waiter)
                raise closed()
            first = queue.enlist(waiter)
            if manual and waiter.deadline is not None:
                self._alarm.set(waiter.deadline)
        if manual:
            self.store.run_now(self.tick())
            queue.arriving.discard(waiter)
        # A put into a full lane does not hold up others.
        if not self.wait_loop.start() and (first or (waiter.request is not None and "lane_capacity" in self.options)):
            self.push_markers()

    def withdraw(self, waiter: Waiter, *, undo: bool) -> object:
        """Remove a waiter; return its result, or None if it has none yet. `undo`: give the result back."""
        with self.queue.lock:
            self.queue.move(waiter, "leave")
            is_gone = self.queue.state(waiter) is WaitState.GONE
            answer = None if is_gone else cast("TaskView | list[TaskView] | Exception", waiter.result)
            is_last = self.wait_loop.is_running and self.queue.is_empty()
            stale = self.queue.note_stale()
        if stale:
            self.store.later(self.cancel_stale_take)
        if is_last and not self.store.manual:  # Stop the server's wait, which has no caller any more.
            self.store.end_expired_waits(self.key)
        if answer is None and waiter.request is not None and self.queue.put_waiters:
            self.push_markers()  # The next waiter may need less room.
        if undo and isinstance(answer, TaskView | list):
            port: Port = waiter.owner
            verb, words = words_to_undo(waiter, answer)
            self.store.later(lambda: port.undo(verb, *words))
        return answer

    def cancel_stale_take(self) -> Flow[None]:
        """Cancel the take that was sent ahead, which no caller waits for; a task that it took is given back.

        Other calls of this process do this first, so that they find the task.
        """
        stale = self.queue.stale
        if stale is not None:
            yield from stale.port.undo("disarm", stale.call.number, slot=AHEAD, session=stale.call.session)
            self.queue.forget_ahead(stale)

    def must_keep_waiting(self, waiter: Waiter) -> bool:
        """Return True if the waiter's put was sent: it is woken soon, although its timeout has passed."""
        return self.queue.move(waiter, "keep")

    def dismiss(self, waiters: list[Waiter], error: Callable[[], TubesError]) -> None:
        """Give an error to these waiters if they still wait."""
        with self.queue.lock:
            for waiter in waiters:
                self.queue.move(waiter, "dismiss", error())
            has_put_waiters = bool(self.queue.put_waiters)
        if has_put_waiters:  # A waiter behind one of them may need less room.
            self.push_markers()

    def may_unregister(self) -> bool:
        """Return True if the server may still count this process as waiting, although it has no waiters."""
        with self.queue.lock:
            return self.wait_loop.has_served() and self.queue.is_empty()

    def push_markers(self) -> None:
        """Push markers for the waiters, so that the thread looks again."""
        self.store.later(self._push_markers)

    def _push_markers(self) -> Flow[None]:
        for marker, line in (("marker", self.queue.take_waiters), ("room", self.queue.put_waiters)):
            if line:
                yield ScriptCall(script("mark"), self.key, (marker,), parts=(marker,))

    # -- time ----------------------------------------------------------------------------------------------------------

    def watch(self, due: int) -> None:
        """Set the alarm to a due time of the server's clock if this process has waiters or listeners."""
        if not self.queue.is_empty() or self.subscription.listening:
            moment = self.store.local_micros(due)
            self._alarm.set(moment)
            # A test may have advanced its clock since the request, and alarms do not fire for the past.
            if self.store.manual and moment <= self.store.clock.micros():
                self.store.later(self.tick)

    def fire(self, now: int) -> None:
        """Handle due tasks. With a test's clock also end the waits whose timeout has passed."""
        self._alarm.cancel()
        if not self.store.manual:
            # Otherwise the thread looks at this moment, and serves the waiters in their order.
            if not self.wait_loop.is_running:
                self.store.later(self.tick)
            return
        self.store.run_now(self.tick())
        with self.queue.lock:
            for waiter in self.queue.waiters():
                if waiter.deadline is None:
                    continue
                if waiter.deadline > now:
                    self._alarm.set(waiter.deadline)
                elif not self.queue.move(waiter, "keep"):
                    self.queue.move(waiter, "end")
            has_put_waiters = bool(self.queue.put_waiters)
        if has_put_waiters:  # A waiter behind an expired one may need less room.
            self.store.run_now(self.tick())

    def tick(self) -> Flow[None]:
        """Handle due tasks and serve the waiters."""
        if self.is_gone:
            return
        soonest = yield from self.serving.serve_all()
        port = next(iter(self.ports), None)
        if port is not None and not soonest:
            soonest = number_of((yield from port.ask("tick")))
        if soonest:
            self.store.check_clock(soonest)
            self.watch(soonest)

    def handle_clock_change(self) -> Flow[None]:
        """Restart timers that would fire late because the server's clock was set."""
        port = next(iter(self.ports), None)
        if port is not None and self.driver.lane is not None:
            at = number_of((yield from port.ask("restart_rests", 0)))
            while at:
                at = number_of((yield from port.ask("restart_rests", at)))
        yield from self.tick()
        # Markers end the server's waits, which depend on its clock too.
        yield from self._push_markers()

    # -- the end -------------------------------------------------------------------------------------------------------

    def handle_drop(self) -> None:
        """End the use of a dropped tube in this process: its users get an error."""

        def closed_error() -> TubesError:
            return TubeNotFound(name=self.name)

        with self.queue.lock:
            if self.is_gone:
                return
            ports = list(self.ports)
        self.store.forget(self)
        for port in ports:
            port.closed_error = closed_error
            port.forget()
        self.dismiss(self.queue.waiters(), closed_error)
        self.emptiness.dismiss(self.emptiness.waiters(), closed_error)
        self.subscription.close()
        self.is_gone = True  # Set last: after an interrupt the next caller repeats everything.
        self.wait_loop.disconnect()
