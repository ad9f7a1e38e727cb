"""Where the time of a cycle goes: `python -m benchmarks.hotspots [subject …]`.

For each subject: what its operations cost as a multiple of `queue.Queue`'s, the parts that they are made of, and
cProfile's list of functions. A profiler slows calls more than anything else, so believe its counts rather than its
times, and the parts, which are timed without it, rather than its sums.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

from benchmarks.subjects import PAYLOAD, QUEUE, TUBES, Stage, Subject, fill

_WAITING = 1000
_COUNT = 500
_ROUNDS = 40


def fastest(round_of: Callable[[], float]) -> float:
    """Nanoseconds per operation of the fastest round: what is on top of it is noise."""
    return min(round_of() for _ in range(_ROUNDS)) / _COUNT * 1e9


def operations(stage: Stage) -> dict[str, float]:
    """Nanoseconds of each operation."""

    def timed(act: Callable[[Any], None], batch: Any) -> float:
        start = perf_counter()
        act(batch)
        return perf_counter() - start

    def put() -> float:
        batch = stage.batch(_COUNT)
        spent = timed(stage.put, batch)
        stage.take_ack(batch)
        return spent

    def take_ack() -> float:
        batch = stage.batch(_COUNT)
        stage.put(batch)
        return timed(stage.take_ack, batch)

    return {
        "put": fastest(put),
        "take + ack": fastest(take_ack),
        "cycle": fastest(lambda: timed(stage.cycle, stage.batch(_COUNT))),
    }


def engine_cycle(stage: Any) -> float:
    """Nanoseconds of a cycle of the engine alone, without sessions, locks, checks and answers."""
    tube = stage._tube
    engine, hold, check = tube._port.home.engine, tube._port.hold, tube.driver.check_put

    def cycle() -> float:
        batch = [check(options) for options in stage.batch(_COUNT)]
        now = tube._port.clock.micros()
        start = perf_counter()
        for options in batch:
            engine.put(now, PAYLOAD, options)
            engine.ack(now, engine.take(now, hold))
        return perf_counter() - start

    return fastest(cycle)


def show(subject: Subject, yardstick: dict[str, float]) -> None:
    """Print what is known of one subject."""
    stage: Any = subject.stage()
    fill(stage, _WAITING)
    print(f"\n== {subject.name}, {_WAITING:,} waiting")
    for name, nanoseconds in operations(stage).items():
        print(f"{name:24}{nanoseconds:8,.0f} ns {nanoseconds / yardstick[name]:6.2f} x {subject.yardstick.name}")
    alone = engine_cycle(stage)
    print(f"{'the engine of a cycle':24}{alone:8,.0f} ns {alone / yardstick['cycle']:6.2f}")
    profile = cProfile.Profile()
    profile.runcall(stage.cycle, stage.batch(10 * _COUNT))
    pstats.Stats(profile).sort_stats("tottime").print_stats(15)
    stage.close()


def main(names: list[str]) -> None:
    known = {subject.name: subject for subject in TUBES}
    stage = QUEUE.stage()
    fill(stage, _WAITING)
    yardstick = operations(stage)
    for name in names or ["fifo", "utubettl, own ttl, ttr, 10 priorities"]:
        if name not in known:
            raise SystemExit(f"{name!r} is none of: {'; '.join(known)}")
        show(known[name], yardstick)


if __name__ == "__main__":
    main(sys.argv[1:])
