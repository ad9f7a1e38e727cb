"""The states of a task and every way from one to the next. Everything about states lives here.

The table follows `tarantool/queue` 1.5.0; where it differs, the project's README says how and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from tubes.errors import InvalidOption


def _names(letter: str, word: str) -> Any:
    """Both names of a state. Untyped: type checkers that knew them would say that `state == "ready"` is never true."""
    return letter, word


class State(StrEnum):
    """Where a task stands: a word. It equals that word, and also the letter of Tarantool's queue, which is its `value`.

    >>> State.READY == "ready", State.READY == "r", str(State.READY), State.READY.value
    (True, True, 'ready', 'r')

    In a dict or a set it is found by its word, not by its letter:

    >>> State.READY in {"ready"}, State.READY in {"r"}
    (True, False)
    """

    _value_: str
    _both: tuple[str, str]

    READY = _names("r", "ready")
    TAKEN = _names("t", "taken")
    DONE = _names("-", "done")
    BURIED = _names("!", "buried")
    DELAYED = _names("~", "delayed")

    def __new__(cls, letter: str, word: str = "") -> Self:
        """The state of this letter, or of this word."""
        state = str.__new__(cls, word)
        state._value_ = letter
        state._both = word, letter
        return state

    @classmethod
    def _missing_(cls, value: object) -> State | None:
        return next((state for state in cls if state == value), None)

    def __eq__(self, other: object) -> bool:
        return self is other or other in self._both

    def __ne__(self, other: object) -> bool:
        return self is not other and other not in self._both

    # Enum hashes in Python; a state is the key of a lookup in every move.
    __hash__ = str.__hash__


_STATES: Final = (State.READY, State.TAKEN, State.DELAYED, State.BURIED, State.DONE)
#: The states by their words and their letters.
_NAMED: Final[dict[str, State]] = {name: state for state in _STATES for name in (str(state), state.value)}


def check_state(state: object, among: Sequence[State] = _STATES, *, several: str = "") -> State:
    """The state that a caller names, one of these, else `InvalidOption`; `several`: how the rule ends that it names."""
    found = _NAMED.get(state) if isinstance(state, str) else None
    if found is not None and found in among:
        return found
    *words, last = (f"'{known}'" for known in among)
    raise InvalidOption(option="state", value=state, rule=f"must be {', '.join(words)} or {last}{several}")


def check_states(states: object) -> tuple[State, ...]:
    """The states that a caller names, one or several; None: none."""
    if states is None:
        return ()
    named: Any = [states] if isinstance(states, str) or not isinstance(states, Iterable) else [*states] or [states]
    return tuple(check_state(state, several=", or several in a list") for state in named)


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
    # The last attempt has failed.
    "release_last": {_T: Move(_BURIED, "bury", ("release", "bury"))},
    # Undo a take whose caller is gone before it got the task.
    "untake": {_T: Move(_R, "release", ("take",), -1)},
    # Undo a put whose caller is gone before it heard that there was room.
    "unput": {state: Move(_DONE, "delete", ("put",), -1) for state in (_R, _DELAYED)},
    "bury": {state: Move(_BURIED, "bury", ("bury",)) for state in (_R, _T, _DELAYED)},
    "kick": {state: Move(_R, "kick", ("kick",)) for state in (_BURIED, _DELAYED)},
    "delete": {state: Move(_DONE, "delete", ("delete",)) for state in (_R, _T, _BURIED, _DELAYED)},
    # New data, place or times; a delay begins or ends.
    "update": {state: Move(state, "update", ()) for state in (_R, _T, _BURIED, _DELAYED)},
    "update_delayed": {state: Move(_DELAYED, "update", ()) for state in (_R, _DELAYED)},
    "update_ready": {_DELAYED: Move(_R, "update", ())},
    # Moves by time.
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
