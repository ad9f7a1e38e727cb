"""Run a tube and its model together: after every call, their visible states must be equal."""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import tubes
from tests.contract.faces import SyncFace
from tests.support.internals import port_of
from tests.support.model import STATES, Connection, Model, Ref, Refused, Session, View, Waiter
from tubes import Driver, QueueClosed, Task, TaskNotTaken, TubesError
from tubes.drivers.invariants import check_engine
from tubes.drivers.options import SECOND, micros
from tubes.testing import ManualClock
from tubes.values.lease import NO_TAKE

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

#: Not a multiple of 0.1 s like all other spans, so that no other event coincides with the end of a session.
LEASE = 1.05
WORKERS = 3
WAITERS = 4
#: Seconds to wait for a call to return.
PATIENCE = 20


class Worker(NamedTuple):
    """One connection to the tube and to the model."""

    ideal: Connection
    queue: tubes.Queue
    uuid: str


def to_micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * SECOND)


def to_model_result(actual: Any) -> Any:
    """Convert a result of the tube to that of the model."""
    if isinstance(actual, list):
        results: list[Any] = actual
        return [to_model_result(each) for each in results]
    if not isinstance(actual, Task):
        return actual
    created = round(actual.created * SECOND)
    return View(
        actual.id, str(actual.state), actual.data, actual.utube, actual.pri, actual.attempts, created,
        to_micros(actual.ttl), to_micros(actual.ttr), to_micros(actual.due), to_micros(actual.expires),
        (None if actual.state == "done" else actual.calls["release"], *list(actual.calls.values())[1:]),
    )  # fmt: skip


class Lockstep:
    """A tube with a driver and options (in seconds), and its model.

    The calls take plain numbers for tasks, workers and sessions and map them to existing ones. So a run is a list of
    names and numbers from any source.
    """

    def __init__(self, driver: Driver, options: dict[str, Any], url: str = "memory://") -> None:
        self.driver = driver
        self.options = options
        self.clock = ManualClock()
        self.face = SyncFace()
        self.root = tubes.connect(url, clock=self.clock, session_ttl=LEASE)
        self.model = Model(driver, self.to_model_options(options), micros("lease", LEASE))
        self.workers: list[Worker] = []
        self.sessions: deque[tuple[Session, str]] = deque(maxlen=6)
        self.refs: deque[tuple[Task | str, Ref]] = deque(maxlen=16)
        self.calls: list[tuple[Future[Any], Waiter]] = []
        self.number = 0
        self.looks = 0
        self.create()
        for _ in range(WORKERS):
            self.join()

    def create(self) -> None:
        """Create the tube, with a listener."""
        self.tube = self.root.create_tube("model", self.driver, **self.options)
        self.received: list[tuple[str, View]] = []
        received = self.received
        self.tube.on_task_change(lambda task, event: received.append((event, to_model_result(task))))

    def join(self) -> None:
        """Add a worker."""
        queue = self.root.session()
        worker = Worker(self.model.connect(), queue, queue.admin.identify())
        self.workers.append(worker)
        self.sessions.append((worker.ideal.session, worker.uuid))

    @staticmethod
    def to_model_options(options: dict[str, Any]) -> dict[str, Any]:
        """Convert options to the units of the model."""
        spans = ("ttl", "ttr", "delay", "timeout", "interval", "keep_done")
        return {name: to_micros(value) if name in spans else value for name, value in options.items()}

    # -- mapping numbers -----------------------------------------------------------------------------------------------

    def worker(self, number: int) -> tuple[Connection, tubes.Tube]:
        worker = self.workers[number % WORKERS]
        return worker.ideal, worker.queue.tube("model")

    def task(self, number: int) -> tuple[Task | str | int, Ref | int]:
        """Return a task as an argument: a taken one, any living one, an earlier `Task` or lease, or any id."""
        kind, number = number % 4, number // 4
        taken = [task.id for task in self.model.tasks if task.state == "taken"]
        alive = [task.id for task in self.model.tasks]
        if kind == 0 and taken:
            return taken[number % len(taken)], taken[number % len(taken)]
        if kind == 1 and alive:
            return alive[number % len(alive)], alive[number % len(alive)]
        if kind < 3 and self.refs:
            return self.refs[number % len(self.refs)]
        return number % (self.model.next_id + 2), number % (self.model.next_id + 2)

    def compare_calls(self, real: Callable[[], Any], ideal: Callable[[], Any]) -> None:
        """Run a call on both sides and compare the results or errors."""
        expected: Any
        try:
            expected = ideal()
        except Refused as refused:
            expected = refused.kind
        actual: Any
        try:
            actual = real()
        except TubesError as error:
            actual = type(error)
        self.agree(actual, expected)

    def agree(self, actual: Any, expected: Any) -> None:
        assert to_model_result(actual) == expected
        if isinstance(actual, list):
            for pair in zip(actual, expected, strict=True):  # pyright: ignore[reportUnknownArgumentType]
                self.agree(*pair)
        if isinstance(actual, Task):
            self.refs.append((actual, self.model.refer(expected)))
            with suppress(TaskNotTaken):
                lease, expected_ref = actual.lease, self.model.refer(expected)._replace(is_lease=True)
                # The lease of a task of another session has no take.
                self.refs.append((lease, expected_ref._replace(take=0) if lease.take == NO_TAKE else expected_ref))

    # -- calls ---------------------------------------------------------------------------------------------------------

    def put(self, worker: int, options: dict[str, Any]) -> None:
        ideal, tube = self.worker(worker)
        data, self.number = f"d{self.number}", self.number + 1
        to_model_options = self.to_model_options(options)
        is_lane_full = self.model.full_lane([(data, to_model_options)]) is not None
        if options.get("timeout") and (self.model.waiting_puts or is_lane_full or not self.model.room()):
            self.begin(
                tube,
                "put",
                data,
                options,
                self.model.wait(ideal, to_model_options["timeout"], (data, to_model_options)),
            )
        else:
            self.compare_calls(lambda: tube.put(data, **options), lambda: self.model.put(data, to_model_options))

    def put_many(self, worker: int, options: list[dict[str, Any]], timeout: float | None) -> None:
        ideal, tube = self.worker(worker)
        items = [(f"d{number}", each) for number, each in enumerate(options, self.number)]
        self.number += len(items)
        real = [tubes.Item(data, **each) for data, each in items]
        model_items = [(data, self.to_model_options(each)) for data, each in items]
        capacity = self.model.options.get("capacity", 0)
        if timeout and 0 < len(items) <= capacity and (self.model.waiting_puts or not self.model.room(len(items))):
            waiter = self.model.wait(ideal, to_micros(timeout), model_items)
            self.begin(tube, "put_many", real, {"timeout": timeout}, waiter)
        else:
            self.compare_calls(lambda: tube.put_many(real), lambda: self.model.put_many(model_items))

    def take_many(self, worker: int, limit: int) -> None:
        ideal, tube = self.worker(worker)
        self.compare_calls(lambda: tube.take_many(limit, timeout=0), lambda: self.model.take_many(ideal, limit))

    def tasks(self, numbers: list[int]) -> tuple[list[Task | str | int], list[Ref | int]]:
        """Return several tasks as arguments."""
        found = [self.task(number) for number in numbers]
        return [real for real, _ in found], [ref for _, ref in found]

    def ack_many(self, worker: int, numbers: list[int]) -> None:
        (ideal, tube), (real, refs) = self.worker(worker), self.tasks(numbers)
        self.compare_calls(lambda: tube.ack_many(real), lambda: self.model.ack_many(ideal, refs))

    def release_many(self, worker: int, numbers: list[int], delay: float | None) -> None:
        (ideal, tube), (real, refs) = self.worker(worker), self.tasks(numbers)
        self.compare_calls(
            lambda: tube.release_many(real, delay=delay), lambda: self.model.release_many(ideal, refs, to_micros(delay))
        )

    def delete_many(self, worker: int, numbers: list[int]) -> None:
        (_, tube), (real, refs) = self.worker(worker), self.tasks(numbers)
        self.compare_calls(lambda: tube.delete_many(real), lambda: self.model.delete_many(refs))

    def take(self, worker: int) -> None:
        ideal, tube = self.worker(worker)
        self.compare_calls(lambda: tube.take(timeout=0), lambda: self.model.take(ideal))

    def wait(self, worker: int, timeout: float | None) -> None:
        if len(self.calls) < WAITERS:
            ideal, tube = self.worker(worker)
            self.begin(tube, "take", None, {"timeout": timeout}, self.model.wait(ideal, to_micros(timeout)))

    def begin(self, tube: tubes.Tube, method: str, data: Any, options: dict[str, Any], waiter: Waiter) -> None:
        arguments = () if method == "take" else (data,)
        self.calls.append((self.face.begin(tube, method, *arguments, **options), waiter))

    def ack(self, worker: int, task: int) -> None:
        (ideal, tube), (real, ref) = self.worker(worker), self.task(task)
        result = task if task % 3 else None
        self.compare_calls(lambda: tube.ack(real, result), lambda: self.model.ack(ideal, ref, result))

    def release(self, worker: int, task: int, delay: float | None) -> None:
        (ideal, tube), (real, ref) = self.worker(worker), self.task(task)
        self.compare_calls(
            lambda: tube.release(real, delay=delay), lambda: self.model.release(ideal, ref, to_micros(delay))
        )

    def touch(self, worker: int, task: int, seconds: float) -> None:
        (ideal, tube), (real, ref) = self.worker(worker), self.task(task)
        span = micros("seconds", seconds)
        self.compare_calls(lambda: tube.touch(real, seconds), lambda: self.model.touch(ideal, ref, span))

    def bury(self, worker: int, task: int) -> None:
        (_, tube), (real, ref) = self.worker(worker), self.task(task)
        self.compare_calls(lambda: tube.bury(real), lambda: self.model.bury(ref))

    def delete(self, worker: int, task: int) -> None:
        (_, tube), (real, ref) = self.worker(worker), self.task(task)
        self.compare_calls(lambda: tube.delete(real), lambda: self.model.delete(ref))

    def cancel(self, worker: int, task: int) -> None:
        (_, tube), (real, ref) = self.worker(worker), self.task(task)
        self.compare_calls(lambda: tube.cancel(real), lambda: self.model.cancel(ref))

    def peek(self, worker: int, task: int) -> None:
        (_, tube), (real, ref) = self.worker(worker), self.task(task)
        self.compare_calls(lambda: tube.peek(real), lambda: self.model.peek(ref))

    def kick(self, worker: int, count: int) -> None:
        _, tube = self.worker(worker)
        self.compare_calls(lambda: tube.select("buried", limit=count).kick(), lambda: self.model.kick(count))

    def release_all(self, worker: int) -> None:
        _, tube = self.worker(worker)
        self.compare_calls(tube.admin.release_all, self.model.release_all)

    def truncate(self, worker: int) -> None:
        _, tube = self.worker(worker)
        self.compare_calls(tube.truncate, self.model.truncate)

    def pause(self, worker: int, seconds: float | None) -> None:
        _, tube = self.worker(worker)
        self.compare_calls(lambda: tube.pause(seconds), lambda: self.model.pause(to_micros(seconds)))

    def resume(self, worker: int) -> None:
        _, tube = self.worker(worker)
        self.compare_calls(lambda: tube.pause(0), self.model.resume)

    def drop(self, worker: int, force: bool) -> None:
        _, tube = self.worker(worker)
        generation = self.model.generation
        self.compare_calls(lambda: tube.drop(force=force), lambda: self.model.drop(force))
        if self.model.generation != generation:
            self.create()

    def block(self, worker: int, name: str, seconds: float, extend: bool, reason: str | None) -> None:
        _, tube = self.worker(worker)
        self.compare_calls(
            lambda: tube.lane(name).block(seconds, extend=extend, reason=reason),
            lambda: self.model.block(name, micros("seconds", seconds), extend, reason),
        )

    def configure(self, worker: int, name: str, limits: dict[str, Any]) -> None:
        _, tube = self.worker(worker)
        self.compare_calls(
            lambda: tube.lane(name).configure(**limits),
            lambda: self.model.configure(name, self.to_model_options(limits)),
        )

    def advance(self, tenths: int) -> None:
        self.model.advance(tenths * SECOND // 10)
        self.clock.advance(tenths / 10)

    def leave(self, worker: int, lost: bool) -> None:
        """Close or detach a worker and add another one."""
        leaver = self.workers.pop(worker % WORKERS)
        # The order of two sessions that end at the same moment is undefined.
        lost = lost and all(each.ends_at != self.model.now + self.model.lease for each in self.model.sessions)
        self.model.close(leaver.ideal, lost=lost)
        if lost:
            leaver.queue.admin.detach()
        else:
            leaver.queue.close()
        self.join()

    def identify(self, worker: int, session: int) -> None:
        """Let a worker join the session of another one, or a detached or ended session."""
        ideal, queue, _ = self.workers[worker % WORKERS]
        model_items, uuid = self.sessions[session % len(self.sessions)]

        def join() -> str:
            self.model.identify(ideal, model_items)
            return uuid

        self.compare_calls(lambda: queue.admin.identify(uuid), join)

    # -- comparison ----------------------------------------------------------------------------------------------------

    def compare(self, *, all_tasks: bool = True) -> None:
        """Check that the visible states are equal and that exactly the expected waiting calls have returned."""
        for future, waiter in [call for call in self.calls if call[1].results]:
            self.calls.remove((future, waiter))
            try:
                actual = future.result(PATIENCE)
            except TubesError as error:
                actual = type(error)
            self.agree(actual, waiter.results[0])
        assert self.received == self.model.events
        del self.received[:], self.model.events[:]
        statistics = self.tube.statistics()
        assert (statistics.tasks, statistics.calls, statistics.waiting) == self.model.statistics()
        assert statistics.kept == len(self.model.kept_tasks())
        until = None if statistics.paused == math.inf else to_micros(statistics.paused)
        assert (statistics.paused is not None, until) == (self.model.paused, self.model.paused_until)
        if self.driver.lane:
            assert self.tube.lanes() == self.model.lanes()
            for name in ("a", "unknown"):
                assert self.tube.lane(name).info() == self.model.lane_info(name)
        check_engine(port_of(self.tube).shared.engine)
        if all_tasks:
            for task in self.model.tasks:
                assert to_model_result(self.tube.peek(task.id)) == self.model.show(task)
            kept = self.model.kept_tasks()
            found = self.tube.select("done")
            assert [(to_model_result(task), task.why, task.result, to_micros(task.ended)) for task in found] == [
                (each.view, each.why, each.result, each.ended) for each in kept
            ]
            # List a different state at each step.
            self.looks += 1
            state = STATES[self.looks % 4]
            listed = self.model.list_ids(state)
            assert [task.id for task in self.tube.select(state)] == listed

    def close(self) -> None:
        """Close all sessions, which ends all waiting calls."""
        for worker in self.workers:
            worker.queue.close()
        self.root.close()
        for future, _ in self.calls:
            assert isinstance(future.exception(PATIENCE), (QueueClosed, type(None)))
