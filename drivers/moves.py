"""The states of a task and every way from one to the next. Everything about states lives here.

The table follows `tarantool/queue` 1.5.0; where it differs, the project's README says how and why.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class State(StrEnum):
    """Where a task stands. Equal to the one letter that Tarantool's queue uses.

    >>> State.READY == "r"
    True
    """

    READY = "r"
    TAKEN = "t"
    DONE = "-"
    BURIED = "!"
    DELAYED = "~"

    # Enum hashes in Python; a state is the key of a lookup in every move.
    __hash__ = str.__hash__


class Move(NamedTuple):
    """One row of the table: where a task goes, what listeners hear, which calls are counted and by how much."""

    to: State
    event: str
    counts: tuple[str, ...]
    by: int = 1


_R, _T, _DONE, _BURIED, _DELAYED = State.READY, State.TAKEN, State.DONE, State.BURIED, State.DELAYED

#: Why a task moves -> from which state (None: it is not there yet) -> the move.
#: Whatever is not in this table cannot happen.
MOVES: Final[dict[str, dict[State | None, Move]]] = {
    "put": {None: Move(_R, "put", ("put",))},
    "put_delayed": {None: Move(_DELAYED, "put", ("put",))},
    "take": {_R: Move(_T, "take", ("take",))},
    "touch": {_T: Move(_T, "touch", ("touch",))},
    "ack": {_T: Move(_DONE, "delete", ("ack",))},
    "release": {_T: Move(_R, "release", ("release",))},
    "release_delayed": {_T: Move(_DELAYED, "release", ("release",))},
    # The last attempt that a task has has failed.
    "release_last": {_T: Move(_BURIED, "bury", ("release", "bury"))},
    # A take whose taker has gone before it got the task: as if it had never happened.
    "untake": {_T: Move(_R, "release", ("take",), -1)},
    # A put whose caller has gone before it heard that there was room, likewise.
    "unput": {state: Move(_DONE, "delete", ("put",), -1) for state in (_R, _DELAYED)},
    "bury": {state: Move(_BURIED, "bury", ("bury",)) for state in (_R, _T, _DELAYED)},
    "kick": {_BURIED: Move(_R, "kick", ("kick",))},
    "delete": {state: Move(_DONE, "delete", ("delete",)) for state in (_R, _T, _BURIED, _DELAYED)},
    # Its data, place or times are others; a delay begins or ends.
    "update": {state: Move(state, "update", ()) for state in (_R, _T, _BURIED, _DELAYED)},
    "update_delayed": {state: Move(_DELAYED, "update", ()) for state in (_R, _DELAYED)},
    "update_ready": {_DELAYED: Move(_R, "update", ())},
    # Those that time brings about.
    "delay": {_DELAYED: Move(_R, "delay", ("delay",))},
    "ttr": {_T: Move(_R, "ttr", ("ttr",))},
    "ttr_delayed": {_T: Move(_DELAYED, "ttr", ("ttr",))},
    "ttr_last": {_T: Move(_BURIED, "bury", ("ttr", "bury"))},
    "ttl": {state: Move(_DONE, "ttl", ("ttl", "delete")) for state in (_R, _BURIED)},
}

#: What `Statistics.calls` counts.
CALLS: Final[tuple[str, ...]] = (
    "put",
    "take",
    "ack",
    "release",
    "touch",
    "bury",
    "kick",
    "delete",
    "delay",
    "ttl",
    "ttr",
)
