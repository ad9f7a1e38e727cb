"""What every subject of the contract stands on: a queue, a tube, a clock that stands still, a few helpers."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import pytest

from tubes import Driver, DriverNotFound, InvalidOption, TaskNotFound, TubesError
from tubes.conformance.faces import AioFace, Face, SyncFace
from tubes.drivers.options import micros
from tubes.drivers.registry import Registry
from tubes.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from tubes import AsyncTube, Queue, Task

T = TypeVar("T")
#: How many real seconds a call may take to come back, and an event to be heard.
PATIENCE = 10.0


def needs(*knobs: str) -> Callable[[T], T]:
    """The test is about options or knobs; a driver that lacks one skips it. Of a class: each of its tests is."""
    return _mark("needs", knobs)


def lacks(*knobs: str) -> Callable[[T], T]:
    """The test is about drivers without these options or knobs; a driver that has one skips it."""
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
    """Whether a driver has this option or knob."""
    return knob in driver.options or bool(getattr(driver, knob, None))


def why_not(driver: Driver, test: object) -> str:
    """Why this test is not for this driver, by what `needs` and `lacks` say; empty: it is."""
    for knob in getattr(test, "needs", ()):
        if not knows(driver, knob):
            return f"driver {driver.name!r} has no {knob}"
    for knob in getattr(test, "lacks", ()):
        if knows(driver, knob):
            return f"driver {driver.name!r} has {knob}"
    return ""


def eventually(question: Callable[[], bool]) -> bool:
    """Whether the answer becomes yes soon: for what another thread is about to do, never for time to pass."""
    patience = time.monotonic() + PATIENCE
    while not question():
        if time.monotonic() > patience:
            return False
        time.sleep(0.0002)
    return True


class RankedTask(NamedTuple):
    """What a rank hook may look at."""

    id: int
    pri: int
    created: int


class Worker(NamedTuple):
    """A session of its own, and the tube as it sees it."""

    queue: Any
    tube: Any


class Bench:
    """A tube of `driver`, new in every test, once per face.

    `driver`: a registered name, or a `Driver`. It must be named.
    `options`: options for `create_tube` without which the driver makes no sense; most have none.
    `session_ttl`: the lease in seconds that `connect` asks for.
    `faces`: those on which each test runs.
    """

    driver: str | Driver
    faces: ClassVar[Sequence[type[Face]]] = (SyncFace, AioFace)
    options: ClassVar[Mapping[str, object]] = {}
    session_ttl: float = 30.0

    def connect(self, face: Face, clock: ManualClock) -> Any:
        """An empty queue of its own for one test. Override it for another backend, or to pass options.

        >>> class InRedis(Bench):
        ...     def connect(self, face, clock):
        ...         return face.connect("redis://localhost/0?prefix=" + uuid4().hex, clock=clock)
        """
        return face.connect("memory://", clock=clock, session_ttl=self.session_ttl)

    face: Face
    clock: ManualClock
    #: The session that most tests work in, and its tube.
    queue: Any
    tube: Any
    #: The driver as a value.
    knobs: Driver

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Each test once per face."""
        metafunc.parametrize("_face", self.faces, ids=[face.name for face in self.faces])

    @pytest.fixture(autouse=True)
    def _bench(self, request: pytest.FixtureRequest, _face: type[Face]) -> Iterator[None]:
        if not hasattr(self, "driver"):
            pytest.fail(f"{type(self).__name__} names no driver: set `driver = ...` in the class", pytrace=False)
        # Before anything is made, where it is known already: a name may be one that `connect` registers.
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
        if why := why_not(self.knobs, test):
            pytest.skip(why)

    def require(self, *knobs: str) -> None:
        """Skip the test unless the driver has all of these; an empty name asks for nothing."""
        for knob in knobs:
            if knob and not self.knows(knob):
                pytest.skip(f"driver {self.knobs.name!r} has no {knob}")

    def knows(self, knob: str) -> bool:
        """Whether the driver has this option or knob."""
        return knows(self.knobs, knob)

    def cancelling(self) -> AioFace:
        """The face whose calls can be cancelled; on the other one the test is skipped."""
        if not isinstance(self.face, AioFace):
            pytest.skip("a thread that waits cannot be cancelled")
        return self.face

    def cancels_late(
        self, call: Callable[[], Awaitable[object]], tube: AsyncTube, serve: Callable[[], Awaitable[object]]
    ) -> bool:
        """Cancel a call that waits on a tube right after what serves it; whether the call ended as cancelled.

        A backend that answers on its way may be in time; then what was taken is taken, and stays so.
        """

        async def run() -> bool:
            waiting = asyncio.ensure_future(call())
            # That it is counted is the only sign that it waits.
            while not (await tube.statistics()).waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await serve()
            waiting.cancel()
            await asyncio.wait([waiting])
            return waiting.cancelled()

        return bool(self.cancelling().run(run()))

    # -- acting ----------------------------------------------------------------------------------------------

    def create(self, name: str, **options: object) -> Any:
        """Another tube with this driver."""
        return self.queue.create_tube(name, self.driver, **{**self.options, **options})

    def put(self, data: object = None, *, tube: Any = None, **options: object) -> Task:
        """Put a task, in a lane of its own unless one is named: most rules are of tasks that don't meet."""
        if self.knobs.lane is not None and self.knobs.lane not in options:
            options[self.knobs.lane] = f"own-{len(self._ids)}"
        task: Task = (self.tube if tube is None else tube).put(data, **options)
        self._ids.append(task.id)
        return task

    def puts(self, count: int) -> list[Task]:
        """Put so many tasks; answers them in the order in which they will be taken."""
        return self.in_order([self.put() for _ in range(count)])

    def lane(self, name: object) -> dict[str, Any]:
        """The option that names this lane; none where the driver has no lanes."""
        return {} if self.knobs.lane is None else {self.knobs.lane: name}

    def take(self, tube: Any = None) -> Task:
        """The next task, which must be there."""
        task: Task | None = (self.tube if tube is None else tube).take(timeout=0)
        assert task is not None
        return task

    def taken(self, **options: object) -> Task:
        """A new task, taken by the first session. The tube must have nothing else to take."""
        put = self.put(**options)
        task = self.take()
        assert task.id == put.id
        return task

    def buried(self, **options: object) -> Task:
        """A new task, buried."""
        task: Task = self.tube.bury(self.put(**options).id)
        return task

    def drain(self) -> list[int]:
        """Take whatever can be taken; the ids in that order."""
        return [task.id for task in iter(lambda: self.tube.take(timeout=0), None)]

    def another(self) -> Worker:
        """Another session on the same tube."""
        queue = self.queue.session()
        self._queues.append(queue)
        return Worker(queue, queue.tube(self.tube.name))

    def begin(self, tube: object = None, verb: str = "take", *args: object, **options: object) -> Future[Any]:
        """Start a call that waits, without waiting for its answer."""
        return self.face.begin(self.tube if tube is None else tube, verb, *args, **options)

    def pass_time(self, seconds: float) -> float:
        """Let time pass; answers what time it is then."""
        self.clock.advance(seconds)
        return self.clock.now()

    def listen(self) -> list[tuple[str, int, str]]:
        """A list to which every change of the tube is added from now on: event, id, state."""
        heard: list[tuple[str, int, str]] = []

        def callback(task: Task, event: str) -> None:
            heard.append((event, task.id, str(task.state)))

        self.tube.on_task_change(callback)
        return heard

    @staticmethod
    def heard(heard: list[tuple[str, int, str]], expected: list[tuple[str, int, str]]) -> bool:
        """Whether a list that `listen` answered holds just these changes, now or as soon as they are told."""
        eventually(lambda: len(heard) >= len(expected))
        assert heard == expected
        return True

    # -- looking ---------------------------------------------------------------------------------------------

    def in_order(self, tasks: list[Task]) -> list[Task]:
        """These tasks in the order in which the driver's knobs say that they come."""
        driver = self.knobs
        if driver.rank is not None:
            rank = driver.rank
            ranks = {task.id: rank(RankedTask(task.id, task.pri, micros("created", task.created))) for task in tasks}
            return sorted(tasks, key=lambda task: (ranks[task.id], task.id))
        pri, _, id = driver.order.rpartition(",") if "id" in driver.order else (driver.order, "", "id")
        signs = {"": 0, "pri": 1, "-pri": -1, "id": 1, "-id": -1}
        return sorted(tasks, key=lambda task: (signs[pri] * task.pri, signs[id] * task.id))

    def state(self, task: Task) -> str:
        """The task's state now, as a word; `done` if it is gone."""
        found = self._peek(task.id)
        return "done" if found is None else str(found.state)

    def _peek(self, id: int) -> Task | None:
        try:
            task: Task = self.tube.peek(id)
        except TaskNotFound:
            return None
        return task

    def count(self, name: str) -> int:
        """One of the counts of tasks, or one of the counts of calls."""
        statistics = self.tube.statistics()
        return int(statistics.tasks.get(name, 0) if name in statistics.tasks else statistics.calls[name])

    def waiting(self, count: int) -> bool:
        """Whether so many callers wait on the tube."""
        return eventually(lambda: self.tube.statistics().waiting == count)

    @staticmethod
    def got(call: Future[T]) -> T:
        """The answer of a call that has been given one. Raises what the call raised."""
        return call.result(timeout=PATIENCE)

    def everything(self) -> object:
        """All that can be seen of the tube."""
        return [self._peek(id) for id in self._ids], self.tube.statistics()

    def turns(self, task: Task, before: str, now: str, *, after: float) -> bool:
        """Whether a task stays in one state until so many seconds have passed, and is in another one then."""
        self.pass_time(after - 0.001)
        assert self.state(task) == before
        self.clock.advance(0.001)
        assert self.state(task) == now
        return True

    def refuses(self, call: Callable[[Any], object], *values: object, error: type[TubesError] = InvalidOption) -> bool:
        """Whether a call with each of these raises this error, and changes nothing."""
        for value in values:
            with self.refused(error):
                call(value)
        return True

    @contextmanager
    def refused(self, error: type[TubesError], match: str | None = None) -> Generator[None]:
        """The block raises this error, and changes nothing."""
        with self.unchanged(), pytest.raises(error, match=match):
            yield

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """The block changes nothing that can be seen of the tube."""
        before = self.everything()
        yield
        assert self.everything() == before
