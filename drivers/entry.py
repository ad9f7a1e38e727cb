"""A task as the engine keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tubes.drivers.moves import State
from tubes.drivers.timers import NEVER

if TYPE_CHECKING:
    from tubes.drivers.lanes import Lane
    from tubes.drivers.ready import Ready


class Hold(dict[int, "Entry"]):
    """What one session holds of one tube: its taken tasks by id."""

    __slots__ = ()


class Entry:
    """A living task. Only the engine changes it. Moments and spans are microseconds, `NEVER` and None: there is none."""

    __slots__ = (
        "attempts",  # how often it was taken
        "created",  # when it was put
        "data",  # what the user gave, or its encoded form; the engine never looks at it
        "dead",  # when its ttl runs out
        "due",  # its next timed move
        "hold",  # who holds it: the hold that it is in
        "id",
        "index",  # the Ready that it counts in
        "lane",
        "line",  # the line of a Ready where tasks come in the order of their rank
        "pri",
        "queued",  # the earliest moment at which the timers look at it
        "rank",  # its place: smaller comes first
        "state",
        "ttl",
        "ttr",
        "turn",  # the number of its last take in the tube, which no other take has
        "until",  # when its delay (delayed) or its time to run (taken) is over
        "utube",  # the lane that the user named
    )

    def __init__(self, id: int, data: Any, created: int) -> None:
        self.id = id
        self.state: State | None = None
        self.data = data
        self.pri = 0
        self.created = created
        self.attempts = 0
        self.turn = 0
        self.utube: str | None = None
        self.lane: Lane | None = None
        self.hold: Hold | None = None
        self.index: Ready | None = None
        self.rank: Any = id
        self.line: int | None = 0
        self.ttl: int | None = None
        self.ttr: int | None = None
        self.until = self.dead = self.due = self.queued = NEVER

    def set_times(self, ttl: int | None, ttr: int | None, delay: int) -> None:
        """How long it lives and runs, and when it begins to be ready; a delay prolongs its life."""
        self.ttr = ttr
        if delay:
            self.until = self.created + delay
        if ttl is not None:
            self.ttl = ttl + delay
            self.dead = self.created + ttl + delay
