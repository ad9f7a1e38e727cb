"""What `check` finds in a tube, and what `repair` does about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: By kind: what is wrong, what `repair` does about it, and what it has done. `{}`: the ids or names that it is about.
KINDS: Final[dict[str, tuple[str, str, str]]] = {
    "tube": (
        "what the tube says of itself cannot be read: {}",
        "does nothing: write it again by hand, or drop the tube",
        "did nothing: write it again by hand, or drop the tube",
    ),
    "type": ("keys that are not of the tube's types: {}", "removes them", "removed them"),
    "field": (
        "fields of the meta hash that are missing or make no sense: {}",
        "sets them anew, from what is there",
        "set them anew, from what is there",
    ),
    "next": (
        "ids that would be given again, to other tasks: {}",
        "lets the next id be behind them",
        "the next id is behind them now",
    ),
    "unreadable": (
        "tasks that nobody can read: {}",
        "moves them to the key :broken, as they are",
        "moved them to the key :broken, as they are",
    ),
    "stranded": (
        "tasks that stand nowhere, and so come to nobody: {}",
        "puts them into their places",
        "put them into their places",
    ),
    "entry": ("entries of keys that have no such task there: {}", "removes them", "removed them"),
    "due": (
        "tasks with a wrong moment, or none: {}",
        "sets it; what has lost its delay is ready at once",
        "set it; what had lost its delay is ready now",
    ),
    "key": (
        "unique keys that do not name their tasks: {}",
        "lets them name those; of two that have one key one keeps it",
        "they name them now; of two that had one key one keeps it",
    ),
    "lane": ("lanes that are noted otherwise than their tasks stand: {}", "notes them anew", "noted them anew"),
    "session": (
        "sessions that are noted by halves: {}",
        "ends them, in a minute if somebody may speak for them",
        "ended them; those that somebody may speak for end in a minute",
    ),
    "orphan": ("tasks that are taken by sessions that are not there: {}", "has them released", "released them"),
    "answer": ("answers to sessions that are not there: {}", "removes them", "removed them"),
    "waiting": ("processes that wait for nobody knows what: {}", "removes them", "removed them"),
    "oldest": ("tasks below the lowest id that is looked at: {}", "lowers that", "lowered that"),
    "counter": ("numbers that are not what is counted: {}", "sets them", "set them"),
    "memory": ("indexes of a tube in memory that are not what its tasks say: {}", "makes them anew", "made them anew"),
}
#: What nothing is done about.
BEYOND: Final = frozenset({"tube"})


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a tube, of one kind: one of what `Queue.check` and `Queue.repair` answer.

    `kind`: a word for programs; `count`: how many there are; `examples`: some of them, ids or names.
    `what` says it in words, and `remedy` what `repair` does about it, or has done. `mended`: whether that was done.

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
        """What `repair` does about it; where `mended`, what it has done."""
        return KINDS[self.kind][2 if self.mended else 1]
