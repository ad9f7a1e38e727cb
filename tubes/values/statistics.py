"""Counts of the tasks and calls of a tube."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tubes.drivers.options import SECOND
from tubes.drivers.timers import NEVER


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of a tube at one moment.

    `tasks`: the number of tasks by state: `ready` (including tasks behind a busy lane), `taken`, `buried`, `delayed`,
    and their `total`; `done` counts tasks that were acked, deleted or expired since the tube was created.
    `calls`: the number of changes since then, by kind: `put take ack release touch bury kick delete delay ttl ttr`.
    `ttr` counts takes that were ended by their ttr. Updates are not counted, nor are releases by a worker that leave
    `attempts` unchanged, as after `Retry(counts=False)`. A task that expires counts under `ttl` and
    `delete`, as in Tarantool's queue.
    `waiting`: the number of callers that wait on the tube now, for a task or for room; on a server, an estimate if more
    than a thousand processes wait.
    `kept`: the number of done tasks that are kept now, see `keep_done`; of the other counts, only `done` has them.
    `paused`: the end of its pause, in seconds since the epoch (`math.inf`: until `resume`); None: it is not paused.
    """

    tasks: dict[str, int]
    calls: dict[str, int]
    waiting: int = 0
    paused: float | None = None
    kept: int = 0


def to_seconds(moment: int | None) -> float | None:
    """Convert the end of a pause to seconds; `math.inf` for a pause without an end."""
    if moment is None:
        return None
    return math.inf if moment == NEVER else moment / SECOND
