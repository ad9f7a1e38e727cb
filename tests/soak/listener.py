"""A listener that receives the changes of a tube in the server's order and checks the rules of its driver."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedList

from tests.soak.long_ledger import Marks

if TYPE_CHECKING:
    from tubes import Task, Tube

#: The maximum number of recorded mistakes.
_ENOUGH = 100


class Listener:
    """Check that a task is taken in its turn, by one holder, from a free lane, after its delay, and ends once.

    After possibly missed changes, the listener makes no assumptions: see `forget`.
    """

    def __init__(self, tube: Tube) -> None:
        self._tube = tube
        self._lock = threading.Lock()
        self._has_lanes = tube.driver.lane is not None
        #: The ranks of certainly ready tasks by lane; rank, lane and state by id.
        self._ready: dict[Any, SortedList[tuple[int, int]]] = {}
        self._known: dict[int, tuple[tuple[int, int], Any, str]] = {}
        #: The holder of each lane, or None. A missing lane may be held by an unknown task.
        self._lanes: dict[Any, int | None] = {}
        #: Ended tasks; the last take of unchecked ones by id.
        self.ended_ids = Marks()
        self.ended: dict[int, int] = {}
        self._mark = ""
        self.takes = 0
        #: The number of takes whose order was checked.
        self.judged = 0
        self.mistakes: list[str] = []
        tube.on_task_change(self.record_event)

    def forget(self, mark: str) -> None:
        """Expect missed changes until the put of data that begins with `mark`; then start again."""
        with self._lock:
            self._mark = mark

    @property
    def is_blind(self) -> bool:
        """Return True if the mark has not arrived yet."""
        return bool(self._mark)

    def record_event(self, task: Task, event: str) -> None:
        """Process one change."""
        with self._lock:
            if event == "delete" or event == "ttl":
                self._end(task)
            if self._mark:
                if event == "put" and str(task.data).startswith(self._mark):
                    self._mark = ""
                    self._ready.clear()
                    self._known.clear()
                    self._lanes.clear()
                return
            if event == "take":
                self._judge(task)
            self._move(task, str(task.state))

    def _end(self, task: Task) -> None:
        if task.id in self.ended_ids:
            self._record_mistake(f"task {task.id} has ended twice")
        self.ended_ids.add(task.id)
        self.ended[task.id] = task.attempts

    def _judge(self, task: Task) -> None:
        """Check that a take was the turn of its task."""
        self.takes += 1
        rank, lane = self._place(task)
        state = self._known[task.id][2] if task.id in self._known else None
        if state not in (None, "ready"):
            self._record_mistake(f"task {task.id} was taken while it was {state}")
        if task.id in self.ended_ids:
            self._record_mistake(f"task {task.id} was taken after its end")
        holder = self._lanes.get(lane)
        if holder is not None:
            self._record_mistake(f"task {task.id} was taken while task {holder} held its lane {lane}")
        firsts = [
            ready[0]
            for other, ready in self._ready.items()
            if ready and (not self._has_lanes or self._lanes.get(other, 0) is None)
        ]
        self.judged += bool(firsts)
        if firsts and min(firsts) < rank:
            self._record_mistake(f"task {task.id} of rank {rank} was taken before one of rank {min(firsts)}")

    def _move(self, task: Task, state: str) -> None:
        """Record the state of a task."""
        rank, lane = self._place(task)
        before = self._known.pop(task.id, None)
        if before is not None:
            if before[2] == "ready":
                self._ready[before[1]].remove(before[0])
            if before[2] == "taken" and self._has_lanes:
                self._lanes[before[1]] = None
        if state == "done":
            return
        self._known[task.id] = rank, lane, state
        if state == "ready":
            self._ready.setdefault(lane, SortedList()).add(rank)
        elif state == "taken" and self._has_lanes:
            self._lanes[lane] = task.id

    def _place(self, task: Task) -> tuple[tuple[int, int], Any]:
        return (task.pri or 0, task.id), task.utube if self._has_lanes else None

    def _record_mistake(self, mistake: str) -> None:
        if len(self.mistakes) < _ENOUGH:
            self.mistakes.append(mistake)
