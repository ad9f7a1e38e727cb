"""Counts of a tube: its tasks and its calls."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tubes.drivers.options import SECOND
from tubes.drivers.timers import NEVER


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of a tube at one moment.

    `tasks`: how many there are, by state: `ready` (including those behind a busy lane), `taken`, `buried`, `delayed`,
    and their `total`; `done` counts those that were acked, deleted or expired since the tube was created.
    `calls`: how often each change has happened since then: `put take ack release touch bury kick delete delay ttl ttr`.
    `ttr` counts timeouts: takes that were ended by their ttr. Updates are not counted. A task that outlives its ttl
    counts under `ttl` and `delete`, as in Tarantool's queue.
    `waiting`: how many callers wait on the tube now, for a task or for room; on a server, estimated where more than a
    thousand processes wait.
    `kept`: how many done tasks are kept now, see `keep_done`; they count nowhere else but in `done`.
    `paused`: the end of its pause, in seconds since the epoch (`math.inf`: until `resume`); None: it is not paused.
    """

    tasks: dict[str, int]
    calls: dict[str, int]
    waiting: int = 0
    paused: float | None = None
    kept: int = 0


def until(moment: int | None) -> float | None:
    """The end of a pause as users see it."""
    if moment is None:
        return None
    return math.inf if moment == NEVER else moment / SECOND
