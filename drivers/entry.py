"""A task as the engine keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tubes.drivers.moves import State

if TYPE_CHECKING:
    from tubes.drivers.lanes import Lane
    from tubes.drivers.ready import Ready
    from tubes.drivers.rounds import Rounds


class More(NamedTuple):
    """What few tasks have. It is replaced, never changed: snapshots share it."""

    key: str | None = None
    #: For how many microseconds the key is remembered after the task is gone.
    key_ttl: int = 0
    #: How often the task may be taken; 0: any number of times.
    max_attempts: int = 0
    #: Why it is buried.
    reason: str | None = None
    #: Whether a put found it by its key, and added nothing.
    kept: bool = False
    #: Whether its put has removed another one: such a put is not undone.
    replaces: bool = False
    #: What travels with the task besides its data; nobody changes it.
    context: dict[str, str] | None = None


NOTHING_MORE = More()


class Hold(dict[int, "Entry"]):
    """What one session holds of one tube: its taken tasks by id."""

    __slots__ = ()


class Entry:
    """A living task; only the engine changes it. Moments and spans are in microseconds."""

    __slots__ = (
        "attempts",  # how often it was taken
        "created",  # when it was put
        "data",  # what the user gave, or its encoded form; the engine never looks at it
        "dead",  # when its ttl runs out
        "due",  # its next timed move
        "hold",  # who holds it: the hold that it is in
        "id",
        "index",  # the Ready or Rounds that it counts in
        "lane",
        "line",  # the line of a Ready where tasks come in the order of their rank
        "more",  # what few tasks have; None: nothing
        "pri",
        "queued",  # the earliest moment at which the timers look at it
        "rank",  # its place: smaller comes first
        "state",
        "ttl",  # None: it lives for ever
        "ttr",  # None: as long as the taker likes
        "turn",  # the number of its last take in the tube, which no other take has
        "until",  # when its delay (delayed) or its time to run (taken) is over
        "utube",  # the lane that the user named
    )

    id: int
    data: Any
    created: int
    pri: int
    rank: Any
    line: int | None
    state: State | None
    attempts: int
    turn: int
    utube: str | None
    lane: Lane | None
    hold: Hold | None
    index: Ready | Rounds | None
    more: More | None
    # These are there only where the driver knows any of ttl, ttr and delay.
    ttl: int | None
    ttr: int | None
    until: int
    dead: int
    due: int
    queued: int

    def __lt__(self, other: Entry) -> bool:
        # Heaps ask where the places are equal: of an entry and its copy, one of which has left.
        return False

    def copy(self) -> Entry:
        """Another entry that says the same."""
        other = Entry()
        for slot in self.__slots__:
            if hasattr(self, slot):
                setattr(other, slot, getattr(self, slot))
        return other

    def set_times(self, ttl: int | None, ttr: int | None, delay: int) -> None:
        """How long it lives and runs, and when it begins to be ready; a delay prolongs its life."""
        self.ttr = ttr
        if delay:
            self.until = self.created + delay
        if ttl is not None:
            self.ttl = ttl + delay
            self.dead = self.created + ttl + delay
