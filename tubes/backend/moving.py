"""Helpers that move tasks between tubes: batch sizes, and the data and options for the other tube."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tubes.drivers.driver import Driver
from tubes.drivers.entry import NO_EXTRAS
from tubes.drivers.failures import without_failures
from tubes.drivers.moves import State
from tubes.drivers.options import SECOND, InternalContext
from tubes.drivers.timers import NEVER
from tubes.errors import Facts, InvalidOption, TubeFull, TubesError
from tubes.values.batch import Item
from tubes.values.task import CHECKPOINT_NAMES, TaskView, reserved_names

#: The default number of tasks per batch.
MOVE_BATCH: Final = 250


def check_target(source: Any, target: Any) -> None:
    """Check the tube to which the tasks of a selection move."""
    kind: type[Any] = source.tube.__class__
    if not isinstance(target, kind):
        raise InvalidOption(option="tube", value=target, rule=f"must be a {kind.__name__}")
    # Two URLs may lead to the same tube.
    if (target.name, target._port.born) == (source.shared.name, source.born):
        raise InvalidOption(option="tube", value=source.tube.name, rule="must be another tube")


def smaller_batch_size(error: TubesError, tasks: Sequence[TaskView], name: str) -> int:
    """Return the next batch size after the tube `name` refused these tasks: half as many if it had no room.

    Any other error does not depend on the size: raise it, with the id of the task.
    """
    facts = dict(error.facts)
    if isinstance(error, TubeFull) or (isinstance(error, InvalidOption) and facts.get("option") == "items"):
        if len(tasks) > 1:
            return len(tasks) // 2
    elif "item" in facts:
        number: int = facts.pop("item")
        raise type(error)(**facts, moved=tasks[number].id, to=name) from error.__cause__
    raise error


def items_of(tasks: Iterable[TaskView], now: int, source: Driver, target: Driver) -> list[Item]:
    """Return the items to put in another tube: the same data and options, with the remaining delay and ttl."""
    has_pri = "pri" in source.options & target.options
    return [Item(task.data, **_options_of(task, now, has_pri=has_pri)) for task in tasks]


def item_of_done(task: TaskView, driver: Driver) -> Item:
    """Return the item that puts a done task again, without the facts of its checkpoints and its failures."""
    if task._state is not State.DONE:
        rule = f"must be a done task: it is {task._state}"
        raise InvalidOption(option="task", value=task.id, rule=rule, current=str(task._state))
    options = _options_of(task, task._record.created, has_pri="pri" in driver.options)
    if "context" in options:
        progress = reserved_names(dict.fromkeys(CHECKPOINT_NAMES, ""))
        options["context"] = InternalContext(
            {name: words for name, words in without_failures(options["context"]).items() if name not in progress}
        )
    return Item(task.data, **options)


def _options_of(task: TaskView, now: int, *, has_pri: bool) -> Any:
    """Return the options of a task. A value of 0 is stated, so that the tube's default does not replace it."""
    extras = task._extras or NO_EXTRAS
    options: Facts = {"keep_done": extras.keep_done / SECOND}
    ttl, ttr, due, dead = task._times
    delay = 0
    if task._state is State.DELAYED and due is not None:
        delay = max(due - now, 0)
        options["delay"] = delay / SECOND
    if ttl is not None and dead is not None and dead != NEVER:
        # The delay was added to the ttl when the task was put, and the new put adds it again.
        options["ttl"] = max(dead - now - delay, 0) / SECOND
    if ttr is not None:
        options["ttr"] = ttr / SECOND
    if task.key is not None:
        options |= {"key": task.key, "on_duplicate": "raise", "key_ttl": extras.key_ttl / SECOND}
    if extras.context:
        options["context"] = InternalContext(extras.context)
    known = {"pri": task.pri if has_pri else task.pri or None, "utube": task.utube, "max_attempts": task.max_attempts}
    return options | {name: value for name, value in known.items() if value is not None}
