"""Busy utubes with many waiting tasks each, and delayed tasks that are all due at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any, Final

import tubes
from benchmarks.scale.figures import Figures, Subject, measure_interleaved
from benchmarks.scale.places import Place, fill, mark_finished
from tubes.testing import ManualClock

BUSY: Final = 10
#: Seconds until all tasks are due.
DELAY: Final = 60


class Busy:
    """Busy utubes: each has a taken task and many waiting ones."""

    def __init__(self, place: Place, driver: str, waiting: int) -> None:
        self.queue = place.connect()
        self._place = place
        tube = self.queue.create_tube(f"busy-{driver}-{waiting}", driver)
        lanes = [f"host-{number}" for number in range(BUSY)]
        fill(tube, (tubes.Item(place.payload, utube=lanes[number % BUSY]) for number in range(waiting * BUSY)))
        sessions = [self.queue.session() for _ in range(BUSY)]
        self._tubes: list[Any] = [session.tube(tube.name) for session in sessions]
        self._tasks: list[Any] = [tube.take(timeout=0) for tube in self._tubes]
        assert {task.utube for task in self._tasks} == set(lanes)

    def round(self, turns: int) -> dict[str, float]:
        """Let every session, in each turn, ack its task, put another one into the same utube and take the next."""
        spent: dict[str, float] = {}

        def ack() -> None:
            for number, tube in enumerate(self._tubes):
                tube.ack(self._tasks[number])

        def put() -> None:
            for number, tube in enumerate(self._tubes):
                tube.put(self._place.payload, utube=self._tasks[number].utube)

        def take() -> None:
            self._tasks = [tube.take(timeout=0) for tube in self._tubes]

        for _ in range(turns):
            for method, act in (("ack", ack), ("put", put), ("take", take)):
                spent[method] = spent.get(method, 0.0) + self._place.seconds(act)
        return {method: seconds / turns / BUSY for method, seconds in spent.items()}


def measure_busy(figures: Figures, place: Place, driver: str, sizes: list[int], rounds: int, turns: int) -> None:
    """Measure the calls of the sessions that work on `BUSY` utubes with a taken task each."""
    subject = Subject(place.name, f"{driver}, {BUSY} busy utubes", "tasks in each", place.by_server)
    with mark_finished() as freeze_tasks:
        crowds = {size: Busy(place, driver, size) for size in sizes}
        freeze_tasks()

        def one(size: int) -> None:
            for method, seconds in crowds[size].round(turns).items():
                figures.record(subject, size, method, seconds)

        for crowd in crowds.values():
            crowd.round(turns)
        measure_interleaved(rounds, sizes, one)
        for size, crowd in crowds.items():
            crowd.queue.tube(f"busy-{driver}-{size}").drop(force=True)
            crowd.queue.close()


def measure_due(figures: Figures, place: Place, sizes: list[int], rounds: int) -> None:
    """Measure tasks that are all due at one moment: the average take and the longest call, in the caller's time.

    On a server, also measure the longest script.
    """
    subject = Subject(place.name, "fifottl, delayed", "tasks due at once")
    names = count()

    def one(size: int) -> None:
        clock = ManualClock()
        with mark_finished() as freeze_tasks, place.connect(clock) as queue:
            tube: Any = queue.create_tube(f"due-{next(names)}", "fifottl")
            fill(tube, (place.payload for _ in range(size)), delay=DELAY)
            freeze_tasks()
            place.longest_script()
            spans: list[float] = []

            def run_timed(act: Callable[[], object]) -> object:
                began = time.perf_counter()
                result = act()
                spans.append(time.perf_counter() - began)
                return result

            run_timed(lambda: clock.advance(DELAY))
            for _ in range(size):
                assert run_timed(lambda: tube.take(timeout=0)) is not None
            figures.record(subject, size, "take", sum(spans) / size)
            figures.record(subject, size, "longest call", max(spans))
            if longest := place.longest_script():
                figures.record(subject, size, "longest script", longest)
            tube.drop(force=True)

    measure_interleaved(rounds, sizes, one)
