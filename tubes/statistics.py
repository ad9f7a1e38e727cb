"""What a tube has in it and what was done with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of a tube at one moment.

    `tasks`: how many there are, by state: `ready` (those behind a busy lane included), `taken`, `buried`, `delayed`,
    and their `total`; `done` counts the ones that are gone (acked, deleted, expired) since the tube was created.
    `calls`: how often each change has happened since then: `put take ack release touch bury kick delete delay ttl ttr`.
    A task that outlives its ttl counts under `ttl` and `delete`, as in Tarantool's queue.
    `waiting`: how many callers wait on the tube now.
    """

    tasks: dict[str, int]
    calls: dict[str, int]
    waiting: int = 0
