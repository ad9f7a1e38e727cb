"""What the command shows of what the library logs: nothing of it where the program has set up logs of its own."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import Final

from typing_extensions import override

from tubes.cli.exits import say

_NAME: Final = "tubes"
#: The loggers whose handlers get what a worker logs.
_LOGGERS: Final = (None, _NAME, f"{_NAME}.worker")


class _Ours(logging.Handler):
    """Has no say where the program has set up its logs."""

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


class _LeftOut(_Ours):
    """Says in a line what is left out of what a command shows."""

    @override
    def _print(self, words: str) -> None:
        say(words)


_SILENT: Final = logging.NullHandler()
_LEFT_OUT: Final = _LeftOut("warning: ")


def _has_own_logs() -> bool:
    """Whether the program has set up logs: then those have what the library logs, and nothing is printed twice."""
    handlers = [handler for name in _LOGGERS for handler in logging.getLogger(name).handlers]
    return not all(isinstance(handler, (_Ours, logging.NullHandler)) for handler in handlers)


def hide_logs() -> None:
    """What goes wrong in the background is no news for a command: what it asks for fails, and says so."""
    logging.getLogger(_NAME).addHandler(_SILENT)
    logging.getLogger(f"{_NAME}.told").addHandler(_LEFT_OUT)


def show_logs(*, is_one_of_many: bool) -> None:
    """A worker has news: it starts, handlers fail, a server is away."""
    logging.getLogger(f"{_NAME}.told").removeHandler(_LEFT_OUT)
    prefix = f"tubes[{os.getpid()}]: " if is_one_of_many else "tubes: "
    logging.getLogger(_NAME).addHandler(_Ours(prefix))


def log_from(level: int) -> None:
    """Log from this level on, unless the program has set up its logs: then it has chosen the level, too."""
    logger = logging.getLogger(_NAME)
    if logger.level == logging.NOTSET and not _has_own_logs():
        logger.setLevel(level)
