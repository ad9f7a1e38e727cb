"""Moving tasks from one tube to another: which ones, and what of them the other tube gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tubes.drivers.moves import State, check_state
from tubes.drivers.options import SECOND, Addressed, whole
from tubes.drivers.timers import NEVER
from tubes.errors import InvalidOption, TubeFull, TubesError
from tubes.values.batch import Item
from tubes.values.task import TaskView

#: How many tasks are moved at a time.
SOME: Final = 250


def check_move(source: Any, target: Any, kind: type, state: object, limit: object) -> int | None:
    """How many tasks are moved at most; None: all."""
    if not isinstance(target, kind):
        raise InvalidOption(option="tube", value=target, rule=f"must be a {kind.__name__}")
    # Another URL may lead to the same tube.
    if (target.name, target._port.born) == (source.shared.name, source.born):  # type: ignore[attr-defined]
        raise InvalidOption(option="tube", value=source.tube.name, rule="must be another tube")
    check_state(state, (State.READY, State.DELAYED, State.BURIED))
    return None if limit is None else whole("limit", limit)


def next_some(limit: int | None, moved: int, most: int = SOME) -> int:
    """How many tasks are moved next, after so many; `most`: those that go at once."""
    return most if limit is None else min(most, limit - moved)


def fewer(error: TubesError, tasks: Sequence[TaskView], name: str) -> int:
    """How many tasks go at once after another tube, of this name, did not accept these: half, if there is no room.

    Raises an error that does not depend on how many they are; it names the task.
    """
    facts = dict(error.facts)
    if isinstance(error, TubeFull) or (isinstance(error, InvalidOption) and facts.get("option") == "items"):
        if len(tasks) > 1:
            return len(tasks) // 2
    elif "item" in facts:
        number: int = facts.pop("item")
        raise type(error)(**facts, moved=tasks[number].id, to=name) from error.__cause__
    raise error


def items_of(tasks: Iterable[TaskView], now: int) -> list[Item]:
    """What another tube gets of tasks: all that was put, and what is left of their times."""
    return [Item(task.data, **_options_of(task, now)) for task in tasks]


def item_again(task: TaskView) -> Item:
    """What is put where a done task is to be done again."""
    if task._state is not State.DONE:
        rule = f"must be a done task: it is {task._state}"
        raise InvalidOption(option="task", value=task.id, rule=rule, current=str(task._state))
    return Item(task.data, **_options_of(task, task._record.created))


def _options_of(task: TaskView, now: int) -> Any:
    options: dict[str, Any] = {}
    ttl, ttr, due, dead = task._times
    delay = 0
    if task._state is State.DELAYED and due is not None:
        delay = max(due - now, 0)
        options["delay"] = delay / SECOND
    if ttl is not None and dead is not None and dead != NEVER:
        # A delay prolongs the ttl, and what is left has that in it.
        options["ttl"] = max(dead - now - delay, 0) / SECOND
    if ttr is not None:
        options["ttr"] = ttr / SECOND
    if task.key is not None:
        options |= {"key": task.key, "on_duplicate": "raise"}
    if task._more is not None:
        spans = {"keep_done": task._more.keep_done, "key_ttl": task._more.key_ttl}
        options |= {name: span / SECOND for name, span in spans.items() if span}
        if task._more.context:
            options["context"] = Addressed(task._more.context)
    known = {"pri": task.pri or None, "utube": task.utube, "max_attempts": task.max_attempts}
    return options | {name: value for name, value in known.items() if value is not None}
