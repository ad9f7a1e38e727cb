"""One tube of a server in one process: its waiters and listeners."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from tubes.backend.alarms import Alarm
from tubes.errors import TubeNotFound
from tubes.redis.library.replies import number_of
from tubes.redis.waiting.emptiness import Emptiness
from tubes.redis.waiting.event_subscription import EventSubscription
from tubes.redis.waiting.wait_loop import Serving, WaitLoop
from tubes.redis.waiting.wait_queue import WaitQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tubes.drivers.driver import Driver
    from tubes.errors import TubesError
    from tubes.redis.options_version import OptionsVersion
    from tubes.redis.transport.script_call import Flow
    from tubes.redis.waiting.protocols import Store, WaitingPort


class RedisTube:
    """One tube of a server in one process.

    It has the options and the alarm of the tube. `wait_loop` serves its waiters: see there how waiting works.
    `emptiness` and `subscription` serve callers that wait for events of the tube, and listeners.
    """

    def __init__(self, store: Store, name: str, key: str, driver: Driver, version: OptionsVersion, born: str) -> None:
        self.store: Final = store
        self.name: Final = name
        self.key: Final = key
        self.driver: Final = driver
        #: The newest options known to this process; calls use the options of their session.
        self.version = version
        #: The number of the request that has returned `version`.
        self.version_request = 0
        #: True if a command was refused halfway, and the tube could not be marked as damaged.
        self.is_damaged = False
        #: Distinguishes this tube from others that have had its name.
        self.born: Final = born
        self.ports: Final[WeakSet[WaitingPort]] = WeakSet()
        #: True once the tube was dropped.
        self.is_gone = False
        #: True if a put without a lane was logged.
        self.has_warned = self.has_warned_of_buried = False
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

    # -- time ----------------------------------------------------------------------------------------------------------

    def watch(self, due: int) -> None:
        """Set the alarm to a due time of the server's clock if this process has waiters or listeners."""
        if not self.queue.is_empty() or self.subscription.listening:
            moment = self.store.local_micros(due)
            self._alarm.set(moment)
            # A test may have advanced its clock since the request, and alarms do not fire for the past.
            if self.store.manual and moment <= self.store.clock.micros():
                self.store.later(self.tick)

    def set_alarm(self, moment: int) -> None:
        """Call `fire` at this time of the process's clock."""
        self._alarm.set(moment)

    def fire(self, now: int) -> None:
        """Handle due tasks. With a test's clock also end the waits whose timeout has passed."""
        self._alarm.cancel()
        if not self.store.manual:
            # The thread of a running loop wakes at this moment, and serves the waiters in their order.
            if not self.wait_loop.is_running:
                self.store.later(self.tick)
            return
        self.run_now(self.tick())
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
            self.run_now(self.tick())

    def run_now(self, flow: Flow[None]) -> None:
        """With a test's clock, run a flow that serves waiters.

        In an event loop another thread runs it if a call is serving now: that call may belong to the same loop.
        """
        if self.serving.lock.locked() and asyncio._get_running_loop() is not None:
            self.store.later(lambda: flow)
        else:
            self.store.run_now(flow)

    def tick(self) -> Flow[None]:
        """Handle due tasks and serve the waiters."""
        if self.is_gone:
            return
        soonest = yield from self.serving.serve()
        port = next(iter(self.ports), None)
        if port is not None and not soonest:
            soonest = number_of((yield from port.run_script("tick")))
        if soonest:
            self.store.check_clock(soonest)
            self.watch(soonest)

    def handle_clock_change(self) -> Flow[None]:
        """Restart timers that would fire late because the server's clock was set."""
        port = next(iter(self.ports), None)
        if port is not None and self.driver.lane is not None:
            at = number_of((yield from port.run_script("restart_cooldowns", (0,))))
            while at:
                at = number_of((yield from port.run_script("restart_cooldowns", (at,))))
        yield from self.tick()
        # Markers end the server's waits, which depend on its clock too.
        yield from self.wait_loop.mark()

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
        self.wait_loop.dismiss(self.queue.waiters(), closed_error)
        self.emptiness.dismiss(self.emptiness.waiters(), closed_error)
        self.subscription.close()
        self.is_gone = True  # Set last: after an interrupt the next caller repeats everything.
        self.wait_loop.disconnect()
