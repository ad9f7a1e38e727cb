"""The result of a run of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: All tasks were finished.
FINISHED: Final = 0
#: The grace period ended first: handlers were cut off, and their tasks released.
CUT_OFF: Final = 3
#: A second signal, or `stop(now=True)`, ended the run at once.
AT_ONCE: Final = 4


@dataclass
class Summary:
    """The result of a run of a worker: how many tasks ended in each way, and how the run ended.

    >>> Summary(acked=3)
    Summary(acked=3, released=0, buried=0, lost=0, cancelled=0, cut_off=0, exit_code=0)
    """

    #: Tasks whose handlers returned.
    acked: int = 0
    #: Tasks whose handlers failed, or raised `Retry`.
    released: int = 0
    #: Tasks buried after their last attempt, by `Bury`, or because their data cannot be decoded.
    buried: int = 0
    #: Tasks that the worker no longer held when their handlers ended: they were deleted, or another worker took them.
    lost: int = 0
    #: Tasks that were cancelled while their handlers ran: see `Tube.cancel`.
    cancelled: int = 0
    #: Tasks released because the worker ended before their handlers.
    cut_off: int = 0
    #: 0: all tasks were finished; 3: the grace period ended first; 4: ended at once.
    exit_code: int = FINISHED

    def as_text(self) -> str:
        """Return the counts in one line: `3 acked, 0 released, 0 buried, 0 lost, 0 cancelled, 0 cut off`."""
        names = ("acked", "released", "buried", "lost", "cancelled", "cut_off")
        return ", ".join(f"{getattr(self, name)} {name.replace('_', ' ')}" for name in names)
