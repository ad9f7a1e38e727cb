"""Measures how long tasks wait and how long they are held, with a listener."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from tubes.drivers.moves import State

if TYPE_CHECKING:
    from tubes.values.task import TaskView

#: The maximum number of tasks of a tube that are tracked; beyond that, the ones that changed longest ago are dropped.
MAX_TASKS: Final = 100_000


class Sink(Protocol):
    """Receives the measurements."""

    def waited(self, tube: str, seconds: float) -> None:
        """Record for how many seconds a task was ready until it was taken."""
        ...

    def held(self, tube: str, seconds: float) -> None:
        """Record for how many seconds a task was taken until it was acked, released or buried."""
        ...

    def buried(self, tube: str, reason: str | None) -> None:
        """Record that a task was buried."""
        ...


class Spans:
    """A listener for `on_task_change` that measures the time between events, by the clock of this process.

    A time is measured only if both of its events happen while the listener is registered.

    >>> import tubes
    >>> class Print:
    ...     def waited(self, tube, seconds):
    ...         print("waited", seconds)
    ...     def held(self, tube, seconds):
    ...         print("held", seconds)
    ...     def buried(self, tube, reason):
    ...         print("buried:", reason)
    >>> clock = tubes.testing.ManualClock()
    >>> with tubes.connect(clock=clock) as queue:
    ...     tube = queue.create_tube("mail")
    ...     _ = tube.on_task_change(Spans(Print(), clock.now))
    ...     _ = tube.put("hello")
    ...     clock.advance(2)
    ...     task = tube.take(timeout=0)
    ...     clock.advance(3)
    ...     _ = task.bury("no such address")
    waited 2.0
    held 3.0
    buried: no such address
    """

    def __init__(self, sink: Sink, now: Callable[[], float]) -> None:
        self._sink: Final = sink
        self._now: Final = now
        # The state of each task and the time of its last change, by id; the latest change is last.
        self._states: Final[OrderedDict[int, tuple[State, float]]] = OrderedDict()
        self._lock: Final = threading.Lock()

    def __call__(self, task: TaskView, event: str) -> None:
        now, state = self._now(), task.state
        with self._lock:
            before, since = self._states.get(task.id, (None, now))
            if before is state:
                return  # The task was touched or updated.
            self._states.pop(task.id, None)
            if state in (State.READY, State.TAKEN):
                self._states[task.id] = state, now
                if len(self._states) > MAX_TASKS:
                    self._states.popitem(last=False)
        if before is State.READY and state is State.TAKEN:
            self._sink.waited(task.tube, max(0.0, now - since))
        elif before is State.TAKEN:
            self._sink.held(task.tube, max(0.0, now - since))
        if state is State.BURIED:
            self._sink.buried(task.tube, task.reason)
