"""Callers of one process that wait until a tube is empty, or until a task ends.

**How it works.** While callers wait, the process subscribes to the events of the tube, and counts the tasks that end.
It asks the server how many tasks are left, and asks again when that many tasks have ended. So it sends no request
without a waiter, and few requests to a tube with many tasks. A caller that waits for the end of a task gets the kept
task along with the event. If the tube does not keep done tasks, or the event was lost, the caller looks for the task
itself. The event of a task that is missing on the server may still be on its way, so its waiters wait a little longer.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from tubes.backend.alarms import Alarm
from tubes.backend.waiters import PENDING, TaskEnd
from tubes.drivers.moves import State
from tubes.drivers.options import SECOND
from tubes.errors import ConnectionLost, TubesError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tubes.backend.waiters import Waiter
    from tubes.redis.task_codec import Parsed
    from tubes.redis.transport.script_call import Flow
    from tubes.redis.waiting.protocols import Tube
    from tubes.redis.waiting.wait_queue import WaitQueue

#: The longest interval between two checks, in microseconds: a lost event delays waiters by at most this much.
_LONGEST: Final = 5 * SECOND
#: The interval after a connection error, in microseconds.
_RETRY_INTERVAL: Final = SECOND // 5
#: The longest delay of an event after a check has not found its task, in microseconds.
_EVENT_DELAY: Final = SECOND


class Emptiness:
    """The callers that wait until the tube is empty or a task ends."""

    def __init__(self, tube: Tube, queue: WaitQueue) -> None:
        self._tube: Final = tube
        self._queue: Final = queue
        self._lock: Final = threading.Lock()
        self._waiters: Final[dict[Waiter, None]] = {}
        # The waiters for the end of a task, by task id.
        self._of_task: Final[dict[int, set[Waiter]]] = {}
        # The number of tasks that have ended, and the number at which the server is asked again.
        self._ended: int = 0
        self._target: int = 0
        # The ids of the awaited tasks that the last check did not find, and the time of the first check without them.
        self._missing: dict[int, int] = {}
        # True while a check is scheduled.
        self._is_scheduled = False
        self._alarm: Final = Alarm(tube.store.clock, self._fire)

    @property
    def waiting(self) -> bool:
        """True if a caller waits."""
        return bool(self._waiters)

    def enlist(self, waiter: Waiter) -> None:
        """Add a waiting caller."""
        store = self._tube.store
        with self._lock:
            closed = waiter.owner.closed_error  # After this check, closing the port finds the waiter.
            if closed is not None:
                raise closed()
            self._waiters[waiter] = None
            if isinstance(waiter.request, TaskEnd):
                self._of_task.setdefault(waiter.request.id, set()).add(waiter)
        if store.manual and waiter.deadline is not None:
            self._alarm.set(waiter.deadline)
        self.schedule_check()

    def withdraw(self, waiter: Waiter) -> object:
        """End the wait of a caller; return its result, or None if it has none yet."""
        with self._lock:
            self._forget(waiter)
        if not self._waiters:
            self._tube.subscription.close_if_unused()
        return None if waiter.result is PENDING else waiter.result

    def _forget(self, waiter: Waiter) -> None:
        """Remove a waiter. The caller holds the lock."""
        self._waiters.pop(waiter, None)
        if isinstance(waiter.request, TaskEnd) and (waiters := self._of_task.get(waiter.request.id)):
            waiters.discard(waiter)
            if not waiters:
                del self._of_task[waiter.request.id]

    def dismiss(self, waiters: Iterable[Waiter], make_result: Callable[[], object]) -> None:
        """Give these waiters a result if they still wait."""
        for waiter in waiters:
            with self._lock:
                if waiter not in self._waiters:
                    continue
                # This order makes an interrupted call repeatable.
                waiter.result = make_result()
                waiter.wake()
                self._forget(waiter)
        if not self._waiters:
            self._tube.subscription.close_if_unused()

    def waiters(self, port: object = None) -> list[Waiter]:
        """Return the waiters; with `port` only its waiters."""
        with self._lock:
            return [waiter for waiter in self._waiters if port is None or waiter.owner is port]

    def handle_event(self, event: Parsed) -> None:
        """Handle the event of a task."""
        if self._waiters and event[1] in _ENDED:
            self._end(event)
            self._ended += 1
            if self._ended >= self._target:
                self.schedule_check()

    def _end(self, parsed: Parsed) -> None:
        """Give a task that has ended to the waiters for its end."""
        id, state, _, is_kept, *_ = parsed
        if state in _ENDED:
            for waiter in self._waiters_for([id]):
                try:
                    result: object = waiter.owner.decode(parsed) if is_kept else True
                except TubesError as error:
                    result = error
                self.dismiss([waiter], lambda result=result: result)  # type: ignore[misc]

    def _waiters_for(self, ids: Iterable[int]) -> list[Waiter]:
        """Return the waiters for the ends of these tasks."""
        with self._lock:
            return [waiter for id in ids for waiter in self._of_task.get(id, ())]

    def schedule_check(self) -> None:
        """Schedule a request to the server if a caller waits."""
        with self._lock:
            if self._is_scheduled or not self._waiters:
                return
            self._tube.store.later(self._check)
            self._is_scheduled = True

    def _fire(self, now: int) -> None:
        self._alarm.cancel()
        if not self._tube.store.manual:
            self.schedule_check()
            return
        # A test's clock ends expired waits, but first handles the tasks that are due at the same moment.
        self._tube.run_now(self._tube.tick())
        self._tube.run_now(self._check())
        for waiter in self.waiters():
            if waiter.deadline is not None and waiter.deadline <= now:
                self.dismiss([waiter], lambda: None)
            elif waiter.deadline is not None:
                self._alarm.set(waiter.deadline)

    def _check(self) -> Flow[None]:
        with self._lock:
            self._is_scheduled = False
        port = next((waiter.owner for waiter in self.waiters()), None)
        if port is None:
            return
        interval = _LONGEST
        try:
            # Subscribe before asking, so that no later end is missed.
            soonest = yield from self._tube.subscription.start(port)
            if soonest:
                self._tube.watch(soonest)
            # A waiting put will soon add a task to an empty tube, so that tube does not count as empty.
            ended, puts = self._ended, len(self._queue.put_waiters)
            if task_ids := list(self._of_task):
                reading: Flow[list[Parsed]] = port.parsed(task_ids)
                parsed_tasks = {parsed[0]: parsed for parsed in (yield from reading)}
                for parsed in parsed_tasks.values():
                    self._end(parsed)
                now = self._tube.store.clock.micros()
                missing = [id for id in task_ids if id not in parsed_tasks]
                self._missing = {id: self._missing.get(id, now) for id in missing}
                patience = 0 if self._tube.store.manual else _EVENT_DELAY
                lost_ids = [id for id, since in self._missing.items() if now - since >= patience]
                self.dismiss(self._waiters_for(lost_ids), lambda: True)
                if len(lost_ids) < len(missing):
                    interval = _EVENT_DELAY
            counting: Flow[int] = port.count_unfinished()
            tube_waiters = [waiter for waiter in self.waiters() if not isinstance(waiter.request, TaskEnd)]
            if not tube_waiters:
                self._target = _NEVER
            elif left := (yield from counting) or puts:
                self._target = ended + left
                if self._ended >= self._target:
                    self.schedule_check()
            else:
                self.dismiss(tube_waiters, lambda: True)
        except ConnectionLost:
            interval = _RETRY_INTERVAL
        except TubesError as error:
            failure = error
            if port.closed_error is None:
                self.dismiss(self.waiters(), lambda: failure)
            else:  # The callers of the closed port have their error; the check is repeated for the other waiters.
                self.schedule_check()
        if self._waiters and not self._tube.store.manual:
            self._alarm.set(self._tube.store.clock.micros() + interval)


#: More tasks than can ever end.
_NEVER: Final = 1 << 62
#: States of ended tasks, including buried tasks, which move only if they are kicked.
_ENDED: Final = (State.DONE.letter.encode(), State.BURIED.letter.encode())
