"""The state of a replay: the tasks of tubes for the ids of a trace, their holders, and events of listeners."""

from __future__ import annotations

import json
from typing import Any, TypeGuard

#: An offset for ids that no put of the trace has returned, so that they are unknown in tubes too.
_UNKNOWN = 10**9


class Ids:
    """The ids of one tube. The trace reuses ids of removed tasks: an id means the latest put that returned it."""

    def __init__(self) -> None:
        self._ours: dict[int, int] = {}
        self._theirs: dict[int, int] = {}
        #: The last session that took each task, by id in tubes.
        self.takers: dict[int, str] = {}

    def note(self, theirs: int, ours: int) -> None:
        """Record the ids returned by a put."""
        if ours in self._theirs:
            raise AssertionError(f"id {ours} was given twice")
        self._theirs[ours] = theirs
        self._ours[theirs] = ours

    def ours(self, theirs: Any, meaning: dict[int, int] | None = None) -> Any:
        """Return the id in tubes for an id of the trace, now or by an earlier `meaning`; keep other values."""
        if not isinstance(theirs, int) or isinstance(theirs, bool) or theirs < 0:
            return theirs
        return (self._ours if meaning is None else meaning).get(theirs, _UNKNOWN + theirs)

    def theirs(self, ours: int) -> int:
        """Return the id in the trace of a task in tubes."""
        return self._theirs[ours]

    def meaning(self) -> dict[int, int]:
        """Return the current meaning of the ids of the trace."""
        return dict(self._ours)


class Ledger:
    """The ids of every tube, and the events of the main tube of the trace."""

    def __init__(self) -> None:
        self._tubes: dict[str, Ids] = {}
        self._events: list[tuple[int, str, str]] = []
        #: The events of each task, by id in tubes.
        self.history: dict[int, list[str]] = {}

    def ids(self, tube: str) -> Ids:
        """Return the ids of a tube."""
        return self._tubes.setdefault(tube, Ids())

    def forget(self, tube: str) -> None:
        """Forget a dropped tube: the next one of this name is a new tube."""
        self._tubes.pop(tube, None)

    def record_event(self, task: Any, event: str) -> None:
        """Record an event; a listener of the main tube of the trace."""
        self._events.append((task.id, task.state.letter, event))
        self.history.setdefault(task.id, []).append(event)

    def pop_events(self) -> list[dict[str, Any]]:
        """Return the events since the last call, in the format of a trace."""
        events, self._events = self._events, []
        names = self.ids("self")
        return [{"task": {"id": names.theirs(id), "state": state}, "event": event} for id, state, event in events]


def to_trace(result: Any) -> Any:
    """Convert a result of tubes to the format of a trace."""
    if hasattr(result, "state"):
        return {"id": result.id, "state": result.state.letter, "data": result.data}
    return result


def is_task(result: Any) -> TypeGuard[dict[str, Any]]:
    """Return True if a result of either side is a task."""
    return isinstance(result, dict) and "state" in result


def same(wanted: Any, got: Any) -> bool:
    """Return True if two results or classes of errors are equal, including the types of numbers."""
    if isinstance(wanted, type) or isinstance(got, type):
        return wanted is got
    return json.dumps(wanted, sort_keys=True) == json.dumps(got, sort_keys=True)
