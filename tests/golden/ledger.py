"""What a replay knows: which of our tasks a trace means by an id, who took what, what listeners heard."""

from __future__ import annotations

import json
from typing import Any

from tubes.errors import TubesError

#: Added to an id that no put of the trace has answered, so that it is unknown here too.
_NOBODY = 10**9


class Ledger:
    """The trace gives an id again once its task is gone: there an id means the last put that answered it."""

    def __init__(self) -> None:
        self._ours: dict[int, int] = {}
        self._theirs: dict[int, int] = {}
        self.events: list[tuple[int, str, str]] = []
        #: The events that each of our tasks had.
        self.history: dict[int, list[str]] = {}
        #: The session that took a task last.
        self.takers: dict[int, str] = {}

    def note(self, theirs: int, ours: int) -> None:
        """A put answered these ids."""
        if self._theirs.setdefault(ours, theirs) != theirs:
            raise AssertionError(f"id {ours} was given twice")
        self._ours[theirs] = ours

    def ours(self, theirs: Any, ids: dict[int, int] | None = None) -> Any:
        """Our id for one of the trace, now or by an earlier `meaning`; what is no id stays as it is."""
        if not isinstance(theirs, int) or isinstance(theirs, bool) or theirs < 0:
            return theirs
        return (self._ours if ids is None else ids).get(theirs, _NOBODY + theirs)

    def meaning(self) -> dict[int, int]:
        """What the ids of the trace mean now."""
        return dict(self._ours)

    def hear(self, task: Any, event: str) -> None:
        """A listener."""
        self.events.append((task.id, str(task.state), event))
        self.history.setdefault(task.id, []).append(event)

    def heard(self) -> list[dict[str, Any]]:
        """The events since the last time, as a trace tells them."""
        events, self.events = self.events, []
        return [
            {"task": {"id": self._theirs[id], "state": state}, "event": event} for id, state, event in events
        ]


def shown(answer: Any) -> Any:
    """An answer of ours as a trace tells it, or the class of the error."""
    if isinstance(answer, TubesError):
        return type(answer)
    if hasattr(answer, "state"):
        return {"id": answer.id, "state": str(answer.state), "data": answer.data}
    return answer


def same(wanted: Any, got: Any) -> bool:
    """Whether two answers are the same, types of numbers included."""
    if isinstance(wanted, type) or isinstance(got, type):
        return wanted is got
    return json.dumps(wanted, sort_keys=True) == json.dumps(got, sort_keys=True)
