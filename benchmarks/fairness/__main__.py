"""Measure how long quiet tenants wait for a noisy one: `python -m benchmarks.fairness [-k PART] [--tasks N]`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import tubes
from benchmarks.scale.places import Memory, Place, Server, fill
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.report import Row, percentiles, run_cases
from tests.contract.bench import eventually

QUIET = [f"quiet-{number}" for number in range(9)]
#: Tasks per quiet tenant, and takes for a rate.
FEW, TAKES = 100, 2_000
#: Waiting consumers, and seconds for which they wait.
CONSUMERS, IDLE = 100, 5


def measure_waits(place: Place, order: str, weight: int | None, tasks: int) -> list[Row]:
    """Return how long the tasks of quiet tenants wait behind those of a noisy one, for one consumer."""
    is_fifo = order == "fifo"
    driver = "fifo" if is_fifo else "utube"
    options: dict[str, Any] = {} if is_fifo else {"order": order}

    def item(name: str) -> tubes.Item[Any]:
        return tubes.Item(place.payload) if is_fifo else tubes.Item(place.payload, utube=name)

    with place.connect() as queue:
        tube: Any = queue.create_tube("tenants", driver, **options)
        for name in QUIET if weight else ():
            tube.lane(name).configure(weight=weight)
        fill(tube, (item("noisy") for _ in range(tasks)))
        fill(tube, (item(name) for _ in range(FEW) for name in QUIET))
        waits: list[float] = []
        began = time.perf_counter()
        while len(waits) < FEW * len(QUIET):
            task = tube.take(timeout=0)
            if task.id >= tasks:
                waits.append(time.perf_counter() - began)
            tube.ack(task)
        tube.drop(force=True)
    name = f"{order}, quiet lanes of weight {weight}" if weight else order
    return [{"place": place.name, "subject": name, "noisy tasks": tasks, **percentiles(waits, 50, 99)}]


def measure_rate(place: Place, lanes: int, weight: int | None) -> list[Row]:
    """Return the rate of takes and acks with many lanes that have tasks."""
    with place.connect() as queue:
        tube: Any = queue.create_tube("lanes", "utube", order="round_robin")
        if weight:
            tube.lane("0").configure(weight=weight)
        count = max(lanes, TAKES)
        fill(tube, (tubes.Item(place.payload, utube=str(number % lanes)) for number in range(count)))
        began = time.perf_counter()
        for _ in range(TAKES):
            tube.ack(tube.take(timeout=0))
        rate = TAKES / (time.perf_counter() - began)
        tube.drop(force=True)
    name = "round_robin, one lane with a weight" if weight else "round_robin"
    return [{"place": place.name, "subject": name, "lanes": lanes, "takes and acks per s": rate}]


def measure_idle(place: Place) -> list[Row]:
    """Return the processor time of this process while consumers wait."""
    with place.connect() as queue:
        tube: Any = queue.create_tube("idle", "utube", order="round_robin")
        threads = [threading.Thread(target=tube.take, kwargs={"timeout": IDLE + 5}) for _ in range(CONSUMERS)]
        for thread in threads:
            thread.start()
        assert eventually(lambda: tube.statistics().waiting == CONSUMERS)
        began = time.process_time()
        time.sleep(IDLE)
        spent = time.process_time() - began
        for thread in threads:
            thread.join()
    return [{"place": place.name, "subject": f"{CONSUMERS} waiting consumers", "idle CPU ms per s": spent / IDLE * 1e3}]


def main() -> None:
    """Measure all cases, and keep the results."""
    parser = parser_of("fairness", __doc__)
    parser.add_argument("--tasks", type=int, default=100_000, help="of the noisy tenant; also a number of lanes")
    args = parser.parse_args()
    cases: list[tuple[str, Callable[[], list[Row]]]] = []
    with Server() as server:
        places: list[Place] = [Memory(), server]
        for place in places:
            for order, weight in (("fifo", None), ("round_robin", None), ("round_robin", 3)):
                cases.append((f"{place.name} wait {order}", partial(measure_waits, place, order, weight, args.tasks)))
            for lanes in (1, 100, args.tasks, 10 * args.tasks):
                for weight in (None, 3):
                    cases.append((f"{place.name} rate {lanes}", partial(measure_rate, place, lanes, weight)))
            cases.append((f"{place.name} idle", partial(measure_idle, place)))
        run_cases(Path(__file__).parent, cases, args.k)


if __name__ == "__main__":
    main()
