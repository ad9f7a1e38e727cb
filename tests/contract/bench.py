"""The base class of all contract tests: a queue, a tube, a manual clock and helpers."""

from __future__ import annotations

import asyncio
import inspect
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import pytest

from tests.contract.faces import AioFace, Face, SyncFace
from tubes import Driver, DriverNotFound, InvalidOption, TaskNotFound, TubesError
from tubes.backend.selecting import Scan
from tubes.drivers.options import micros
from tubes.drivers.registry import Registry
from tubes.errors import Facts
from tubes.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from tubes import AsyncTube, Queue, Task

T = TypeVar("T")
#: The maximum number of real seconds to wait for a call to return or an event to arrive.
PATIENCE = 10.0


def needs(*knobs: str) -> Callable[[T], T]:
    """Skip a test, or all tests of a class, for drivers that lack any of these options or knobs."""
    return _mark("needs", knobs)


def lacks(*knobs: str) -> Callable[[T], T]:
    """Skip a test, or all tests of a class, for drivers that have any of these options or knobs."""
    return _mark("lacks", knobs)


def _mark(name: str, knobs: tuple[str, ...]) -> Callable[[T], T]:
    def mark(test: T) -> T:
        if isinstance(test, type):
            for each in vars(test).copy():
                if each.startswith("test_"):
                    mark(vars(test)[each])
        else:
            setattr(test, name, {*getattr(test, name, ()), *knobs})
            assert {*getattr(test, "needs", ())}.isdisjoint(getattr(test, "lacks", ())), f"{test} would never run"
        return test

    return mark


def knows(driver: Driver, knob: str) -> bool:
    """Return True if a driver has this option or knob."""
    return knob in driver.options or bool(getattr(driver, knob, None))


def skip_reason(driver: Driver, test: object) -> str:
    """Return the reason why `needs` or `lacks` exclude this driver from a test; empty if they do not."""
    for knob in getattr(test, "needs", ()):
        if not knows(driver, knob):
            return f"driver {driver.name!r} has no {knob}"
    for knob in getattr(test, "lacks", ()):
        if knows(driver, knob):
            return f"driver {driver.name!r} has {knob}"
    return ""


def eventually(condition: Callable[[], bool]) -> bool:
    """Return True if the condition becomes true soon: wait for another thread, never for time to pass."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0002)
    return True


class RankedTask(NamedTuple):
    """The fields of a task that a rank hook may read."""

    id: int
    pri: int
    created: int


class Worker(NamedTuple):
    """A separate session and its view of the tube."""

    queue: Any
    tube: Any


class Bench:
    """Create a tube of `driver` for each test, and run each test once per face.

    `driver`: a registered name or a `Driver`. Required.
    `options`: options of `create_tube` that the driver requires; empty for most drivers.
    `session_ttl`: the lease in seconds that `connect` requests.
    `faces`: the faces (sync, asyncio) on which each test runs.
    """

    driver: str | Driver
    faces: ClassVar[Sequence[type[Face]]] = (SyncFace, AioFace)
    options: ClassVar[Mapping[str, object]] = {}
    session_ttl: float = 30.0

    def connect(self, face: Face, clock: ManualClock) -> object:
        """Return an empty, separate queue for one test. Override it for another backend or to pass options.

        >>> class InRedis(Bench):
        ...     def connect(self, face, clock):
        ...         return face.connect("redis://localhost/0?prefix=" + uuid4().hex, clock=clock)
        """
        return face.connect("memory://", clock=clock, session_ttl=self.session_ttl)

    face: Face
    clock: ManualClock
    #: The session that most tests use, and its tube.
    queue: Any
    tube: Any
    #: The driver as a value.
    knobs: Driver

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test once per face."""
        metafunc.parametrize("_face", self.faces, ids=[face.name for face in self.faces])

    @pytest.fixture(autouse=True)
    def _bench(self, request: pytest.FixtureRequest, _face: type[Face]) -> Iterator[None]:
        if not hasattr(self, "driver"):
            pytest.fail(f"{type(self).__name__} names no driver: set `driver = ...` in the class", pytrace=False)
        # Skip before connecting if possible. The name may be unknown until `connect` registers it.
        with suppress(DriverNotFound):
            self.knobs = Registry().find(self.driver) if isinstance(self.driver, str) else self.driver
            self._skip(request.function)
        self.face = _face()
        self.clock = ManualClock()
        self._queues: list[Queue] = []
        self._ids: list[int] = []
        try:
            self.queue = self.connect(self.face, self.clock)
            self._queues.append(self.queue)
            self.tube = self.create("contract")
            self.knobs = self.tube.driver
            self._skip(request.function)
            yield
        finally:
            for queue in self._queues:
                queue.close()
            self.face.close()
            # pytest keeps the instance of every test until all tests have run.
            vars(self).clear()

    def _skip(self, test: object) -> None:
        if reason := skip_reason(self.knobs, test):
            pytest.skip(reason)

    def require(self, *knobs: str) -> None:
        """Skip the test unless the driver has all of these options or knobs; ignore empty names."""
        for knob in knobs:
            if knob and not self.knows(knob):
                pytest.skip(f"driver {self.knobs.name!r} has no {knob}")

    def knows(self, knob: str) -> bool:
        """Return True if the driver has this option or knob."""
        return knows(self.knobs, knob)

    def require_asyncio(self) -> AioFace:
        """Return the asyncio face, whose calls can be cancelled; skip the test on the other face."""
        if not isinstance(self.face, AioFace):
            pytest.skip("a thread that waits cannot be cancelled")
        return self.face

    def cancel_late(
        self, call: Callable[[], Awaitable[object]], tube: AsyncTube, serve: Callable[[], Awaitable[object]]
    ) -> bool:
        """Cancel a waiting call right after `serve`, which serves it. Return True if the call ended as cancelled.

        The reply of a backend may arrive before the cancellation; the task then stays taken.
        """

        async def run() -> bool:
            waiting = asyncio.ensure_future(call())
            # The count is the only sign that the call waits.
            while not (await tube.statistics()).waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await serve()
            waiting.cancel()
            await asyncio.wait([waiting])
            return waiting.cancelled()

        return bool(self.require_asyncio().run(run()))

    # -- actions -------------------------------------------------------------------------------------------------------

    def create(self, name: str, **options: object) -> Any:
        """Create another tube with this driver."""
        return self.queue.create_tube(name, self.driver, **{**self.options, **options})

    def put(self, data: object = None, *, tube: Any = None, **options: object) -> Task:
        """Put a task. Without a lane among the options, use a separate lane, so that tasks do not block each other."""
        if self.knobs.lane is not None and self.knobs.lane not in options:
            options[self.knobs.lane] = f"own-{len(self._ids)}"
        task: Task = (self.tube if tube is None else tube).put(data, **options)
        self._ids.append(task.id)
        return task

    def puts(self, count: int) -> list[Task]:
        """Put `count` tasks and return them in the order in which they will be taken."""
        return self.sort_as_taken([self.put() for _ in range(count)])

    def lane(self, name: object) -> Facts:
        """Return the option that names this lane; empty if the driver has no lanes."""
        return {} if self.knobs.lane is None else {self.knobs.lane: name}

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method of the tube's port."""
        port = self.tube._port
        if not isinstance(self.face, AioFace):
            return getattr(port, method)(*arguments)

        async def call() -> object:
            reply = getattr(port, method)(*arguments)
            return await reply if inspect.iscoroutine(reply) else reply

        return self.face.run(call())

    def list_after(self, after: int, state: object = None, **filters: object) -> list[int]:
        """Return the ids of a selection that begins after a task."""
        chosen = self.tube.select(state, **filters)._filters
        scan, found = Scan(chosen, after), list[int]()
        while not scan.ended:
            found += [one[0] for one in self.call("select", chosen, scan, 3, False)]
        return found

    def take(self, tube: Any = None) -> Task:
        """Take the next task, which must be ready."""
        task: Task | None = (self.tube if tube is None else tube).take(timeout=0)
        assert task is not None
        return task

    def put_and_take(self, **options: object) -> Task:
        """Put a task and take it in the first session. The tube must have no other ready task."""
        put = self.put(**options)
        task = self.take()
        assert task.id == put.id
        return task

    def put_and_bury(self, **options: object) -> Task:
        """Put a task and bury it."""
        task: Task = self.tube.bury(self.put(**options).id)
        return task

    def drain(self) -> list[int]:
        """Take all available tasks and return their ids in this order."""
        return [task.id for task in iter(lambda: self.tube.take(timeout=0), None)]

    def add_worker(self) -> Worker:
        """Open another session on the same tube."""
        queue = self.queue.session()
        self._queues.append(queue)
        return Worker(queue, queue.tube(self.tube.name))

    def begin(self, tube: object = None, method: str = "take", *args: object, **options: object) -> Future[Any]:
        """Start a call that waits, and return its future."""
        return self.face.begin(self.tube if tube is None else tube, method, *args, **options)

    def pass_time(self, seconds: float) -> float:
        """Let time pass and return the new time."""
        self.clock.advance(seconds)
        return self.clock.now()

    def ends_later(self, call: Future[T]) -> bool:
        """Let time pass and return True if the call has ended."""
        self.clock.advance(5)
        return call.done()

    def listen(self) -> list[tuple[str, int, str]]:
        """Return a list that receives every later change of the tube: event, id, state."""
        events: list[tuple[str, int, str]] = []

        def callback(task: Task, event: str) -> None:
            events.append((event, task.id, str(task.state)))

        self.tube.on_task_change(callback)
        return events

    @staticmethod
    def has_received(events: list[tuple[str, int, str]], expected: list[tuple[str, int, str]]) -> bool:
        """Return True if a list of `listen` contains exactly these changes, now or soon."""
        assert eventually(lambda: len(events) >= len(expected))
        assert events == expected
        return True

    # -- inspection ----------------------------------------------------------------------------------------------------

    def sort_as_taken(self, tasks: list[Task]) -> list[Task]:
        """Return these tasks in the order that the driver's knobs define."""
        driver = self.knobs
        if driver.rank is not None:
            rank = driver.rank
            ranks = {task.id: rank(RankedTask(task.id, task.pri, micros("created", task.created))) for task in tasks}
            return sorted(tasks, key=lambda task: (ranks[task.id], task.id))
        pri, _, id = driver.order.rpartition(",") if "id" in driver.order else (driver.order, "", "id")
        signs = {"": 0, "pri": 1, "-pri": -1, "id": 1, "-id": -1}
        return sorted(tasks, key=lambda task: (signs[pri] * task.pri, signs[id] * task.id))

    def state(self, task: Task) -> str:
        """Return the current state of the task as a word; `done` if the task no longer exists."""
        found = self._peek(task.id)
        return "done" if found is None else str(found.state)

    def _peek(self, id: int) -> Task | None:
        try:
            task: Task = self.tube.peek(id)
        except TaskNotFound:
            return None
        return task

    def count(self, name: str) -> int:
        """Return a count of tasks (by state) or of calls."""
        statistics = self.tube.statistics()
        return int(statistics.tasks.get(name, 0) if name in statistics.tasks else statistics.calls[name])

    def has_waiters(self, count: int) -> bool:
        """Return True if exactly `count` callers wait on the tube."""
        return eventually(lambda: self.tube.statistics().waiting == count)

    @staticmethod
    def result_of(call: Future[T]) -> T:
        """Return the result of a call that has one, or raise its exception."""
        return call.result(timeout=PATIENCE)

    def snapshot(self) -> object:
        """Return the complete visible state of the tube."""
        return [self._peek(id) for id in self._ids], self.tube.statistics()

    def changes_state(self, task: Task, before: str, now: str, *, after: float) -> bool:
        """Return True if a task changes its state exactly `after` seconds from now."""
        self.pass_time(after - 0.001)
        assert self.state(task) == before
        self.clock.advance(0.001)
        assert self.state(task) == now
        return True

    def refuses(self, call: Callable[[Any], object], *values: object, error: type[TubesError] = InvalidOption) -> bool:
        """Return True if the call raises this error for each value and changes nothing."""
        for value in values:
            with self.expect_error(error):
                call(value)
        return True

    @contextmanager
    def expect_error(self, error: type[TubesError], match: str | None = None) -> Generator[None]:
        """Check that the block raises this error and changes nothing."""
        with self.expect_no_change(), pytest.raises(error, match=match):
            yield

    @contextmanager
    def expect_no_change(self) -> Generator[None]:
        """Check that the block changes nothing visible in the tube."""
        before = self.snapshot()
        yield
        assert self.snapshot() == before
