"""What a replay knows: which of our tasks a trace means by an id, who took what, what listeners heard."""

from __future__ import annotations

import json
from typing import Any, TypeGuard

#: Added to an id that no put of the trace has answered, so that it is unknown here too.
_NOBODY = 10**9


class Ids:
    """The ids of one tube. The trace gives one again once its task is gone: it means the last put that answered it."""

    def __init__(self) -> None:
        self._ours: dict[int, int] = {}
        self._theirs: dict[int, int] = {}
        #: The session that took a task of ours last.
        self.takers: dict[int, str] = {}

    def note(self, theirs: int, ours: int) -> None:
        """A put answered these ids."""
        if ours in self._theirs:
            raise AssertionError(f"id {ours} was given twice")
        self._theirs[ours] = theirs
        self._ours[theirs] = ours

    def ours(self, theirs: Any, meaning: dict[int, int] | None = None) -> Any:
        """Our id for one of the trace, now or by an earlier `meaning`; what is no id stays as it is."""
        if not isinstance(theirs, int) or isinstance(theirs, bool) or theirs < 0:
            return theirs
        return (self._ours if meaning is None else meaning).get(theirs, _NOBODY + theirs)

    def theirs(self, ours: int) -> int:
        """The id that the trace gave to a task of ours."""
        return self._theirs[ours]

    def meaning(self) -> dict[int, int]:
        """What the ids of the trace mean now."""
        return dict(self._ours)


class Ledger:
    """The ids of every tube, and the events of the trace's own."""

    def __init__(self) -> None:
        self._tubes: dict[str, Ids] = {}
        self._events: list[tuple[int, str, str]] = []
        #: The events that each of our tasks had.
        self.history: dict[int, list[str]] = {}

    def ids(self, tube: str) -> Ids:
        """The ids of a tube."""
        return self._tubes.setdefault(tube, Ids())

    def forget(self, tube: str) -> None:
        """The tube was dropped: the next one of this name is another."""
        self._tubes.pop(tube, None)

    def hear(self, task: Any, event: str) -> None:
        """A listener of the trace's own tube."""
        self._events.append((task.id, task.state.value, event))
        self.history.setdefault(task.id, []).append(event)

    def heard(self) -> list[dict[str, Any]]:
        """The events since the last time, as a trace tells them."""
        events, self._events = self._events, []
        names = self.ids("self")
        return [{"task": {"id": names.theirs(id), "state": state}, "event": event} for id, state, event in events]


def shown(answer: Any) -> Any:
    """An answer of ours as a trace tells it."""
    if hasattr(answer, "state"):
        return {"id": answer.id, "state": answer.state.value, "data": answer.data}
    return answer


def is_task(answer: Any) -> TypeGuard[dict[str, Any]]:
    """Whether an answer, theirs or ours, is a task."""
    return isinstance(answer, dict) and "state" in answer


def same(wanted: Any, got: Any) -> bool:
    """Whether two answers, or classes of errors, are the same, types of numbers included."""
    if isinstance(wanted, type) or isinstance(got, type):
        return wanted is got
    return json.dumps(wanted, sort_keys=True) == json.dumps(got, sort_keys=True)
