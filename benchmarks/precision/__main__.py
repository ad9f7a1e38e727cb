"""Measure how late delayed tasks are: `python -m benchmarks.precision [-k PART] [--tasks N]`."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import tubes
from benchmarks.scale.places import Folder, Memory, Place, Server, fill
from benchmarks.shared.arguments import parser_of
from benchmarks.shared.report import Row, percentiles, run_cases

#: Tasks that are due in a second, and seconds for putting a hundred thousand tasks.
RATE, LEAD = 10_000, 12


def measure(place: Place, tasks: int, spread: float, *, awake: bool) -> list[Row]:
    """Take delayed tasks in batches; `awake`: without waiting in the store."""
    with place.connect() as queue:
        tube: Any = queue.create_tube("delayed", "fifottl")
        # Whole milliseconds, so that the option and the comparison have the same time.
        first = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3 + LEAD * tasks / 100_000)
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
    row = {
        "place": place.name,
        "due": f"over {spread:g} s" if spread else "in one ms",
        "consumer": "awake" if awake else "asleep",
        "tasks": tasks,
        **percentiles(late, 50, 99),
        "early": sum(each < 0 for each in late),
        "doubled": doubled,
        "lost": tasks - len(seen),
    }
    return [row]


def main() -> None:
    """Measure all cases, and keep the results."""
    parser = parser_of("precision", __doc__)
    parser.add_argument("--tasks", type=int, default=50_000, help="tasks per case")
    args = parser.parse_args()
    cases: list[tuple[str, Callable[[], list[Row]]]] = []
    with Server() as server, Folder() as folder:
        places: list[Place] = [Memory(), folder, server]
        for place in places:
            for spread in (args.tasks / RATE, 0):
                for awake in (False, True):
                    name = f"{place.name} {'spread' if spread else 'at once'} {'awake' if awake else 'asleep'}"
                    cases.append((name, partial(measure, place, args.tasks, spread, awake=awake)))
        run_cases(Path(__file__).parent, cases, args.k)


if __name__ == "__main__":
    main()
