"""What `check` finds in a tube, and what `repair` does about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: By kind: what is wrong, and what `repair` does. `{}`: those that it is about.
KINDS: Final[dict[str, tuple[str, str]]] = {
    "tube": (
        "what the tube says of itself cannot be read: {}",
        "does nothing: write it again by hand, or drop the tube",
    ),
    "type": ("keys that are not of the tube's types: {}", "removes them"),
    "field": ("fields of the meta hash that are missing or make no sense: {}", "sets them anew, from what is there"),
    "next": ("ids that would be given again, to other tasks: {}", "lets the next id be behind them"),
    "unreadable": ("tasks that nobody can read: {}", "moves them to the key :broken, as they are"),
    "stranded": ("tasks that stand nowhere, and so come to nobody: {}", "puts them into their places"),
    "entry": ("entries of keys that have no such task there: {}", "removes them"),
    "due": ("tasks with a wrong moment, or none: {}", "sets it; what has lost its delay is ready at once"),
    "key": (
        "unique keys that do not name their tasks: {}",
        "lets them name those; of two that have one key one keeps it",
    ),
    "lane": ("lanes that are noted otherwise than their tasks stand: {}", "notes them anew"),
    "session": ("sessions that are noted by halves: {}", "ends them, in a minute if somebody may speak for them"),
    "orphan": ("tasks that are taken by sessions that are not there: {}", "has them released"),
    "answer": ("answers to sessions that are not there: {}", "removes them"),
    "waiting": ("processes that wait for nobody knows what: {}", "removes them"),
    "oldest": ("tasks below the lowest id that is looked at: {}", "lowers that"),
    "counter": ("numbers that are not what is counted: {}", "sets them"),
    "memory": ("indexes of a tube in memory that are not what its tasks say: {}", "makes them anew"),
}
#: What nothing is done about.
BEYOND: Final = frozenset({"tube"})


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a tube, of one kind: one of what `Queue.check` and `Queue.repair` answer.

    `kind`: a word for programs; `count`: how many there are; `examples`: some of them, ids or names.
    `what` says it in words, and `remedy` what `repair` does about it. `mended`: whether that was done.

    >>> import tubes
    >>> with tubes.connect() as queue:
    ...     _ = queue.create_tube("mail").put("to ann")
    ...     queue.check("mail")
    []
    """

    kind: str
    count: int
    examples: tuple[str, ...]
    mended: bool

    @property
    def what(self) -> str:
        """What is wrong."""
        more = f" and {self.count - len(self.examples)} more" if self.count > len(self.examples) else ""
        return KINDS[self.kind][0].format(", ".join(self.examples) + more)

    @property
    def remedy(self) -> str:
        """What `repair` does about it."""
        return KINDS[self.kind][1]
