"""The result of a run of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: All tasks were finished.
FINISHED: Final = 0
#: The grace ended first: handlers were cut off, and their tasks released.
CUT_OFF: Final = 3
#: A second signal, or `stop(now=True)`: at once.
AT_ONCE: Final = 4


@dataclass
class Summary:
    """The result of a run of a worker: how many tasks ended in each way, and how the run ended.

    >>> Summary(acked=3)
    Summary(acked=3, released=0, buried=0, lost=0, cut_off=0, exit_code=0)
    """

    #: Handlers returned.
    acked: int = 0
    #: Handlers failed, or raised `Retry`.
    released: int = 0
    #: After their last attempt, by `Bury`, or because their data cannot be decoded.
    buried: int = 0
    #: The worker did not hold them any more when their handlers ended: they were deleted, or others took them.
    lost: int = 0
    #: Released because the worker ended before their handlers.
    cut_off: int = 0
    #: 0: all tasks were finished; 3: the grace ended first; 4: ended at once.
    exit_code: int = FINISHED

    def in_words(self) -> str:
        """The counts in a line: `3 acked, 0 released, 0 buried, 0 lost, 0 cut off`."""
        names = ("acked", "released", "buried", "lost", "cut_off")
        return ", ".join(f"{getattr(self, name)} {name.replace('_', ' ')}" for name in names)
