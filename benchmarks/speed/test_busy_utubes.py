"""Waiting tasks of busy utubes do not slow down takes of other tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import tubes
from benchmarks.shared.tasks import PAYLOAD
from benchmarks.speed.conftest import Scale, Stopwatch, scale_of
from benchmarks.speed.table import Comparison, Results

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_DRIVERS = ("utube", "utubettl")
_CONSUMERS = 10
_WAITING = 10_000


class Case(NamedTuple):
    """A driver with few or many waiting tasks."""

    driver: str
    waiting: int


class AllBusy:
    """One utube per session; each session has taken a task of its utube."""

    def __init__(self, case: Case) -> None:
        self._queue = tubes.connect()
        self._tube = self._queue.create_tube("benchmark", case.driver)
        for number in range(case.waiting * _CONSUMERS):
            self._tube.put(PAYLOAD, utube=f"host-{number % _CONSUMERS}")
        self._sessions = [self._queue.session() for _ in range(_CONSUMERS)]
        self._consumers: list[Any] = [session.tube("benchmark") for session in self._sessions]
        self._tasks: list[Any] = [tube.take(timeout=0) for tube in self._consumers]
        assert len({task.utube for task in self._tasks}) == _CONSUMERS

    def run_cycles(self, count: int) -> None:
        """Let each session in turn ack its task, put another one into the same utube and take the next."""
        tasks = self._tasks
        consumers = [(number, tube.put, tube.take, tube.ack) for number, tube in enumerate(self._consumers)]
        for _ in range(count // _CONSUMERS):
            for number, put, take, ack in consumers:
                done = tasks[number]
                ack(done)
                put(PAYLOAD, utube=done.utube)
                tasks[number] = take(timeout=0)

    def close(self) -> None:
        self._tube.truncate()
        for session in self._sessions:
            session.close()
        self._queue.close()


class OneBusy:
    """One utube with a taken task and many waiting ones, and another utube with 1,000 tasks."""

    def __init__(self, case: Case) -> None:
        self._queue = tubes.connect()
        self._tube: Any = self._queue.create_tube("benchmark", case.driver)
        self._tube.put(PAYLOAD, utube="busy")
        self._tube.take(timeout=0)
        for _ in range(case.waiting):
            self._tube.put(PAYLOAD, utube="busy")
        for _ in range(1000):
            self._tube.put(PAYLOAD, utube="free")

    def put(self, count: int) -> None:
        put = self._tube.put
        for _ in range(count):
            put(PAYLOAD, utube="free")

    def take_ack(self, count: int) -> None:
        take, ack = self._tube.take, self._tube.ack
        for _ in range(count):
            ack(take(timeout=0))

    def close(self) -> None:
        self._tube.truncate()
        self._queue.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run few and many tasks one after the other, so that noise affects both equally."""
    scale = scale_of(metafunc.config)
    sizes = scale.busy_sizes if "all_busy" in metafunc.fixturenames else (0, _WAITING)
    cases = [
        pytest.param(Case(driver, waiting), id=f"{driver}-{waiting}-{turn}")
        for driver in _DRIVERS
        for turn in range(scale.passes)
        for waiting in sizes
    ]
    metafunc.parametrize("case", cases)


class Shelf(dict[Case, Any]):
    """Stages of one driver, created on first access; those of the previous driver are closed."""

    def __init__(self, make: Callable[[Case], Any], freeze_tasks: Callable[[], None]) -> None:
        self._make = make
        self._freeze_tasks = freeze_tasks

    def __missing__(self, case: Case) -> Any:
        if any(other.driver != case.driver for other in self):
            self.close()
        stage = self[case] = self._make(case)
        self._freeze_tasks()
        return stage

    def close(self) -> None:
        for stage in self.values():
            stage.close()
        self.clear()


@pytest.fixture(scope="module")
def open_all_busy(freeze_tasks: Callable[[], None]) -> Generator[Shelf]:
    shelf = Shelf(AllBusy, freeze_tasks)
    yield shelf
    shelf.close()


@pytest.fixture(scope="module")
def open_one_busy(freeze_tasks: Callable[[], None]) -> Generator[Shelf]:
    shelf = Shelf(OneBusy, freeze_tasks)
    yield shelf
    shelf.close()


def test_cycle_where_all_utubes_are_busy(
    stopwatch: Stopwatch, case: Case, open_all_busy: Shelf, scale: Scale, results: Results
) -> None:
    stage: AllBusy = open_all_busy[case]
    seconds = stopwatch.seconds(stage.run_cycles, scale.operations)
    few, many = scale.busy_sizes
    what = f"{case.driver}: cycle of {_CONSUMERS} sessions, {many:,} tasks in each of {_CONSUMERS} utubes"
    comparison = Comparison("busy utubes", what, f"{few:,} in each", goal=1.5)
    if seconds is not None:
        results.compare(comparison, "ours" if case.waiting == many else "yardstick", seconds / scale.operations)


def test_take_with_another_busy_utube(
    stopwatch: Stopwatch, case: Case, open_one_busy: Shelf, scale: Scale, results: Results
) -> None:
    stage: OneBusy = open_one_busy[case]

    def put() -> int:
        stage.put(scale.operations)
        return scale.operations

    seconds = stopwatch.seconds(stage.take_ack, before=put)
    what = f"{case.driver}: take + ack, {_WAITING:,} tasks in a busy utube"
    comparison = Comparison("busy utubes", what, "empty busy utube", goal=1.1)
    if seconds is not None:
        results.compare(comparison, "ours" if case.waiting else "yardstick", seconds / scale.operations)
