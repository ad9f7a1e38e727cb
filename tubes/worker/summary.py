"""What a run of a worker came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Everything in hand was finished.
FINISHED: Final = 0
#: The grace was over: handlers were cut off, and their tasks released.
CUT_OFF: Final = 3
#: A second signal, or `stop(now=True)`: at once.
AT_ONCE: Final = 4


@dataclass
class Summary:
    """What a run of a worker came to: how many tasks, by what became of them, and how it ended.

    >>> Summary(acked=3)
    Summary(acked=3, released=0, buried=0, lost=0, cut_off=0, exit_code=0)
    """

    #: Handlers returned.
    acked: int = 0
    #: Handlers failed, or asked for another attempt: the tasks went back.
    released: int = 0
    #: After their last attempt, by `Bury`, or because their data cannot be decoded.
    buried: int = 0
    #: They were not this worker's any more when their handlers ended, or before: deleted, taken by others.
    lost: int = 0
    #: Released because the worker ended before their handlers.
    cut_off: int = 0
    #: 0: all that was in hand was finished; 3: the grace was over first; 4: ended at once.
    exit_code: int = FINISHED

    def in_words(self) -> str:
        """The counts in a line: `3 acked, 0 released, 0 buried, 0 lost, 0 cut off`."""
        names = ("acked", "released", "buried", "lost", "cut_off")
        return ", ".join(f"{getattr(self, name)} {name.replace('_', ' ')}" for name in names)
