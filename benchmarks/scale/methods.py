"""Each call of each driver, with few and many waiting tasks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import tubes
from benchmarks.scale.figures import Figures, Subject, measure_interleaved
from benchmarks.scale.places import Place, fill, mark_finished
from benchmarks.shared.tasks import TTL, TTR

DRIVERS: Final = ("fifo", "fifottl", "utube", "utubettl")
#: The number of utubes, unless each task has a separate one.
UTUBES: Final = 1000
PRIORITIES: Final = 10


class Crowd:
    """A tube with waiting tasks, spread over utubes."""

    def __init__(self, queue: tubes.Queue, driver: str, payload: Any, waiting: int, utubes: int = UTUBES) -> None:
        self.tube: Any = queue.create_tube(f"{driver}-{waiting}-{utubes}", driver)
        self._payload = payload
        self._utubes = utubes
        self._spans: dict[str, Any] = {"ttl": TTL, "ttr": TTR} if "ttl" in driver else {}
        self._puts = 0
        self._rng = random.Random(1)
        fill(self.tube, self._items(waiting), **self._spans)

    def _items(self, count: int) -> Iterator[Any]:
        return (tubes.Item(self._payload, **options) if options else self._payload for options in self._options(count))

    def _options(self, count: int) -> Iterator[dict[str, Any]]:
        """Yield the options of the next `count` puts."""
        lanes = self.tube.driver.lane
        for number in range(self._puts, self._puts + count):
            options: dict[str, Any] = {}
            turn, utube = divmod(number, self._utubes)
            if lanes:
                options["utube"] = f"host-{utube}"
            if self._spans:
                # Shift the priority after each cycle over the utubes, so that each utube gets all priorities.
                options["pri"] = (utube + turn if lanes else number) % PRIORITIES
            yield options
        self._puts += count

    def round(self, place: Place, count: int) -> Iterator[tuple[str, float]]:
        """Call each method `count` times or more; yield its seconds per call. The tube keeps its number of tasks."""
        tube, payload, spans = self.tube, self._payload, self._spans
        arguments = [options | spans for options in self._options(2 * count)]
        put: list[tubes.Task] = []
        taken: list[tubes.Task] = []

        def each(method: Any, tasks: list[Any]) -> float:
            def act() -> None:
                for task in tasks:
                    method(task)

            return place.seconds(act) / len(tasks)

        def put_one(options: dict[str, Any]) -> None:
            put.append(tube.put(payload, **options))

        def take_one(_: Any) -> None:
            taken.append(tube.take(timeout=0))

        def touch_one(task: tubes.Task) -> None:
            tube.touch(task, 1)

        def kick_one(_: Any) -> None:
            tube.select("buried", limit=1).kick()

        yield "put", each(put_one, arguments)
        yield "take", each(take_one, arguments)
        if spans:
            yield "touch", each(touch_one, taken[:count])
        # The tasks taken last return to their places, which are not the first ones any longer.
        returned = taken[count:]
        self._rng.shuffle(returned)
        yield "release", each(tube.release, returned)
        yield "ack", each(tube.ack, taken[:count])
        acked = {task.id for task in taken[:count]}
        remaining = [task.id for task in put + returned if task.id not in acked][:count]
        self._rng.shuffle(remaining)
        yield "peek", each(tube.peek, remaining)
        yield "bury", each(tube.bury, remaining)
        yield "kick", each(kick_one, remaining)
        yield "delete", each(tube.delete, remaining)


def measure(
    figures: Figures, place: Place, driver: str, sizes: list[int], rounds: int, count: int, alone: bool = False
) -> None:
    """Measure a driver at each size; with `alone`, each task has a separate utube."""
    name = f"{driver}, a utube per task" if alone else driver
    unit = "utubes of one task" if alone else "waiting tasks"
    subject = Subject(place.name, name, unit, place.by_server)
    with mark_finished() as freeze_tasks, place.connect() as queue:
        crowds = {
            size: Crowd(queue, driver, place.payload, size, 10 * max(sizes) if alone else UTUBES) for size in sizes
        }
        freeze_tasks()

        def one(size: int) -> None:
            for method, seconds in crowds[size].round(place, count):
                figures.record(subject, size, method, seconds)

        # Ignore the first round, whose caches are in the state after filling.
        for crowd in crowds.values():
            list(crowd.round(place, count))
        measure_interleaved(rounds, sizes, one)
        for crowd in crowds.values():
            crowd.tube.drop(force=True)
