"""Throttled utubes, many with one task each or one with many, compared with utubes of a plain tube.

And the options of a polite tube, each alone and together.
"""

from __future__ import annotations

import gc
import tracemalloc
from itertools import count
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, Final

import pytest

import tubes
from benchmarks.shared.tasks import PAYLOAD
from benchmarks.speed.conftest import Scale, Stopwatch, scale_of
from benchmarks.speed.subjects import UTUBES
from benchmarks.speed.table import Comparison, Results, Side
from tubes.testing import LocalServer, server_program

if TYPE_CHECKING:
    from collections.abc import Generator

_SECTION: Final = "throttled"
# The divisor of the number of tasks on a server, where they are put one by one.
_FEWER: Final = 20
#: Options of the lanes of a tube: a long interval for many lanes, and a tiny one for a single lane to allow takes.
_MANY: Final[dict[str, Any]] = {"interval": 3600, "jitter": 0.1, "max_in_flight": 2, "order": "round_robin"}
_ONE: Final[dict[str, Any]] = {**_MANY, "interval": 0.000_001}
#: Options of a polite tube, and whether its tasks have keys. The lanes are free again at once, to allow takes.
_INTERVAL: Final[dict[str, Any]] = {"interval": 0.000_001}
_ROUND_ROBIN: Final[dict[str, Any]] = {"order": "round_robin"}
_KEYS: Final[dict[str, Any]] = {"key_ttl": 3600}
POLITE: Final[dict[str, tuple[dict[str, Any], bool]]] = {
    "interval": (_INTERVAL, False),
    "round robin": (_ROUND_ROBIN, False),
    "keys": (_KEYS, True),
    "rate": ({"rate": 1_000_000, "burst": 1_000_000}, False),
    "capacity": ({"capacity": 1_000_000}, False),
    "lane_capacity": ({"lane_capacity": 1_000_000}, False),
    "max_in_flight": ({"max_in_flight": 2}, False),
    "polite": ({**_INTERVAL, **_ROUND_ROBIN, **_KEYS, "max_attempts": 3}, True),
}
_GOAL, _POLITE_GOAL = 1.5, 2.2
SHAPES: Final = {"utubes with one task each": _MANY, "tasks in one utube": _ONE}


class Crowd:
    """A tube with waiting tasks, each in a separate lane or all in one."""

    def __init__(self, url: str, shape: str, side: Side, waiting: int) -> None:
        self._queue = tubes.connect(url)
        options = SHAPES[shape] if side == "ours" else {}
        self._tube = self._queue.create_tube(f"benchmark-{side}", "utube", **options)
        numbers = count()
        self._lanes = (f"host-{next(numbers)}" if shape.startswith("utubes") else "host" for _ in numbers)
        self.fill(waiting)

    def fill(self, waiting: int) -> None:
        """Put more tasks."""
        items = (tubes.Item(PAYLOAD, utube=next(self._lanes)) for _ in range(waiting))
        self._tube.put_many(items)

    def run_cycles(self, operations: int) -> None:
        """Put a task, take one and ack it."""
        put, take, ack, lanes = self._tube.put, self._tube.take, self._tube.ack, self._lanes
        for _ in range(operations):
            put(PAYLOAD, utube=next(lanes))
            task: Any = take(timeout=9)
            ack(task)

    def close(self) -> None:
        self._tube.drop(force=True)
        self._queue.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run both sides one after the other, so that noise affects both equally."""
    if "turn" in metafunc.fixturenames:
        metafunc.parametrize(("turn", "side"), [
            pytest.param(turn, side, id=f"{side}-{turn}")
            for turn in range(scale_of(metafunc.config).passes)
            for side in ("ours", "yardstick")
        ])  # fmt: skip


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["memory", "redis"])
def crowds(request: pytest.FixtureRequest, shape: str, scale: Scale) -> Generator[tuple[str, int, dict[Side, Crowd]]]:
    if request.param == "memory":
        waiting = scale.sizes[-1]
        sides: dict[Side, Crowd] = {side: Crowd("memory://", shape, side, waiting) for side in ("ours", "yardstick")}
        yield "memory", waiting, sides
        for crowd in sides.values():
            crowd.close()
        return
    program = server_program()
    if program is None:
        pytest.skip("no server is installed")
    waiting = scale.sizes[-1] // _FEWER
    with LocalServer(program) as server:
        sides = {side: Crowd(server.url, shape, side, waiting) for side in ("ours", "yardstick")}
        yield "redis", waiting, sides
        for crowd in sides.values():
            crowd.close()


def test_cycle(
    stopwatch: Stopwatch,
    shape: str,
    crowds: tuple[str, int, dict[Side, Crowd]],
    turn: int,
    side: Side,
    scale: Scale,
    results: Results,
) -> None:
    where, waiting, sides = crowds
    seconds = stopwatch.seconds(sides[side].run_cycles, scale.operations)
    if seconds is not None:
        comparison = Comparison(_SECTION, f"{where}: put + take + ack, {waiting:,} {shape}", "plain tube")
        results.compare(comparison, side, seconds / scale.operations)


def test_memory(shape: str, scale: Scale, results: Results) -> None:
    """All tasks share one data object; the names of utubes are new."""
    for side in ("ours", "yardstick"):
        crowd = Crowd("memory://", shape, side, 0)
        gc.collect()
        tracemalloc.start()
        try:
            crowd.fill(scale.memory_tasks)
            gc.collect()
            used, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            crowd.close()
        comparison = Comparison(_SECTION, f"memory: a waiting task, {shape}", "plain tube", unit="bytes")
        results.compare(comparison, side, used / scale.memory_tasks)


@pytest.fixture(scope="module", params=["memory", "valkey"])
def place(request: pytest.FixtureRequest) -> Generator[tuple[str, str]]:
    """Yield the name and the URL of a place for tubes."""
    if request.param == "memory":
        yield "memory", "memory://"
        return
    with LocalServer() as server:
        yield "valkey", server.url


@pytest.mark.parametrize("name", POLITE)
def test_polite(place: tuple[str, str], name: str, scale: Scale, results: Results) -> None:
    where, url = place
    options, has_keys = POLITE[name]
    goal = None if where != "memory" else _POLITE_GOAL if name == "polite" else _GOAL
    clock = process_time if where == "memory" else perf_counter
    comparison = Comparison(_SECTION, f"{where}: put + take + ack, {name}", "plain tube", goal=goal)
    with tubes.connect(url) as queue:
        plain: Any = queue.create_tube("plain", "utubettl", if_exists="keep")
        polite: Any = queue.create_tube(name.replace(" ", "_"), "utubettl", **options)
        sides: tuple[tuple[Side, Any], ...] = (("yardstick", plain), ("ours", polite))
        for turn in range(scale.passes * scale.rounds):
            for side, tube in sides:
                puts = [{"utube": UTUBES[number % 100]} for number in range(scale.operations)]
                if has_keys and tube is polite:
                    puts = [{**put, "key": f"https://{turn}/{number}"} for number, put in enumerate(puts)]
                start = clock()
                for put in puts:
                    tube.put(PAYLOAD, **put)
                for _ in puts:
                    tube.ack(tube.take(timeout=9))
                results.compare(comparison, side, (clock() - start) / scale.operations)
