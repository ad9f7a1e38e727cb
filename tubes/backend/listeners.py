"""Listeners: functions that are called after every change of a tube."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, Protocol

from tubes.errors import InvalidOption

_log = logging.getLogger("tubes")


class Listener(Protocol):
    """A function of a task and the name of an event."""

    def __call__(self, task: object, event: str, /) -> object: ...


def check_listener(callback: object, wrap: Callable[[Listener], Listener] | None) -> Listener | None:
    """Check a user's callback and return its listener, or None for None. `wrap`: makes the listener of the API."""
    if callback is None:
        return None
    if not callable(callback):
        raise InvalidOption(option="callback", value=callback, rule="must be callable, or None")
    if iscoroutinefunction(callback):
        raise InvalidOption(
            option="callback", value=callback, rule="must be a plain function: an async one is never awaited"
        )
    listener: Listener = callback
    return listener if wrap is None else wrap(callback)


def notify_listener(listener: Listener, task: Any, event: str) -> None:
    """Call a listener for one change, and log its error if it raises."""
    try:
        listener(task, event)
    except KeyboardInterrupt:
        raise
    except BaseException:
        _log.exception("a listener of tube %r failed on event %r of task %d", task.tube, event, task.id)


def thread_listener(callback: Listener) -> Listener:
    """Return the listener for threads: the thread that made the change calls it."""
    return callback


class LoopListener:
    """Calls a callback in the event loop that registered it, in the order of the changes, from any thread."""

    def __init__(self, callback: Listener) -> None:
        self.callback = callback
        self._loop = asyncio.get_running_loop()
        self._pending: deque[tuple[object, str]] = deque()
        # Only the thread of the loop uses it.
        self._is_delivering = False

    def __call__(self, task: object, event: str) -> None:
        self._pending.append((task, event))
        if asyncio._get_running_loop() is self._loop:
            self._deliver()
            return
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # The loop is closed, so the callback can no longer be called.
            self._pending.clear()

    def _deliver(self) -> None:
        if self._is_delivering:  # The callback has made a change itself, and is notified of it after this one.
            return
        self._is_delivering = True
        try:
            while self._pending:
                notify_listener(self.callback, *self._pending.popleft())
        finally:
            self._is_delivering = False


def callback_of(listener: Listener | None) -> Listener | None:
    """Return the user's callback that this listener calls."""
    return listener.callback if isinstance(listener, LoopListener) else listener
