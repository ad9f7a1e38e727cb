"""Signals that end a worker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final, TypeAlias

from tubes.worker.processes import kill_all

#: Python's handler of a signal; None: it was not set by Python.
_Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: Seconds after the second signal until the process ends in any case.
_LAST_MOMENT: Final = 2.0


@contextmanager
def heeding(stop: Callable[[bool], object], at_once: int) -> Generator[None]:
    """The first signal calls `stop(False)`, the second `stop(True)`; in the main thread only.

    If the second one has no effect, since a handler blocks the event loop, the process ends with the code `at_once`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    timers: list[threading.Timer] = []
    process = os.getpid()

    def hear(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:
            _pass_on(number, before[signal.Signals(number)])
            return
        heard.append(number)
        stop(len(heard) > 1)
        if len(heard) == 2:
            timers.append(end_soon(at_once))

    before: dict[signal.Signals, _Handler] = {number: signal.signal(number, hear) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, _default(handler))
        for timer in timers:
            timer.cancel()


def _pass_on(number: int, before: _Handler) -> None:
    """In a fork, for example by `multiprocessing` in a handler, a signal has its former effect."""
    signal.signal(number, _default(before))
    signal.raise_signal(number)


def _default(handler: _Handler) -> Callable[[int, FrameType | None], object] | int:
    """What stood there before; None: what Python knows nothing of."""
    return signal.SIG_DFL if handler is None else handler


def end_soon(code: int) -> threading.Timer:
    """End the process with this code in a moment, unless the returned timer is cancelled."""
    timer = threading.Timer(_LAST_MOMENT, _end, [code])
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:  # The system has no thread for it.
        _end(code)
    return timer


def _end(code: int) -> None:
    try:
        kill_all()
    finally:
        os._exit(code)


@contextmanager
def leaving(code: Callable[[], int]) -> Generator[None]:
    """SIGTERM raises `SystemExit` if nothing else handles it: process 1 of a container would ignore it.

    `code`: asked for the exit code. In the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    process = os.getpid()

    def leave(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            raise SystemExit(int(code()))
        _pass_on(number, before)

    before: _Handler = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, _default(before))
