"""One tube of a server, as one process sees it: who waits on it here, who listens to it."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

from tubes.backend.alarms import Alarm
from tubes.backend.waiters import PENDING
from tubes.drivers.options import SECOND
from tubes.errors import ConnectionLost, TubeNotFound, TubesError, Unreadable
from tubes.redis import task_codec
from tubes.redis.event_subscription import EventSubscription
from tubes.redis.scripts.assembly import TubeSettings, script
from tubes.redis.transport.script_call import AHEAD, SERVING, Flow, ScriptCall, WaitForLock
from tubes.redis.wait_loop import WaitLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tubes.backend.waiters import Waiter
    from tubes.drivers.driver import Driver
    from tubes.redis.batch_port import BatchPort
    from tubes.redis.port import Port
    from tubes.redis.scripts.assembly import Script
    from tubes.redis.store import RedisStore

T = TypeVar("T")
_log = logging.getLogger("tubes")

#: Microseconds after which others are told that nobody waits here any more.
_LINGER: Final = SECOND
#: Why who waited for room is told of an error.
_UNSURE: Final = "there was no answer, and whether the put was done is not known"


def _shown(port: Port[Any], reply: Any) -> Any:
    """The task for who waits, or the error of one that cannot be read: it stays taken."""
    try:
        return port.show(reply)
    except Unreadable as error:
        return error


def _named(answer: Any) -> list[Any]:
    """What was put, the last one first, as `unput` reads it: so it is undone."""
    tasks = reversed(answer) if answer.__class__ is list else [answer]
    return [word for task in tasks if task.created_now for word in (task.id, task_codec.put_of(task))]


class SharedTube:
    """One tube of a server, as one process sees it.

    Those who wait stand in line here, and one thread looks after all of them while there are any (`wait_loop`): it
    takes for the first, and when there is nothing it waits for a marker, which a script leaves when something has
    become takeable. Whoever gets the marker takes, and leaves another one if there is more: no herd, and no polling.
    """

    def __init__(
        self, store: RedisStore, name: str, key: str, driver: Driver, options: Mapping[str, Any], born: str
    ) -> None:
        self.store: Final = store
        self.name: Final = name
        self.key: Final = key
        self.driver: Final = driver
        self.options: Final = options
        self._settings: Final = TubeSettings.of(options)
        #: Which of the tubes that have had this name.
        self.born: Final = born
        self.ports: Final[WeakSet[Port[Any]]] = WeakSet()
        self.subscription: Final = EventSubscription(self)
        self.lock: Final = threading.RLock()
        self.takers: Final[OrderedDict[Waiter, None]] = OrderedDict()
        self.putters: Final[OrderedDict[Waiter, None]] = OrderedDict()
        self.gone = False
        self._serving_lock: Final = threading.Lock()
        self._arriving: Final[set[Waiter]] = set()
        #: The waiter for whom the server has a take already; `wait_loop` looks after it.
        self.armed: Waiter | None = None
        # The waiter whose put is on its way; whether its time is over meanwhile; and those of whose puts nobody knows.
        self._in_hand: Waiter | None = None
        self._overdue = False
        self._unsure: Final[set[Waiter]] = set()
        self.wait_loop: Final = WaitLoop(self)
        self._alarm: Final = Alarm(store.clock, self.ring)
        self._leaving: Final = Alarm(store.clock, self._leave)

    def script(self, verb: str) -> Script:
        """The script of a verb for this tube."""
        return script(verb, self.driver, self._settings)

    # -- the line ------------------------------------------------------------------------------------------------------

    def enlist(self, waiter: Waiter) -> None:
        """Put a waiter at the end of its line."""
        if self.store.manual:
            # It is not counted before it has been looked after: then the test goes on.
            self._arriving.add(waiter)
        with self.lock:
            if (gone := waiter.owner.gone) is not None:  # Whoever is dismissed stands in a line.
                self._arriving.discard(waiter)
                raise gone()
            line = self.takers if waiter.request is None else self.putters
            first = not line
            line[waiter] = None
            if self.store.manual and waiter.deadline is not None:
                self._alarm.set(waiter.deadline)
            served = self.wait_loop.begin()
        if self.store.manual:
            self.store.run_now(self.tick())
            self._arriving.discard(waiter)
        if served:
            if first:
                self.nudge()
        else:
            self.wait_loop.serve(waiter)

    def withdraw(self, waiter: Waiter, *, undo: bool) -> Any:
        """Take a waiter out; answers None, or what it was given meanwhile; `undo`: give that back."""
        with self.lock:
            self.strike(waiter)
            answer: Any = waiter.answer
            if waiter in self._unsure and answer is PENDING:
                answer = ConnectionLost(url=self.store.url, why=_UNSURE)
            self._unsure.discard(waiter)
            alone = self.wait_loop.on and not self.takers and not self.putters
        if alone and not self.store.manual:  # The server is not to wait on for somebody who has gone.
            self.store.poke(self.key)
        if answer is PENDING and waiter.request is not None and self.putters:
            self.nudge()  # Who stands behind it may need less room.
        if not hasattr(answer, "_turn") and answer.__class__ is not list:
            return answer if isinstance(answer, Exception) else None
        if undo:
            port = waiter.owner
            if waiter.request is None:
                id, take = answer.id, answer._turn
                self.store.later(lambda: port._untake(id, take))
            else:
                words = _named(answer)
                self.store.later(lambda: port.undo("unput", *words))
        return answer

    def strike(self, waiter: Waiter) -> bool:
        """Take a waiter out of its line; False if it does not stand there any more."""
        line = self.takers if waiter.request is None else self.putters
        return line.pop(waiter, self) is None

    def keeps(self, waiter: Waiter) -> bool:
        """Whether its put is on its way: then it is woken soon, although its time is over.

        Without that it might be told that there was no room, of a task that somebody has taken meanwhile.
        """
        with self.lock:
            if waiter is not self._in_hand:
                return False
            self._overdue = True
            return True

    def dismiss(self, waiters: list[Waiter], error: Callable[[], TubesError]) -> None:
        """Answer an error to these, as far as they still wait."""
        with self.lock:
            for waiter in waiters:
                if self.strike(waiter):
                    self._unsure.discard(waiter)
                    waiter.answer = error()
                    waiter.wake()
            left = bool(self.putters)
        self.wait_loop.dismiss(waiters)
        if left:  # Who stood behind one of them may need less room.
            self.nudge()

    def refuse(self, refusal: TubesError) -> None:
        """Looking after those who wait is refused: they are told."""
        with self.lock:
            unsure = list(self._unsure)
            self.dismiss(unsure, lambda: ConnectionLost(url=self.store.url, why=_UNSURE))
            self.dismiss([*self.takers, *self.putters], lambda: type(refusal)(**refusal.facts))

    def waiters_of(self, port: Port[Any]) -> list[Waiter]:
        """Those who wait through a port."""
        with self.lock:
            return [waiter for line in (self.takers, self.putters) for waiter in line if waiter.owner is port]

    def count_local(self) -> int:
        """How many wait in this process."""
        with self.lock:
            waiters = [*self.takers, *self.putters]
            return sum(not waiter.is_gone() and waiter not in self._arriving for waiter in waiters)

    def has_unserved(self) -> bool:
        """Whether somebody waits for a task for whom the server has no take yet."""
        return len(self.takers) > (self.armed is not None)

    # -- serving -------------------------------------------------------------------------------------------------------

    def serve_one(self) -> Flow[bool]:
        """Serve the first of those who wait for a task; whether there was one for it, or it was gone."""
        yield from self._begin()
        try:
            soonest = yield from self._serve_taker()
        finally:
            self._serving_lock.release()
        return soonest is None

    def after(self, verb: Flow[T]) -> Flow[T]:
        """A verb, and then those who wait in this process are served: they need no marker."""
        answer = yield from verb
        try:
            yield from self.serve_all()
        except TubesError:
            _log.debug("those who wait could not be served", exc_info=True)
        return answer

    def _begin(self) -> Flow[None]:
        """One serves at a time: so those who wait are served in the order in which they came."""
        while not self._serving_lock.acquire(blocking=False):
            yield WaitForLock(self._serving_lock)

    def first(self, line: OrderedDict[Waiter, None]) -> Waiter | None:
        """The first of a line for whom nothing is done yet."""
        now = 0 if self.store.manual else self.store.clock.micros()
        with self.lock:
            for waiter in list(line):
                late = waiter.deadline is not None and waiter.deadline < now
                if waiter.lost() or waiter.is_gone() or late:
                    del line[waiter]
                elif waiter is not self.armed:
                    return waiter
            return None

    def _give(self, waiter: Waiter, answer: Any) -> bool:
        """Hand an answer over; False if the waiter is gone."""
        with self.lock:
            line = self.takers if waiter.request is None else self.putters
            if waiter not in line:
                return False
            del line[waiter]
            self._unsure.discard(waiter)
            if waiter.lost():
                return False
            waiter.answer = answer
            if waiter.wake():
                return True
            waiter.answer = PENDING  # It is undone once, by who gives it.
            return False

    def _serve_taker(self) -> Flow[int | None]:
        """Serve one; None, or if there was nothing for it the next moment at which something is due (0: never)."""
        waiter = self.first(self.takers)
        if waiter is None:
            return 0
        port: Port[Any] = waiter.owner
        try:
            reply = yield from port.take_waiting(self.count_local())
        except ConnectionLost:
            raise
        except TubesError as error:
            self._give(waiter, error)
            return None
        if reply.__class__ is int:
            soonest: int = reply
            return soonest
        if not self._give(waiter, _shown(port, reply)):
            yield from port.undo("untake", reply[0], reply[3], slot=SERVING)
        return None

    def _serve_putter(self) -> Flow[bool]:
        """Let one in; whether there was one and room for it."""
        with self.lock:
            waiter = self._in_hand = self.first(self.putters)
        if waiter is None:
            return False
        port: BatchPort[Any] = waiter.owner
        answer: Any
        try:
            try:
                answer = yield from port.put_waiting(waiter.request)
            except ConnectionLost:
                raise
            except Exception as error:
                answer = error
            if answer is None:
                return False
            if not self._give(waiter, answer) and not isinstance(answer, Exception):
                yield from port.undo("unput", *_named(answer), slot=SERVING)
            return True
        except BaseException:
            with self.lock:
                if waiter in self.putters:
                    self._unsure.add(waiter)
            raise
        finally:
            self._put_down(waiter)

    def _put_down(self, waiter: Waiter) -> None:
        """Its put is not on its way any more: if its time is over, it waits no longer."""
        with self.lock:
            overdue, self._overdue, self._in_hand = self._overdue, False, None
            if overdue and waiter in self.putters:
                self.strike(waiter)
                waiter.wake()

    def hand_out(self, port: Port[Any], call: ScriptCall, reply: Any) -> Flow[None]:
        """Give a task that was taken ahead to whoever is the first now, if it is of that session; else back."""
        task: Any = None
        first: Waiter | None = None
        try:
            task = _shown(port, task_codec.parse(reply))
            with self.lock:
                first = next((waiter for waiter in self.takers if not waiter.lost() and not waiter.is_gone()), None)
                theirs = first is not None and first.owner is port and port.session == call.session
                if theirs and first is not None and self._give(first, task):
                    return
        except BaseException:  # Interrupted: perhaps nobody gets to see it.
            if call.orphaned is not None and (first is None or first.answer is not task):
                call.orphaned(reply)
            raise
        id, _, _, take, _, _ = task_codec.parse(reply)
        yield from port.undo("untake", id, take, slot=AHEAD, session=call.session)

    def serve_all(self) -> Flow[int]:
        """Serve whom one can; answers the next moment at which something is due."""
        yield from self._begin()
        try:
            while (yield from self._serve_putter()):
                pass
            while True:
                soonest = yield from self._serve_taker()
                if soonest is not None:
                    return soonest
        finally:
            self._serving_lock.release()

    def linger(self) -> None:
        """Nobody waits here any more, as it seems."""
        self._leaving.set(self.store.clock.micros() + _LINGER)

    def _leave(self, now: int) -> None:
        """Nobody has waited here for a while: other processes need not think so."""
        self._leaving.silence()
        self.store.later(self.wait_loop.forget)

    def waits_for_nobody(self) -> bool:
        """Whether the server may think that somebody waits here, and nobody does."""
        with self.lock:
            return self.wait_loop.has_served() and not self.takers and not self.putters

    def nudge(self) -> None:
        """Have the thread look again."""
        self.store.later(self._nudge)

    def _nudge(self) -> Flow[None]:
        for marker, who in (("marker", self.takers), ("room", self.putters)):
            if who:
                yield ScriptCall(self.store.marking, self.key, (marker,), parts=(marker,))

    def watch(self, due: int) -> None:
        """Something is due then, and somebody may notice."""
        if self.takers or self.putters or self.subscription.listening:
            moment = self.store.local_micros(due)
            self._alarm.set(moment)
            # A clock in a test's hands may have been advanced since the server was asked, and does not ring for that.
            if self.store.manual and moment <= self.store.clock.micros():
                self.store.later(self.tick)

    def ring(self, now: int) -> None:
        """A deadline has come."""
        self._alarm.silence()
        if not self.store.manual:
            if not self.wait_loop.on:  # Else the thread looks at that moment, and serves those who wait in their order.
                self.store.later(self.tick)
            return
        self.store.run_now(self.tick())
        with self.lock:
            waiters = [w for line in (self.takers, self.putters) for w in line if w.deadline is not None]
            for waiter in waiters:
                if waiter.deadline is not None and waiter.deadline <= now:
                    if self.keeps(waiter):
                        continue
                    self.strike(waiter)
                    waiter.wake()
                elif waiter.deadline is not None:
                    self._alarm.set(waiter.deadline)
            putters = bool(self.putters)
        if putters:  # Who stood behind one whose time is over may need less room.
            self.store.run_now(self.tick())

    def tick(self) -> Flow[None]:
        """What is due happens, and serves those who wait."""
        if self.gone:
            return
        soonest = yield from self.serve_all()
        port = next(iter(self.ports), None)
        if port is not None and not soonest:
            soonest = yield from port.ask("tick")
        if soonest:
            self.store.heed(soonest)
            self.watch(soonest)

    def go_by_the_clock(self) -> Flow[None]:
        """The server's clock was set: what goes by it and would be late is begun anew."""
        port = next(iter(self.ports), None)
        if port is not None and self.driver.lane is not None:
            at = yield from port.ask("settle", 0)
            while at:
                at = yield from port.ask("settle", at)
        yield from self.tick()
        # A server ends its waits by that clock too.
        yield from self._nudge()

    # -- the end -------------------------------------------------------------------------------------------------------

    def vanish(self) -> None:
        """The tube is not there any more."""

        def gone() -> TubesError:
            return TubeNotFound(name=self.name)

        with self.lock:
            if self.gone:
                return
            self.gone = True
            ports = list(self.ports)
        self.store.forget(self)
        for port in ports:
            port.gone = gone
            port.connection.forget(self)
        self.dismiss([*self.takers, *self.putters], gone)
        self.subscription.close()
        self.wait_loop.hang_up()
