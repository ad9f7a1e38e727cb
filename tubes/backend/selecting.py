"""Selections: their filters, their scans, and the changes that they make."""

from __future__ import annotations

import sys
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from tubes.drivers.entry import NO_EXTRAS
from tubes.drivers.moves import State, check_state
from tubes.drivers.options import NO_LANE, flag, integer, micros, text
from tubes.errors import InvalidOption, cut, did_you_mean
from tubes.values.codecs import JsonCodec
from tubes.values.lane import lane_of
from tubes.values.reasons import has_reason

if TYPE_CHECKING:
    from tubes.drivers.driver import Driver
    from tubes.drivers.entry import Extras
    from tubes.values.task import F

#: The maximum length of `contains` and `function`: a server may compare all of it at each byte of the data.
MAX_CONTAINS: Final = 256
#: Tasks per part: a part takes a few milliseconds.
PART: Final = 250
#: A task as a selection has seen it: id, moment of its put, letter of its state, attempts, number of its take.
Seen: TypeAlias = tuple[int, int, str, int, int]
#: The states that each change applies to.
CHANGED_STATES: Final = {
    "kick": (State.BURIED, State.DELAYED),
    "release": (State.TAKEN,),
    "bury": (State.READY, State.TAKEN, State.DELAYED),
    "delete": tuple(State),
    "cancel": (State.READY, State.TAKEN, State.BURIED, State.DELAYED),
    "move": (State.READY, State.DELAYED, State.BURIED),
}
_WORDS: Final = tuple(str(state) for state in State)
_to_json: Final = JsonCodec().encode


class _Facts(Protocol):
    """The part of a task of the engine, living or done, that filters read."""

    @property
    def data(self) -> Any: ...
    @property
    def created(self) -> int: ...
    @property
    def attempts(self) -> int: ...
    @property
    def utube(self) -> str | None: ...
    @property
    def extras(self) -> Extras | None: ...


class Filters(NamedTuple):
    """The checked arguments of `Tube.select`; times are microseconds."""

    state: State | None
    reason: str | None
    contains: bytes | None
    function: str | None
    lane: str | None
    key: str | None
    older_than: int | None
    attempts: int
    newest_first: bool
    limit: int | None

    def accepts(self, task: _Facts, now: int) -> bool:
        """Return True if a task passes the filters, except its state and those of its data."""
        extras = task.extras
        if task.attempts < self.attempts or (self.older_than is not None and now - task.created < self.older_than):
            return False
        if self.lane is not None and (NO_LANE if task.utube is None else task.utube) != self.lane:
            return False
        if self.key is not None and (extras is None or extras.key != self.key):
            return False
        return self.reason is None or has_reason(None if extras is None else extras.reason, self.reason)


def encoded_data(data: object) -> bytes:
    """Return the text of objects that are stored unchanged: their JSON, or else what `repr` returns, or their type."""
    if isinstance(data, (bytes, bytearray)):
        return bytes(data)
    try:
        return _to_json(data)
    except Exception:
        return cut(repr, data, sys.maxsize - 1).encode("utf-8", "surrogatepass")


class Scan:
    """The progress of a pass over a selection.

    Tasks that are put after its start are left out. It returns each task once, even if its place changes meanwhile, so
    that every pass ends.
    """

    __slots__ = ("_returned", "after", "bound", "cursor", "ended")

    def __init__(self, filters: Filters, after: int | None = None) -> None:
        #: The id of the task after which the first part begins; None: at the start.
        self.after = after
        #: The place of the next part, in a form that the backend chooses; None: the first part.
        self.cursor: Any = None
        #: The id of the next put at the start; None: not known yet.
        self.bound: int | None = None
        self.ended = filters.limit == 0
        # The returned ids, as bits by their upper digits.
        self._returned: dict[int, int] = {}
        if after is not None:
            self.is_new(after)

    def is_new(self, id: int) -> bool:
        """Return True if no earlier part had this task, and note it."""
        bits, bit = self._returned.get(id >> 10, 0), 1 << (id & 1023)
        self._returned[id >> 10] = bits | bit
        return not bits & bit


def check_filters(
    driver: Driver,
    state: object,
    reason: object,
    contains: object,
    function: object,
    lane: object,
    key: object,
    older_than: object,
    attempts: object,
    newest_first: object,
    limit: object,
) -> Filters:
    wanted = None if state is None else _check_state(state)
    why = None if reason is None else text("reason", reason)
    if why is not None and wanted is None:
        wanted = State.BURIED
    elif why is not None and wanted not in (State.BURIED, State.DONE):
        rule = "must be left out with this state: only buried and done tasks have a reason"
        raise InvalidOption(option="reason", value=reason, rule=rule, state=str(wanted))
    return Filters(
        wanted,
        why,
        None if contains is None else _check_part(contains),
        None if function is None else _check_function(function),
        None if lane is None else lane_of(driver, lane),
        None if key is None else text("key", key),
        None if older_than is None else micros("older_than", older_than),
        0 if attempts is None else integer("attempts", attempts),
        flag("newest_first", newest_first),
        None if limit is None else integer("limit", limit),
    )


def _check_state(state: object) -> State:
    try:
        return check_state(state)
    except InvalidOption as error:
        hint = did_you_mean(state, _WORDS) if isinstance(state, str) else ""
        raise InvalidOption(**error.facts | {"rule": f"{error.facts['rule']}{hint}"}) from None


def _check_part(contains: object) -> bytes:
    """Check the text or bytes that the data must contain."""
    if isinstance(contains, (str, bytes, bytearray)) and 0 < len(contains) <= MAX_CONTAINS:
        return contains.encode("utf-8", "surrogatepass") if isinstance(contains, str) else bytes(contains)
    rule = f"must be a text or bytes, not empty, of at most {MAX_CONTAINS} characters or bytes"
    raise InvalidOption(option="contains", value=contains, rule=rule)


def _check_function(function: object) -> str:
    if len(name := text("function", function)) > MAX_CONTAINS:
        raise InvalidOption(option="function", value=function, rule=f"must have at most {MAX_CONTAINS} characters")
    return name


def narrowed(filters: Filters, act: str) -> Filters:
    """Return the filters of the tasks that a change applies to."""
    states = CHANGED_STATES[act]
    if filters.state is None:
        return filters._replace(state=states[0]) if len(states) == 1 else filters
    return filters if filters.state in states else filters._replace(limit=0)


def changeable(act: str, seen: list[Seen]) -> list[Seen]:
    letters = {state.letter for state in CHANGED_STATES[act]}
    return [one for one in seen if one[2] in letters]


def changeable_tasks(act: str, tasks: list[F]) -> list[F]:
    return [task for task in tasks if task._state in CHANGED_STATES[act]]


def see_all(tasks: list[F]) -> list[Seen]:
    """Return the `Seen` of each task."""
    taken = State.TAKEN
    return [
        (task.id, task._record.created, task._state.letter, task._attempts, task._take if task._state is taken else 0)
        for task in tasks
    ]


def cancelled_tasks(tasks: list[F], done: list[bool], reason: str | None) -> list[F]:
    """Return the tasks that were cancelled, with the reason."""
    found = [task for task, is_done in zip(tasks, done, strict=True) if is_done]
    for task in found:
        task._extras = (task._extras or NO_EXTRAS)._replace(reason=reason)
    return found


def check_progress(callback: object) -> None:
    if callback is not None and (not callable(callback) or iscoroutinefunction(callback)):
        raise InvalidOption(option="on_progress", value=callback, rule="must be a plain function")


def part_size(filters: Filters, done: int) -> int:
    """Return the maximum number of tasks of the next part after `done` tasks; 0: the limit is reached.

    With filters a part may find few tasks, so its size does not depend on the limit.
    """
    left = remaining(filters, done)
    if left is None or (left and any(filters[1:8])):
        return PART
    return min(PART, left)


def remaining(filters: Filters, done: int) -> int | None:
    """Return the number of tasks that the limit allows after `done` tasks; None: any number."""
    return None if filters.limit is None else filters.limit - done
