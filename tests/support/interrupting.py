"""Interrupts at chosen moments: the first in a call, the second in the repair of the first."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def interrupt_twice(call: Callable[[], object], first: int, second: int) -> int:
    """Call with a KeyboardInterrupt at moment `first` and another one `second` moments later; return their number.

    A moment is the start of a Python function or the return of a built-in one, except in `logging`, whose lock would
    stay locked.
    """
    left, count = first, 0

    def watch(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left, count
        if event in ("call", "c_return") and frame.f_code.co_filename != logging.__file__:
            left -= 1
            if left < 0:  # An exception removes the profiler.
                count += 1
                raise KeyboardInterrupt

    def follow(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        frame.f_trace_lines = False
        if event == "exception" and argument[0] is KeyboardInterrupt and count == 1 and left < 0:
            left = second
            sys.setprofile(watch)
        return follow

    gc.disable()  # An interrupt of a finalizer has no effect.
    try:
        sys.settrace(follow)
        sys.setprofile(watch)
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
        sys.settrace(None)
        gc.enable()
    return count
