"""A task as the engine keeps it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from tubes.drivers.moves import State


class More(NamedTuple):
    """What few tasks have. It is replaced, never changed: snapshots share it."""

    key: str | None = None
    #: Microseconds for which the key is remembered after the task is gone.
    key_ttl: int = 0
    #: How often the task may be taken; 0: any number of times.
    max_attempts: int = 0
    #: Why it is buried.
    reason: str | None = None
    #: What its put has done with another task of its key: `KEPT`, and so added nothing, or `REPLACED`; "": nothing.
    met: str = ""
    #: The context of the task; it never changes.
    context: dict[str, str] | None = None
    #: Microseconds for which the task is kept after its end.
    keep_done: int = 0
    #: What has happened to it: `TIMED_OUT` and the others, each so often.
    past: int = 0


NOTHING_MORE = More()
#: Values of `More.met`. A put that has replaced a task is not undone.
KEPT: Final = "kept"
REPLACED: Final = "replaced"
#: What `More.past` counts, in 32 bits each. A release, which is frequent, has nothing to note: it is what has ended all
#: other attempts.
TIMED_OUT: Final = 1
KICKED: Final = 1 << 32
BURIED: Final = 1 << 64
BURIED_WHILE_HELD: Final = BURIED + (1 << 96)


class Hold(dict[int, "Entry"]):
    """What one session holds of one tube: its taken tasks by id."""

    __slots__ = ()


class Index(Protocol):
    """The ready tasks in their order: a `Ready` or a `Rounds`."""

    def push(self, entry: Entry) -> None: ...
    def pop(self) -> Entry | None: ...
    def discard(self, entry: Entry) -> None: ...


class TaskLane(Protocol):
    """What the engine asks of a task's lane: see `lanes.Lane`."""

    living: int
    taken: int
    head: Entry | None

    @property
    def behind(self) -> Index | None: ...
    @property
    def rate(self) -> object: ...
    def push(self, entry: Entry) -> None: ...
    def place(self) -> int: ...
    def start(self, now: int, entry: Entry) -> None: ...
    def undo_start(self, now: int, entry: Entry) -> None: ...
    def offer_next(self) -> None: ...
    def forget(self) -> None: ...


# What every task has.
_ALWAYS = (
    "attempts",  # how often it was taken
    "created",  # when it was put
    "data",  # what the user gave, or its encoded form; the engine never looks at it
    "hold",  # its holder
    "id",
    "index",  # the Ready or Rounds that it counts in
    "more",  # what few tasks have; None: nothing
    "rank",  # its place: smaller comes first
    "state",
    "take",  # the number of its last take in the tube, which no other take has; below 0: the take was undone
)
_FURTHER = (
    "dead",  # when its ttl runs out
    "due",  # its next timed move
    "lane",
    "line",  # the line of a Ready where tasks come in the order of their rank
    "pri",
    "queued",  # the earliest moment at which the timers look at it
    "ttl",  # None: it lives for ever
    "ttr",  # None: no limit
    "until",  # when its delay (delayed) or its time to run (taken) is over
    "utube",  # the lane that the user named
)


class Entry:
    """A living task; only the engine changes it. Moments and spans are in microseconds.

    An `Entry` itself has no room for more than what every task has, half the memory: it is for tubes that know no more.
    """

    __slots__ = _ALWAYS
    _facts: tuple[str, ...] = _ALWAYS

    id: int
    data: Any
    created: int
    rank: Any
    state: State | None
    attempts: int
    take: int
    hold: Hold | None
    index: Index | None
    more: More | None
    pri: int = 0
    line: int | None = 0
    utube: str | None = None
    lane: TaskLane | None = None
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
        other = self.__class__()
        for name in self._facts:
            if hasattr(self, name):
                setattr(other, name, getattr(self, name))
        return other


class FullEntry(Entry):
    """A task that may have a priority, a lane and times, too."""

    __slots__ = _FURTHER
    _facts = (*_ALWAYS, *_FURTHER)
