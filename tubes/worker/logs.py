"""The logger of workers."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Final

from typing_extensions import override

#: Longest traceback of a record, in characters.
_MAX_TRACE: Final = 20_000
#: A line that is cut in longer ones.
_LONG_LINE: Final = re.compile("(.{500}).+")


class TaskName(str):
    """The name of a task in a log line. Its `fields` are added to the log record."""

    __slots__ = ("fields",)
    fields: dict[str, object]


class _Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls never raise: an error in a program's logging setup must not end tasks or threads.

    A record about a task has the fields `tube`, `task`, `attempt`, `context` and `function`.
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


class _ShortTraces(logging.Filter):
    """Cuts long tracebacks: an error may quote megabytes, and have a note that repeats them."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and not record.exc_text:
            text = "".join(traceback.format_exception(*record.exc_info)).rstrip()
            if len(text) > _MAX_TRACE:
                text = _LONG_LINE.sub(r"\1...", text)
                half = _MAX_TRACE // 2
                record.exc_text = text if len(text) <= _MAX_TRACE else f"{text[:half]}\n[...]\n{text[-half:]}"
        return True


_logger: Final = logging.getLogger("tubes.worker")
_logger.addFilter(_ShortTraces())
log: Final = _Log(_logger)
