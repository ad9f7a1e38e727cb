"""A ledger of all tasks: each put task is exactly one of acked, deleted, expired, buried or still stored."""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.contract.bench import eventually
from tubes import ConnectionLost, TaskNotTaken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tubes import Task, Tube


class Ledger:
    """A record of all puts, takes and ends of tasks. The data of tasks are keys, each of which is put once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The ids of put tasks, by key.
        self.puts: dict[str, int] = {}
        #: The id of each key, as reported by puts and takes.
        self.ids: dict[str, int] = {}
        #: Keys of puts that raised `ConnectionLost`: executed once or not at all.
        self.unknown: set[str] = set()
        #: The numbers of the received takes, by id.
        self.takes: dict[int, list[int]] = defaultdict(list)
        #: The take that acked or deleted a task, by id.
        self.done: dict[int, int] = {}
        #: The takes that may have acked a task, by id: their process died before the reply.
        self.maybe: dict[int, set[int]] = defaultdict(set)
        self.late = 0

    def put(self, tube: Tube, key: str, **options: Any) -> bool:
        """Put and record it; return True if the put was confirmed."""
        try:
            task: Any = tube.put(key, **options)
        except ConnectionLost:
            self.unknown.add(key)
            return False
        self.record_put(key, task.id)
        return True

    def record_put(self, key: str, id: int) -> None:
        """Record a put that has returned."""
        with self._lock:
            assert key not in self.puts, f"{key} was put twice"
            self.puts[key] = id
            self._name(key, id)

    def record_take(self, id: int, attempts: int, key: str) -> None:
        """Record a take; no other caller may have the same take."""
        with self._lock:
            assert attempts not in self.takes[id], f"take {attempts} of task {id} was given to two callers"
            self.takes[id].append(attempts)
            self._name(key, id)

    def _name(self, key: str, id: int) -> None:
        assert self.ids.setdefault(key, id) == id, f"{key} was put twice, as task {self.ids[key]} and as task {id}"

    def record_done(self, id: int, attempts: int) -> None:
        """Record an ack or a delete that has returned."""
        with self._lock:
            assert id not in self.done, f"task {id} was done twice"
            self.done[id] = attempts

    def record_unsure_acks(self, acks: Iterable[tuple[int, int]]) -> None:
        """Record acks, by id and take, that were sent by a process that died before the replies."""
        with self._lock:
            for id, attempts in acks:
                self.maybe[id].add(attempts)

    def work(self, task: Task) -> None:
        """Record a take and ack it."""
        self.record_take(task.id, task.attempts, task.data)
        try:
            task.ack()
        except ConnectionLost:
            self.record_unsure_acks({(task.id, task.attempts)})
        except TaskNotTaken:
            self.late += 1
        else:
            self.record_done(task.id, task.attempts)

    def read(self, lines: list[str]) -> None:
        """Read the output of a worker process."""
        begun: set[tuple[int, int]] = set()
        for line in lines:
            self.read_line(line, begun)
        self.record_unsure_acks(begun)

    def read_line(self, line: str, begun: set[tuple[int, int]]) -> None:
        """Read one line of a worker; `begun`: its started acks without a recorded end."""
        word, _, rest = line.partition(" ")
        if word not in ("took", "acking", "acked", "late", "left"):
            return
        first, second, *key = rest.split()
        id, attempts = int(first), int(second)
        if word == "took":
            self.record_take(id, attempts, *key)
        elif word == "left":  # A loop over the tube acked it without reporting it.
            self.record_unsure_acks({(id, attempts)})
        elif word == "acking":
            begun.add((id, attempts))
        else:
            begun.remove((id, attempts))
            if word == "acked":
                self.record_done(id, attempts)
            else:
                self.late += 1

    def check(self, tube: Tube) -> None:
        """Check that each put task is done, or stored and available, and that no task exists twice."""
        assert list(self.contradictions(tube)) == []

    def contradictions(self, tube: Tube) -> Iterator[str]:
        """Take and ack all stored tasks, and yield all contradictions."""
        stored, expected = self._drain(tube)
        if left := [f"{task.id} {task.state}" for task in tube.select()]:
            yield f"tasks are stored, but cannot be taken: {left}"
        elif len(stored) != expected:
            yield f"{expected} tasks are counted, {len(stored)} are stored"
        known = {id: key for key, id in self.puts.items()}
        if len(known) != len(self.puts):
            yield "two puts returned the same id"
        for id, attempts in self.done.items():
            if attempts < max(self.takes[id], default=0):
                yield f"task {id} was acked by an expired take"
        for key, id in self.puts.items():
            done, there = id in self.done, stored.get(id) == key
            if done + there != 1 and not (id in self.maybe and done + there == 0):
                yield f"{key} is lost, or done and stored"
        for id, key in stored.items():
            if self.ids.setdefault(key, id) != id:
                yield f"{key} was put twice, as task {self.ids[key]} and as task {id}"
        for key in self.ids.keys() - self.puts.keys() - self.unknown:
            yield f"{key} is stored but was never put"

    @staticmethod
    def _drain(tube: Tube) -> tuple[dict[int, str], int]:
        """Take and ack all tasks in any state; return their data by id, and the number of tasks in the counts."""
        for delayed in tube.select(limit=10**6):
            if delayed.state == "delayed":
                delayed.bury()  # A kick then ends the delay.
        tube.admin.release_all()
        tube.select("buried", limit=10**6).kick()
        expected = tube.statistics().tasks["total"]
        stored: dict[int, str] = {}
        while (task := tube.take(timeout=0)) is not None:
            stored[task.id] = task.data
            task.ack()
        return stored, expected


class Witness:
    """A listener that receives all events in the server's order, to check that no held task is taken."""

    def __init__(self, tube: Tube) -> None:
        self._tube = tube
        self.received: list[tuple[str, int, int]] = []
        tube.on_task_change(lambda task, event: self.received.append((event, task.id, task.attempts)))

    def check(self) -> None:
        """Check that only tasks without a holder were taken, and only held tasks were released or timed out."""
        mark = self._tube.put("the last")
        assert eventually(lambda: ("put", mark.id, 0) in self.received[-50:])
        mark.delete()
        with suppress(ConnectionLost):
            self._tube.on_task_change(None)
        held: dict[int, int] = {}
        for event, id, attempts in self.received:
            if event == "take":
                assert id not in held, f"task {id} was taken while it was held"
                held[id] = attempts
            elif event in ("release", "ttr"):
                assert id in held, f"task {id} was released without a holder"
                del held[id]
            elif event in ("delete", "bury", "ttl"):
                held.pop(id, None)
