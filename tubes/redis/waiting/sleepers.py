"""The callers of one process that wait for a task of a partitioned tube on a server.

# How it works

A caller that finds no task asks the partitions in the order of `Looks`: each take also puts this process into the line
of the partition (`:line`) if there is no task. Then the caller sleeps, without a connection of its own. A call that
makes a task available removes the process that has stood for longest from the line, and wakes it by a message on the
channel `:wake:PROCESS` of the partition (drivers/lua/waiting.lua). One `WakeSubscription` per node, shared by all tubes
of the process, receives the messages. `Sleepers` then wakes one caller, which asks that partition. So an idle process
costs nothing, and a task costs one message.

A process that was woken and has no use for the task wakes the next one in line: its callers have left, or have found
other tasks.

Three things can go wrong. (1) The process that was woken stops before it takes: another call on that partition wakes
the next process after 50 ms, and each process asks again after `LOOK` (looks.py). (2) The subscription is lost, or a
slot moves to another node: the partition has to be asked until the process is subscribed again, and then once more.
(3) After a failover a process is subscribed to a replica: the server counts no receiver and wakes the next one too, so
several wake. `WakeSubscriptions.check` moves the channels to the nodes that have their slots.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final

from tubes.backend.alarms import Alarm
from tubes.backend.looks import Looks
from tubes.backend.waiters import PENDING, Look
from tubes.drivers.options import SECOND
from tubes.errors import ConnectionLost, TubesError
from tubes.redis.library.functions import FUNCTIONS
from tubes.redis.library.replies import number_of
from tubes.redis.transport.script_call import Command, ScriptCall
from tubes.redis.transport.subscription import Subscription
from tubes.redis.transport.wire import Wire, pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from tubes.backend.waiters import Waiter
    from tubes.redis.transport.script_call import Flow
    from tubes.redis.transport.server import Server
    from tubes.redis.transport.wire import Reply
    from tubes.redis.waiting.protocols import Store

#: Keep this process registered as waiting for this many microseconds after its last waiter left.
_UNREGISTER_DELAY: Final = SECOND
#: Microseconds after a due time at which a caller takes: the clocks of the server and of this process differ a little.
_SLACK: Final = 1000
#: A due time after all others.
_ANY: Final = 1 << 53


class Sleepers:
    """The waiting callers of one process on one tube. `keys`: the keys of its partitions."""

    def __init__(self, store: Store, keys: list[str]) -> None:
        self._store: Final = store
        self._keys: Final = keys
        self.looks: Final = Looks(len(keys), int(store.process[:8], 16) % len(keys))
        self._lock: Final = self.looks.lock
        #: The callers that sleep, in order.
        self._idle: Final[OrderedDict[Waiter, None]] = OrderedDict()
        # Callers that were woken and do not ask yet, and how many ask now.
        self._woken: Final[set[Waiter]] = set()
        self._asking = 0
        self._alarm: Final = Alarm(store.clock, self._fire)
        self._unregister_alarm: Final = Alarm(store.clock, self._unregister)
        # When the last caller left.
        self._used_at = 0
        self._is_started = False

    # -- callers that ask ----------------------------------------------------------------------------------------------

    def begin(self, waiter: Waiter | None) -> None:
        """Record that a caller begins to ask; `waiter`: the caller if it was woken."""
        if not self._is_started:
            self._start()
        with self._lock:
            if waiter is not None:
                self._woken.discard(waiter)
            self._asking += 1

    def next(self) -> tuple[int, bool] | None:
        """Return the partition that this caller asks next, and whether it has woken the process; None: it may sleep."""
        with self._lock:
            return self.looks.next(self._store.clock.micros())

    def callers(self, number: int) -> int:
        """Return how many callers of the process the take from a partition registers."""
        return self.count() if number == self.looks.home else 0

    def note(self, number: int, due: int | None) -> None:
        """Record the reply to a take: when the next task can be taken; None: now, 0: nothing is due."""
        with self._lock:
            local = self._store.local_micros(due) + _SLACK if due else due
            self.looks.note(number, local, self._store.clock.micros())

    def note_failure(self, number: int) -> None:
        """Record that the node of a partition does not reply."""
        with self._lock:
            self.looks.note_failure(number, self._store.clock.micros())

    def end(self, number: int | None) -> None:
        """This caller does not ask any more; `number`: the partition that it asked last."""
        with self._lock:
            self._asking -= 1
            if number is not None:
                self.looks.give_up(number)
            self._note_leave()
            self._serve()

    # -- callers that sleep --------------------------------------------------------------------------------------------

    def enlist(self, waiter: Waiter) -> None:
        """Let a caller sleep until a partition has to be asked."""
        with self._lock:
            closed = waiter.owner.closed_error  # After this check, closing the port finds the waiter.
            if closed is not None:
                raise closed()
            self._idle[waiter] = None
            self._serve()

    def withdraw(self, waiter: Waiter, *, undo: bool) -> object:
        """Remove a caller; return its result, or None. `undo`: it does not ask although it was woken."""
        with self._lock:
            self._idle.pop(waiter, None)
            if undo:
                self._woken.discard(waiter)
            self._note_leave()
            self._serve()
            return None if waiter.result is PENDING else waiter.result

    def abandon(self, waiter: Waiter) -> None:
        """Remove a caller in another thread."""
        self._store.later(lambda: self.withdraw(waiter, undo=True))

    def dismiss(self, owner: object, error: Callable[[], TubesError]) -> None:
        """Give an error to the sleeping callers of a port; None: of all ports."""
        with self._lock:
            for waiter in [waiter for waiter in self._idle if owner is None or waiter.owner is owner]:
                del self._idle[waiter]
                waiter.result = error()
                waiter.wake()

    def close(self, error: Callable[[], TubesError]) -> None:
        """End the use of a dropped tube: its waiting callers get an error."""
        self._store.forget_sleepers(self)
        self.dismiss(None, error)

    def count(self) -> int:
        """Return the number of waiting callers."""
        with self._lock:
            return sum(not waiter.has_left() for waiter in (*self._idle, *self._woken)) + self._asking

    def _serve(self) -> None:
        """Wake a caller if a partition has to be asked; without a caller wake another process."""
        if self.looks.may_sleep(self._store.clock.micros()):
            self._set_alarm()
        elif not self._wake_one() and not self._is_used():
            for number, was_woken in self.looks.pass_on():
                pass_on = self._wake_other if was_woken else self._wake_for_due
                self._store.later(partial(pass_on, number))
            self._set_alarm()

    def _is_used(self) -> bool:
        """Return True if a caller asks or waits."""
        return bool(self._idle or self._woken or self._asking)

    def _start(self) -> None:
        """Subscribe to all partitions. It does not wait for the subscriptions."""
        self._is_started = True
        for number, key in enumerate(self._keys):
            self._store.wake_subscriptions.add(key, self, number)

    def _note_leave(self) -> None:
        """Record that a caller has left: after the last one the process is not registered any more."""
        if not self._is_used():
            self._used_at = self._store.clock.micros()
            self._unregister_alarm.set(self._used_at + _UNREGISTER_DELAY)

    def _wake_one(self) -> bool:
        while self._idle:
            waiter, _ = self._idle.popitem(last=False)
            if not waiter.is_done() and not waiter.has_left():
                waiter.result = Look(waiter)
                self._woken.add(waiter)
                if waiter.wake():
                    return True
                self._woken.discard(waiter)
                waiter.result = PENDING
        return False

    def _set_alarm(self) -> None:
        when = self.looks.wake_time()
        if when is not None:
            self._alarm.set(when)

    def _fire(self, _now: int) -> None:
        """Ask partitions again where a task is due, or where this process has stood for long."""
        with self._lock:
            self._alarm.cancel()
            self._serve()
        self._store.wake_subscriptions.check()

    def _wake_other(self, number: int) -> Flow[None]:
        """Wake the next process in the line of a partition, which has woken this one."""
        yield ScriptCall(FUNCTIONS["wake"], self._keys[number], ("marker",))

    def _wake_for_due(self, number: int) -> Flow[None]:
        """Wake a process in the line of a partition if a task is due."""
        left = number_of((yield ScriptCall(FUNCTIONS["wake_at_due"], self._keys[number], ("marker", _ANY))))
        if left:
            now = self._store.clock.micros()
            with self._lock:
                self.looks.postpone(number, now + left + _SLACK, now)
                self._set_alarm()

    def _unregister(self, _now: int) -> None:
        """Unregister this process as waiting."""
        with self._lock:
            self._unregister_alarm.cancel()
            if self._is_used():
                return
            left = self._used_at + _UNREGISTER_DELAY - self._store.clock.micros()
            if left > 0:
                self._unregister_alarm.set(self._store.clock.micros() + left)
                return
            self.looks.leave(self.looks.home)
        self._store.later(self._leave_home)

    def _leave_home(self) -> Flow[None]:
        key = self._keys[self.looks.home]
        yield Command(key, "HDEL", f"{key}:waiting", self._store.process)

    # -- messages ------------------------------------------------------------------------------------------------------

    def note_wakeup(self, number: int) -> None:
        """Handle a message of a partition: a task may be available there."""
        with self._lock:
            self.looks.note_wakeup(number)
            self._serve()

    def note_subscribed(self, number: int) -> None:
        """Record that the process receives the messages of a partition from now on."""
        with self._lock:
            self.looks.note_subscribed(number)
            self._serve()

    def note_unsubscribed(self, number: int) -> None:
        """Record that the process does not receive the messages of a partition any more."""
        with self._lock:
            self.looks.note_unsubscribed(number)
            self._serve()


class WakeSubscriptions:
    """The subscriptions of one process to partitions: one per node."""

    def __init__(self, server: Server, process: str) -> None:
        self._server: Final = server
        self._process: Final = process
        self._lock: Final = threading.Lock()
        self._nodes: Final[dict[str, WakeSubscription]] = {}

    def add(self, key: str, sleepers: Sleepers, number: int) -> None:
        """Subscribe to the partition with this key."""
        try:
            node = self._server.node(key)
        except ConnectionLost:
            node = ""
        with self._lock:
            subscription = self._nodes.get(node)
            if subscription is None:
                subscription = self._nodes[node] = WakeSubscription(self, self._server, self._process)
        subscription.add(key, sleepers, number)

    def remove(self, sleepers: Sleepers) -> None:
        """Unsubscribe from all partitions of a tube."""
        for subscription in list(self._nodes.values()):
            subscription.remove(sleepers)

    def check(self) -> None:
        """Move the channels whose slots are on other nodes now."""
        for node, subscription in list(self._nodes.items()):
            for key in subscription.partitions():
                try:
                    is_there = self._server.node(key) == node
                except ConnectionLost:
                    return
                if not is_there:
                    self.move(subscription, key)

    def move(self, subscription: WakeSubscription, key: str) -> None:
        """Subscribe to a partition on another node."""
        found = subscription.forget(key)
        if found is not None:
            self.add(key, *found)

    def close(self) -> None:
        """End all subscriptions."""
        for subscription in list(self._nodes.values()):
            subscription.close()


class WakeSubscription(Subscription):
    """The subscription to the partitions of one node. It lasts as long as there are any."""

    def __init__(self, all: WakeSubscriptions, server: Server, process: str) -> None:
        super().__init__("tubes-wakeups", "tasks of partitioned tubes may be noticed up to a second late")
        self._all: Final = all
        self._server: Final = server
        self._process: Final = process
        # By the key of each partition: the callers on its tube, and its number.
        self._listeners: Final[dict[str, tuple[Sleepers, int]]] = {}
        self._keys: Final[dict[bytes, str]] = {}

    def partitions(self) -> list[str]:
        """Return the keys of all partitions."""
        return list(self._listeners)

    def add(self, key: str, sleepers: Sleepers, number: int) -> None:
        """Subscribe to a partition."""
        with self._lock:
            self._listeners[key] = sleepers, number
            self._keys[self._channel(key)] = key
            self._subscribe(key)
            self._start()

    def forget(self, key: str) -> tuple[Sleepers, int] | None:
        """Unsubscribe from a partition; return what was given to `add`, or None."""
        with self._lock:
            found = self._listeners.pop(key, None)
            if found is not None:
                self._send("SUNSUBSCRIBE", key)
            if not self._listeners:
                self._close()
        if found is not None:
            found[0].note_unsubscribed(found[1])
        return found

    def remove(self, sleepers: Sleepers) -> None:
        """Unsubscribe from all partitions of a tube."""
        for key, (owner, _) in list(self._listeners.items()):
            if owner is sleepers:
                self.forget(key)

    def _channel(self, key: str) -> bytes:
        return f"{key}:wake:{self._process}".encode()

    def _send(self, command: str, key: str) -> None:
        if self._wire is not None:
            try:
                self._wire.send(pack(command, self._channel(key)))
            except ConnectionLost:  # The thread notices it, and connects again.
                self._wire = None

    def _subscribe(self, key: str) -> None:
        self._send("SSUBSCRIBE", key)

    def _connect(self) -> Wire:
        keys = self.partitions()
        if self._server.moving:
            self._server.rediscover()
            self._all.check()
            keys = self.partitions() or keys
        return Wire(self._server, keys[0])

    def _handle_connection(self) -> None:
        for key in self._listeners:
            self._subscribe(key)

    def _receive(self, wire: Wire, stop: threading.Event) -> None:
        try:
            super()._receive(wire, stop)
        finally:
            for sleepers, number in list(self._listeners.values()):
                sleepers.note_unsubscribed(number)

    def _handle(self, message: list[Reply]) -> None:
        kind, channel = message[0], message[1]
        key = self._keys.get(channel) if type(channel) is bytes else None
        found = None if key is None else self._listeners.get(key)
        if key is None or found is None:
            return
        sleepers, number = found
        if kind == b"smessage":
            sleepers.note_wakeup(number)
        elif kind == b"ssubscribe":
            sleepers.note_subscribed(number)
        elif kind == b"sunsubscribe":  # The slot has moved.
            self._server.rediscover()
            self._all.move(self, key)
