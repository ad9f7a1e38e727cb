"""The logger of workers."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Final

from typing_extensions import override


class TaskName(str):
    """The name of a task in a log line. Its `fields` are added to the log record."""

    __slots__ = ("fields",)
    fields: dict[str, object]


class _Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls never raise: an error in a program's logging setup must not end tasks or threads.

    A record about a task has the fields `tube`, `task`, `attempt` and `context`.
    """

    @override
    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        try:
            options["stacklevel"] = 2  # Report the caller's line.
            for task in args:
                if isinstance(task, TaskName):
                    options["extra"] = task.fields
            super().log(level, msg, *args, **options)
        except Exception:
            if logging.raiseExceptions and sys.stderr is not None:
                with suppress(Exception):
                    traceback.print_exc()

    @override
    def process(self, msg: object, kwargs: MutableMapping[str, object]) -> tuple[object, MutableMapping[str, object]]:
        return msg, kwargs


log: Final = _Log(logging.getLogger("tubes.worker"))
