"""Signal handlers that end a worker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final, TypeAlias

from tubes.worker.processes import kill_all

#: A signal handler as `signal.signal` returns it; None if it was not installed by Python.
_Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: Seconds from the second signal until the process exits in any case.
_EXIT_DELAY: Final = 2.0


@contextmanager
def stop_on_signals(stop: Callable[[bool], object], at_once: int) -> Generator[None]:
    """Call `stop(False)` at the first SIGTERM or SIGINT, and `stop(True)` at the second. Only in the main thread.

    If the second signal has no effect, because a handler blocks the event loop, the process exits with the code
    `at_once`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    timers: list[threading.Timer] = []
    process = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:
            _raise_with(number, previous[signal.Signals(number)])
            return
        received.append(number)
        stop(len(received) > 1)
        if len(received) == 2:
            timers.append(exit_soon(at_once))

    previous: dict[signal.Signals, _Handler] = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, _default(handler))
        for timer in timers:
            timer.cancel()


def _raise_with(number: int, previous: _Handler) -> None:
    """Restore the previous handler in a fork, such as a child of `multiprocessing`, and raise the signal again."""
    signal.signal(number, _default(previous))
    signal.raise_signal(number)


def _default(handler: _Handler) -> Callable[[int, FrameType | None], object] | int:
    """Return the handler to restore: the default if it was not installed by Python."""
    return signal.SIG_DFL if handler is None else handler


def exit_soon(code: int) -> threading.Timer:
    """Exit the process with this code in two seconds, unless the returned timer is cancelled."""
    timer = threading.Timer(_EXIT_DELAY, _end, [code])
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:  # A thread cannot be started.
        _end(code)
    return timer


def _end(code: int) -> None:
    try:
        kill_all()
    finally:
        os._exit(code)


@contextmanager
def exit_on_sigterm(code: Callable[[], int]) -> Generator[None]:
    """Raise `SystemExit` at SIGTERM: process 1 of a container would otherwise ignore it. Only in the main thread.

    `code`: called for the exit code.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    process = os.getpid()

    def leave(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            raise SystemExit(int(code()))
        _raise_with(number, previous)

    previous: _Handler = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, _default(previous))
