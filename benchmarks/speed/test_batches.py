"""Batches in memory, compared with single calls."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest

import tubes
from benchmarks.shared.tasks import PAYLOAD, TTL
from benchmarks.speed.subjects import UTUBES
from benchmarks.speed.table import Comparison, Results

if TYPE_CHECKING:
    from benchmarks.speed.conftest import Scale

SIZE = 100
ITEMS: dict[str, list[Any]] = {
    "fifo": [PAYLOAD] * SIZE,
    "fifottl": [tubes.Item(PAYLOAD, ttl=TTL)] * SIZE,
    "utube": [tubes.Item(PAYLOAD, utube=utube) for utube in UTUBES[:SIZE]],
}


@pytest.mark.parametrize("driver", ITEMS)
def test_batches(driver: str, scale: Scale, results: Results) -> None:
    items = ITEMS[driver]
    with tubes.connect() as queue:
        tube = queue.create_tube("batches", driver)

        def put(tasks: list[Any]) -> list[Any]:
            for item in items:
                if item.__class__ is tubes.Item:
                    tube.put(item.data, **item.options)
                else:
                    tube.put(item)
            return []

        def take(tasks: list[Any]) -> list[Any]:
            return [tube.take(timeout=0) for _ in range(SIZE)]

        def ack(tasks: list[Any]) -> list[Any]:
            return [tube.ack(task) for task in tasks]

        def put_many(tasks: list[Any]) -> list[Any]:
            return tube.put_many(items)[:0]

        def take_many(tasks: list[Any]) -> list[Any]:
            return list(tube.take_many(SIZE, timeout=0))

        def ack_many(tasks: list[Any]) -> list[Any]:
            return list(tube.ack_many(tasks))

        pairs = {"put": (put, put_many), "take": (take, take_many), "ack": (ack, ack_many)}
        for _ in range(scale.passes):
            for side, place in (("yardstick", 0), ("ours", 1)):
                spent = dict.fromkeys(pairs, 0.0)
                for _ in range(scale.operations // SIZE):
                    tasks: list[Any] = []
                    for what, methods in pairs.items():
                        start = perf_counter()
                        tasks = methods[place](tasks)
                        spent[what] += perf_counter() - start
                for what, each in spent.items():
                    comparison = Comparison("batches", f"{what}_many of {SIZE}, per task", what, detail=driver)
                    results.compare(comparison, side, each / scale.operations)  # type: ignore[arg-type]
