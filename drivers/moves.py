"""The states of a task and the moves between them.

The table `MOVES` follows `tarantool/queue` 1.5.0; docs/howto/migrate.md lists the differences and their reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from tubes.errors import InvalidOption


def _names(word: str, letter: str) -> Any:
    """Return both names of a state. Untyped, so that type checkers accept `state == "ready"`."""
    return word, letter


class State(StrEnum):
    """The state of a task: a word. It also equals its `letter` in Tarantool's queue, which is what tubes stores.

    >>> State.READY == "ready", State.READY == "r", State.READY.value, State.READY.letter
    (True, True, 'ready', 'r')

    As a key of a dict or a set it has the hash of the word:

    >>> State.READY in {"ready"}, State.READY in {"r"}
    (True, False)
    """

    #: The letter of Tarantool's queue: the name of the state on a server and in a folder.
    letter: str
    _value_: str
    _both: tuple[str, str]

    READY = _names("ready", "r")
    TAKEN = _names("taken", "t")
    DONE = _names("done", "-")
    BURIED = _names("buried", "!")
    DELAYED = _names("delayed", "~")

    def __new__(cls, word: str, letter: str = "") -> Self:
        """Make a state from its word and its letter."""
        state = str.__new__(cls, word)
        state._value_ = word
        state.letter = letter
        state._both = word, letter
        return state

    @classmethod
    def _missing_(cls, value: object) -> State | None:
        return next((state for state in cls if state == value), None)

    def __eq__(self, other: object) -> bool:
        return self is other or other in self._both

    def __ne__(self, other: object) -> bool:
        return self is not other and other not in self._both

    # Enum's own hash is written in Python, and every move looks up a state.
    __hash__ = str.__hash__


_STATES: Final = (State.READY, State.TAKEN, State.DELAYED, State.BURIED, State.DONE)
#: The states by their words and their letters.
_NAMED: Final[dict[str, State]] = {name: state for state in _STATES for name in state._both}


def check_state(state: object, among: Sequence[State] = _STATES, *, several: str = "") -> State:
    """Convert a user's state; raise `InvalidOption` unless it is among these. `several` ends the text of the rule."""
    found = _NAMED.get(state) if isinstance(state, str) else None
    if found is not None and found in among:
        return found
    *words, last = (f"'{known}'" for known in among)
    raise InvalidOption(option="state", value=state, rule=f"must be {', '.join(words)} or {last}{several}")


def check_states(states: object) -> tuple[State, ...]:
    """Convert one state or several states of a user; None: no states."""
    if states is None:
        return ()
    named: Any = [states] if isinstance(states, str) or not isinstance(states, Iterable) else [*states] or [states]
    return tuple(check_state(state, several=", or several in a list") for state in named)


class Move(NamedTuple):
    """One row of the table: the new state, the event for listeners, the counters and by how much they grow."""

    to: State
    event: str
    counts: tuple[str, ...]
    by: int = 1


_R, _T, _DONE, _BURIED, _DELAYED = State.READY, State.TAKEN, State.DONE, State.BURIED, State.DELAYED

#: The name of the move, then the old state (None: the task is new), then the move. No other moves are possible.
MOVES: Final[dict[str, dict[State | None, Move]]] = {
    "put": {None: Move(_R, "put", ("put",))},
    "put_delayed": {None: Move(_DELAYED, "put", ("put",))},
    "take": {_R: Move(_T, "take", ("take",))},
    "touch": {_T: Move(_T, "touch", ("touch",))},
    "ack": {_T: Move(_DONE, "delete", ("ack",))},
    "release": {_T: Move(_R, "release", ("release",))},
    "release_delayed": {_T: Move(_DELAYED, "release", ("release",))},
    # The attempt does not count: nothing has failed.
    "decline": {_T: Move(_R, "release", ())},
    "decline_delayed": {_T: Move(_DELAYED, "release", ())},
    # The last attempt has failed.
    "release_last": {_T: Move(_BURIED, "bury", ("release", "bury"))},
    # Undo a take whose caller left before it got the task.
    "undo_take": {_T: Move(_R, "release", ("take",), -1)},
    # Undo a put whose caller left before it got the result.
    "undo_put": {state: Move(_DONE, "delete", ("put",), -1) for state in (_R, _DELAYED)},
    "bury": {state: Move(_BURIED, "bury", ("bury",)) for state in (_R, _T, _DELAYED)},
    "kick": {state: Move(_R, "kick", ("kick",)) for state in (_BURIED, _DELAYED)},
    "delete": {state: Move(_DONE, "delete", ("delete",)) for state in (_R, _T, _BURIED, _DELAYED)},
    "cancel": {state: Move(_DONE, "cancel", ("delete",)) for state in (_R, _T, _BURIED, _DELAYED)},
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

#: The counters of `Statistics.calls`.
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
