"""Print log records of the library on stderr, unless the program has configured logging itself."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import Final

from typing_extensions import override

from tubes.cli.exits import say

_NAME: Final = "tubes"
#: The loggers whose handlers receive the records of a worker.
_LOGGERS: Final = (None, _NAME, f"{_NAME}.worker")


class _StderrHandler(logging.Handler):
    """Prints records on stderr, unless the program has configured logging itself."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(f"{prefix}%(message)s"))

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if not _has_own_logs():
            self._print(self.format(record))

    def _print(self, words: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{words}\n")
            sys.stderr.flush()


class _WarningHandler(_StderrHandler):
    """Prints a line about data that a command leaves out of its output."""

    @override
    def _print(self, words: str) -> None:
        say(words)


_SILENT: Final = logging.NullHandler()
_WARNINGS: Final = _WarningHandler("warning: ")


def _has_own_logs() -> bool:
    """Return True if the program has configured logging: its handlers get the records, so the command prints none."""
    handlers = [handler for name in _LOGGERS for handler in logging.getLogger(name).handlers]
    return not all(isinstance(handler, (_StderrHandler, logging.NullHandler)) for handler in handlers)


def hide_logs() -> None:
    """Hide log records about background errors: if they matter to a command, its own call fails with a message."""
    logging.getLogger(_NAME).addHandler(_SILENT)
    logging.getLogger(f"{_NAME}.unreadable").addHandler(_WARNINGS)


def show_logs(*, is_one_of_many: bool) -> None:
    """Print the log records of a worker, such as its start, failing handlers and lost connections."""
    logging.getLogger(f"{_NAME}.unreadable").removeHandler(_WARNINGS)
    prefix = f"tubes[{os.getpid()}]: " if is_one_of_many else "tubes: "
    logging.getLogger(_NAME).addHandler(_StderrHandler(prefix))


def set_log_level(level: int) -> None:
    """Set the log level, unless the program has configured logging or the level itself."""
    logger = logging.getLogger(_NAME)
    if logger.level == logging.NOTSET and not _has_own_logs():
        logger.setLevel(level)
