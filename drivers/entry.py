"""A task as the engine stores it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from tubes.drivers.moves import State


class Extras(NamedTuple):
    """Rarely used fields of a task. Immutable, since snapshots share it: a change replaces it."""

    key: str | None = None
    #: Microseconds for which the key is remembered after the end of the task.
    key_ttl: int = 0
    #: The maximum number of takes; 0: no limit.
    max_attempts: int = 0
    #: The reason why it is buried or was cancelled.
    reason: str | None = None
    #: The effect of its put on the task with the same key: `KEPT` (nothing was added), `REPLACED`, or "" (none).
    key_effect: str = ""
    #: The context of the task, with the facts of its checkpoints and its failures; each of these replaces it.
    context: dict[str, str] | None = None
    #: Microseconds for which the task is kept after its end.
    keep_done: int = 0
    #: The counters `TIMED_OUT`, `KICKED`, `BURIED` and `BURIED_WHILE_HELD`, 32 bits each.
    counters: int = 0


NO_EXTRAS = Extras()
#: Values of `Extras.key_effect`. A put that has replaced another task is not undone.
KEPT: Final = "kept"
REPLACED: Final = "replaced"
#: The counters of `Extras.counters`, as the amounts that are added. Releases are frequent, so they have no counter:
#: they are the attempts that ended in no other way.
TIMED_OUT: Final = 1
KICKED: Final = 1 << 32
BURIED: Final = 1 << 64
BURIED_WHILE_HELD: Final = BURIED + (1 << 96)


class Loss(NamedTuple):
    """The loss of a task that a session held: its id, the number of its take, and the event."""

    id: int
    take: int
    #: "cancel", "delete", "bury" or "release".
    event: str
    #: The reason of a cancellation.
    reason: str | None = None


class Hold(dict[int, "Entry"]):
    """The tasks of one tube that one session has taken, by id."""

    __slots__ = ("is_ended", "on_loss")

    #: True once the session has ended: its tasks can no longer be acked. They are released in parts.
    is_ended: bool
    #: Called when another caller ends a take of this session; with None if all its tasks are gone. It must not use the
    #: tube.
    on_loss: Callable[[Loss | None], object] | None

    def __init__(self) -> None:
        super().__init__()
        self.is_ended = False
        self.on_loss = None


class Index(Protocol):
    """The ready tasks in their order: a `Ready` or a `RoundRobin`."""

    def push(self, entry: Entry) -> None: ...
    def pop(self) -> Entry | None: ...
    def discard(self, entry: Entry) -> None: ...


class TaskLane(Protocol):
    """The part of `lanes.Lane` that the engine uses."""

    living: int
    taken: int
    head: Entry | None

    @property
    def waiting(self) -> Index | None: ...

    limit: int

    @property
    def rate(self) -> object: ...
    def push(self, entry: Entry) -> None: ...
    def place(self) -> float: ...
    def start(self, now: int, entry: Entry) -> None: ...
    def undo_start(self, now: int, entry: Entry) -> None: ...
    def end_run(self, now: int) -> None: ...
    def offer_next(self) -> None: ...
    def forget(self) -> None: ...


# Fields of every task.
_ALWAYS = (
    "attempts",  # the number of its takes
    "created",  # the time of its put
    "data",  # the user's data, or its encoded form; the engine never looks at it
    "hold",  # the Hold of the session that has taken it
    "id",
    "index",  # the Ready or RoundRobin that contains it
    "extras",  # its rarely used fields; None: all have their defaults
    "rank",  # its place in the order: smaller comes first
    "state",
    "take",  # the number of its last take, unique in the tube; negative if the take was undone
)
_FURTHER = (
    "dead",  # the end of its ttl
    "due",  # the time of its next timed move
    "lane",
    "line",  # its line in a Ready, if tasks arrive in the order of their rank
    "pri",
    "queued",  # the time at which the timers check it next
    "ttl",  # None: no limit
    "ttr",  # None: no limit
    "until",  # the end of its delay (delayed) or of its time to run (taken)
    "utube",  # the name of its lane
)


class Entry:
    """A living task; only the engine changes it. Moments and spans are in microseconds.

    A plain `Entry` has only the fields of every task, which halves its memory. Other tubes use `FullEntry`.
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
    extras: Extras | None
    pri: int = 0
    line: int | None = 0
    utube: str | None = None
    lane: TaskLane | None = None
    # These fields are set only if the driver has ttl, ttr or delay.
    ttl: int | None
    ttr: int | None
    until: int
    dead: int
    due: int
    queued: int

    def __lt__(self, other: Entry) -> bool:
        # Heaps compare entries of equal rank: an entry and its copy, one of which has left the heap.
        return False

    def copy(self) -> Entry:
        other = self.__class__()
        for name in self._facts:
            if hasattr(self, name):
                setattr(other, name, getattr(self, name))
        return other


class FullEntry(Entry):
    """A task that may also have a priority, a lane and times."""

    __slots__ = _FURTHER
    _facts = (*_ALWAYS, *_FURTHER)
