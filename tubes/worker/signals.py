"""Signals that end a worker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from tubes.worker.summary import AT_ONCE

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: Seconds after the second signal until the process ends, whatever is in the way.
_LAST_MOMENT: Final = 2.0


@contextmanager
def heeding(stop: Callable[[bool], object]) -> Generator[None]:
    """The first signal calls `stop(False)`, the second `stop(True)`; in the main thread, elsewhere there are none.

    If the second one is of no use, since a handler blocks the event loop, the process ends all the same.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    timers: list[threading.Timer] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        stop(len(heard) > 1)
        if len(heard) == 2:
            timer = threading.Timer(_LAST_MOMENT, os._exit, [AT_ONCE])
            timer.daemon = True
            timers.append(timer)
            timer.start()

    before: dict[signal.Signals, Any] = {number: signal.signal(number, hear) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        for timer in timers:
            timer.cancel()
