"""put, take + ack, and the whole cycle: relative to the standard library's queues, and from few tasks to many."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from benchmarks.speed.conftest import Scale, Stopwatch, scale_of
from benchmarks.speed.subjects import SUBJECTS, Batch, Peer, Stage, Subject, fill
from benchmarks.speed.table import OPERATIONS, Comparison, Operation, Results, Side

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class Case(NamedTuple):
    """One side of an operation, in one pass."""

    subject: Subject
    operation: str
    waiting: int
    side: Subject | Peer


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the sides of a comparison and all sizes one after the other, so that noise affects all equally."""
    scale = scale_of(metafunc.config)
    cases = [
        pytest.param(
            Case(subject, operation, waiting, side),
            id=f"{subject.name}-{operation}-{waiting}-{side.name}-{turn}",
        )
        for subject in SUBJECTS
        for turn in range(scale.passes)
        for operation in OPERATIONS
        for waiting in scale.sizes
        for side in (subject, subject.yardstick)
    ]
    metafunc.parametrize("case", cases)


class Stages:
    """The stages of one subject and its yardstick; those of the previous subject are closed."""

    def __init__(self, scale: Scale, results: Results, freeze_tasks: Callable[[], None]) -> None:
        self._scale = scale
        self._results = results
        self._freeze_tasks = freeze_tasks
        self._subject: Subject | None = None
        self._stages: dict[tuple[str, int], Stage] = {}

    def of(self, case: Case) -> Stage:
        if case.subject is not self._subject:
            self.close()
            self._subject = case.subject
            for waiting in self._scale.sizes:
                yardstick = self._fill(case.subject.yardstick, waiting)
                ours = self._fill(case.subject, waiting)
                if waiting == self._scale.sizes[-1]:
                    what = f"{case.subject.name}: a put, until {waiting:,} wait"
                    filling = Comparison("filling", what, case.subject.yardstick.name)
                    self._results.compare(filling, "ours", ours)
                    self._results.compare(filling, "yardstick", yardstick)
            self._freeze_tasks()
        return self._stages[case.side.name, case.waiting]

    def _fill(self, side: Subject | Peer, waiting: int) -> float:
        """Make a stage and return the seconds per put."""
        stage = self._stages[side.name, waiting] = side.stage()
        return fill(stage, waiting) / waiting

    def close(self) -> None:
        for stage in self._stages.values():
            stage.close()
        self._stages.clear()
        self._subject = None


@pytest.fixture(scope="module")
def stages(scale: Scale, results: Results, freeze_tasks: Callable[[], None]) -> Generator[Stages]:
    stages = Stages(scale, results, freeze_tasks)
    yield stages
    stages.close()


def test_operation(stopwatch: Stopwatch, case: Case, stages: Stages, scale: Scale, results: Results) -> None:
    seconds = measure(stopwatch, stages.of(case), case.operation, scale.operations)
    if seconds is not None:
        note(results, case, seconds / scale.operations, scale.sizes)


def measure(stopwatch: Stopwatch, stage: Stage, operation: str, count: int) -> float | None:
    """Time one operation; each round starts and ends with the original number of waiting tasks."""

    def batch() -> Batch:
        return stage.batch(count)

    def batch_put() -> Batch:
        stage.put(made := batch())
        return made

    if operation == "put":
        return stopwatch.seconds(stage.put, before=batch, after=stage.take_ack)
    if operation == "take + ack":
        return stopwatch.seconds(stage.take_ack, before=batch_put)
    return stopwatch.seconds(stage.cycle, before=batch)


def note(results: Results, case: Case, seconds: float, sizes: tuple[int, ...]) -> None:
    """Record a figure for each table that shows it."""
    subject = case.subject
    side: Side = "ours" if case.side is subject else "yardstick"
    few, many = sizes[0], sizes[-1]
    results.operation(Operation(subject.name, case.waiting, case.operation), side, seconds)
    if case.operation == "cycle" and case.waiting == few:
        beside = Comparison(
            "cycle", f"{subject.name}: cycle", subject.yardstick.name, goal=subject.goal, later=subject.later
        )
        results.compare(beside, side, seconds)
    if subject.must_stay_flat and case.side is subject and case.waiting in (few, many):
        flat = Comparison("size", f"{subject.name}, {many:,} waiting", f"{few:,} waiting", case.operation, 2)
        results.compare(flat, "ours" if case.waiting == many else "yardstick", seconds)
