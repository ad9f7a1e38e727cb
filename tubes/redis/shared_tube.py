"""One tube of a server, as one process sees it: its waiters and listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakSet

from tubes.backend.alarms import Alarm
from tubes.errors import TubeNotFound
from tubes.redis.emptiness import Emptiness
from tubes.redis.event_subscription import EventSubscription
from tubes.redis.scripts.replies import number_of
from tubes.redis.serving import Serving, words_to_undo
from tubes.redis.transport.script_call import AHEAD, ScriptCall
from tubes.redis.wait_loop import WaitLoop
from tubes.redis.wait_queue import WaitQueue
from tubes.redis.wait_states import WaitState
from tubes.values.task import TaskView

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tubes.backend.waiters import Waiter
    from tubes.drivers.driver import Driver
    from tubes.errors import TubesError
    from tubes.redis.batch_port import RedisPort
    from tubes.redis.edition import Edition
    from tubes.redis.store import RedisStore
    from tubes.redis.transport.script_call import Flow


class SharedTube:
    """One tube of a server, as one process sees it.

    `queue` has the waiters of this process, `serving` asks the server for them, and `wait_loop` is the thread that does
    so as long as anybody waits. If there is nothing for them, it waits for a marker, which a script leaves when a task
    becomes available. The process that gets the marker takes, and leaves another one if there is more: so one process
    wakes up per task, and nobody polls.
    """

    def __init__(self, store: RedisStore, name: str, key: str, driver: Driver, edition: Edition, born: str) -> None:
        self.store: Final = store
        self.name: Final = name
        self.key: Final = key
        self.driver: Final = driver
        #: Its options as this process heard of them last: what goes to the server goes by those of the session.
        self.edition = edition
        #: Which of the tubes that have had this name.
        self.born: Final = born
        self.ports: Final[WeakSet[RedisPort]] = WeakSet()
        self.closed_error = False
        # A test's clock ends waits by `ring`, after what is due at the same moment.
        self.queue: Final = WaitQueue((lambda: 0) if store.manual else store.clock.micros, store.url)
        self.serving: Final = Serving(self.queue)
        self.wait_loop: Final = WaitLoop(self)
        self.emptiness: Final = Emptiness(self)
        self.subscription: Final = EventSubscription(self)
        self._alarm: Final = Alarm(store.clock, self.fire)

    @property
    def options(self) -> Mapping[str, Any]:
        """What the tube was given, checked and in the machine's units."""
        return self.edition.options

    # -- those who wait ------------------------------------------------------------------------------------------------

    def enlist(self, waiter: Waiter) -> None:
        """Put a waiter at the end of its line, and see to it that it is served."""
        queue, manual = self.queue, self.store.manual
        if manual:
            # It does not count before a look for its task: then the test goes on.
            queue.arriving.add(waiter)
        with self.queue.lock:
            if (gone := waiter.owner.closed_error) is not None:  # From here on, closing the port finds the waiter.
                queue.arriving.discard(waiter)
                raise gone()
            first = queue.enlist(waiter)
            if manual and waiter.deadline is not None:
                self._alarm.set(waiter.deadline)
        if manual:
            self.store.run_now(self.tick())
            queue.arriving.discard(waiter)
        # A put whose lane is full does not hold up others.
        if not self.wait_loop.start() and (first or (waiter.request is not None and "lane_capacity" in self.options)):
            self.nudge()

    def withdraw(self, waiter: Waiter, *, undo: bool) -> object:
        """Take a waiter out of its line; returns None, or what it was given meanwhile. `undo`: give that back."""
        with self.queue.lock:
            self.queue.move(waiter, "leave")
            is_gone = self.queue.state(waiter) is WaitState.GONE
            answer = None if is_gone else cast("TaskView | list[TaskView] | Exception", waiter.result)
            alone = self.wait_loop.on and self.queue.is_empty()
            stale = self.queue.note_stale()
        if stale:
            self.store.later(self.call_off)
        if alone and not self.store.manual:  # The server must not wait for a caller that is gone.
            self.store.poke(self.key)
        if answer is None and waiter.request is not None and self.queue.put_waiters:
            self.nudge()  # The next waiter may need less room.
        if undo and isinstance(answer, TaskView | list):
            port: RedisPort = waiter.owner
            verb, words = words_to_undo(waiter, answer)
            self.store.later(lambda: port.undo(verb, *words))
        return answer

    def call_off(self) -> Flow[None]:
        """Tell the server that nobody waits for the take that was sent ahead. A task that it took is given back.

        Other calls of this process do so before they go on: they find the tasks that nobody got.
        """
        stale = self.queue.stale
        if stale is not None:
            yield from stale.port.undo("disarm", stale.call.number, slot=AHEAD, session=stale.call.session)
            self.queue.forget_ahead(stale)

    def must_keep_waiting(self, waiter: Waiter) -> bool:
        """Whether the put of a waiter whose time is over is on its way: then the waiter is woken soon."""
        return self.queue.move(waiter, "keep")

    def dismiss(self, waiters: list[Waiter], error: Callable[[], TubesError]) -> None:
        """Give an error to these waiters, as far as they still wait."""
        with self.queue.lock:
            for waiter in waiters:
                self.queue.move(waiter, "dismiss", error())
            left = bool(self.queue.put_waiters)
        if left:  # A waiter behind one of them may need less room.
            self.nudge()

    def waits_for_nobody(self) -> bool:
        """Whether the server may think that somebody waits here, and nobody does."""
        with self.queue.lock:
            return self.wait_loop.has_served() and self.queue.is_empty()

    def nudge(self) -> None:
        """Leave markers for the waiters, so that the thread looks again."""
        self.store.later(self._nudge)

    def _nudge(self) -> Flow[None]:
        for marker, line in (("marker", self.queue.take_waiters), ("room", self.queue.put_waiters)):
            if line:
                yield ScriptCall(self.store.marking, self.key, (marker,), parts=(marker,))

    # -- time ----------------------------------------------------------------------------------------------------------

    def watch(self, due: int) -> None:
        """Set the alarm to a moment of the server's clock at which something is due, if somebody may notice."""
        if not self.queue.is_empty() or self.subscription.listening:
            moment = self.store.local_micros(due)
            self._alarm.set(moment)
            # A test may have advanced its clock since the server was asked, and it does not ring for the past.
            if self.store.manual and moment <= self.store.clock.micros():
                self.store.later(self.tick)

    def fire(self, now: int) -> None:
        """Do what is due now. A test's clock ends the waits whose time is over as well."""
        self._alarm.cancel()
        if not self.store.manual:
            if not self.wait_loop.on:  # Else the thread looks at that moment, and serves the waiters in their order.
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
            putters = bool(self.queue.put_waiters)
        if putters:  # A waiter behind an expired one may need less room.
            self.store.run_now(self.tick())

    def tick(self) -> Flow[None]:
        """Let what is due happen, and serve the waiters."""
        if self.closed_error:
            return
        soonest = yield from self.serving.serve_all()
        port = next(iter(self.ports), None)
        if port is not None and not soonest:
            soonest = number_of((yield from port.ask("tick")))
        if soonest:
            self.store.heed(soonest)
            self.watch(soonest)

    def go_by_the_clock(self) -> Flow[None]:
        """The server's clock was set: restart what depends on it and would be late."""
        port = next(iter(self.ports), None)
        if port is not None and self.driver.lane is not None:
            at = number_of((yield from port.ask("restart_rests", 0)))
            while at:
                at = number_of((yield from port.ask("restart_rests", at)))
        yield from self.tick()
        # A server ends its waits by that clock too.
        yield from self._nudge()

    # -- the end -------------------------------------------------------------------------------------------------------

    def vanish(self) -> None:
        """The tube is gone: its users in this process get an error."""

        def closed_error() -> TubesError:
            return TubeNotFound(name=self.name)

        with self.queue.lock:
            if self.closed_error:
                return
            ports = list(self.ports)
        self.store.forget(self)
        for port in ports:
            port.closed_error = closed_error
            port.connection.forget(self)
        self.dismiss(self.queue.waiters(), closed_error)
        self.emptiness.dismiss(self.emptiness.waiters(), closed_error)
        self.subscription.close()
        self.closed_error = True  # Last: after an interrupt the next caller repeats it all.
        self.wait_loop.hang_up()
