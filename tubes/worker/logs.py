"""The log of workers."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Final

from typing_extensions import override


class _Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls never fail: an error in a program's log setup must not end tasks or threads."""

    @override
    def log(self, level: int, msg: object, *args: object, **more: Any) -> None:
        try:
            more["stacklevel"] = 2  # The caller's line.
            super().log(level, msg, *args, **more)
        except Exception:
            if logging.raiseExceptions and sys.stderr is not None:
                with suppress(Exception):
                    traceback.print_exc()

    @override
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs


log: Final = _Log(logging.getLogger("tubes.worker"))
