"""Measure how late delayed tasks are: `python -m benchmarks.precision [--tasks N]`."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import tubes
from benchmarks.scale.places import Memory, Place, Server, fill
from benchmarks.shared.report import percentiles, write_rows

#: Seconds over which due times are spread, and seconds for putting a hundred thousand tasks.
SPREAD = 20
LEAD = {"memory": 8, "valkey": 30}


def measure(place: Place, tasks: int, spread: float, *, awake: bool) -> dict[str, Any]:
    """Take delayed tasks in batches; `awake`: without waiting in the store."""
    with place.connect() as queue:
        tube: Any = queue.create_tube("delayed", "fifottl")
        # Whole milliseconds, so that the option and the comparison have the same time.
        first = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3 + LEAD[place.name] * tasks / 100_000)
        dues = [first + timedelta(milliseconds=int(number * spread * 1000 / tasks)) for number in range(tasks)]
        fill(tube, (tubes.Item(place.payload, at=due) for due in dues))
        assert datetime.now(UTC) < first, "the puts took too long"
        due_of = {number: due.timestamp() for number, due in enumerate(dues)}
        late: list[float] = []
        seen: set[int] = set()
        doubled = 0
        end = dues[-1].timestamp() + 60
        while len(seen) < tasks and time.time() < end:
            taken = tube.take_many(100, timeout=0 if awake else 5)
            now = time.time()
            for task in taken:
                doubled += task.id in seen
                seen.add(task.id)
                late.append(now - due_of[task.id])
            if taken:
                tube.ack_many(taken)
        tube.drop(force=True)
    return {
        "place": place.name,
        "due": f"over {spread:g} s" if spread else "in one ms",
        "consumer": "awake" if awake else "asleep",
        "tasks": tasks,
        **percentiles(late, 50, 99),
        "early": sum(each < 0 for each in late),
        "doubled": doubled,
        "lost": tasks - len(seen),
    }


def main() -> None:
    """Measure all cases, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__)
    parser.add_argument("--tasks", type=int, default=200_000)
    tasks = parser.parse_args().tasks
    rows: list[dict[str, Any]] = []
    with Server() as server:
        places: list[Place] = [Memory(), server]
        for place in places:
            for spread in (SPREAD, 0):
                rows += [measure(place, tasks, spread, awake=awake) for awake in (False, True)]
    write_rows(Path(__file__).parent, rows)


if __name__ == "__main__":
    main()
