"""Who is called at every change of a tube, and how."""

from __future__ import annotations

import logging
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from tubes.errors import InvalidOption

_log = logging.getLogger("tubes")

#: Called with a task and the name of an event.
Listener = Callable[[Any, str], object]


def check_listener(callback: Any, wrap: Callable[[Any], Listener] | None) -> Listener | None:
    """The listener for a user's callback, None for none; `wrap`: what makes the face's listener of it."""
    if callback is None:
        return None
    if not callable(callback):
        raise InvalidOption(option="callback", value=callback, rule="must be callable, or None")
    if iscoroutinefunction(callback):
        raise InvalidOption(option="callback", value=callback, rule="must be a plain function: it is not awaited")
    listener: Listener = callback
    return listener if wrap is None else wrap(callback)


def tell(listener: Listener, task: Any, event: str) -> None:
    """Tell a listener of one change; what it raises is logged."""
    try:
        listener(task, event)
    except KeyboardInterrupt:
        raise
    except BaseException:
        _log.exception("a listener of tube %r failed on event %r of %r", task.tube, event, task)
