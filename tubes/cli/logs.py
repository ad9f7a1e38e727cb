"""Print log records of the library on stderr, unless the program has configured logging itself."""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from tubes.cli.exits import say
from tubes.cli.streams import printable

_NAME: Final = "tubes"
#: The loggers whose handlers receive the records of a worker.
_LOGGERS: Final = (None, _NAME, f"{_NAME}.worker")


#: The folder whose frames are left out of tracebacks.
_PACKAGE: Final = str(Path(__file__).parents[1])


class _Formatter(logging.Formatter):
    """Formats a record with its time and level. Tracebacks contain the frames of the program, not those of tubes."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))

    @override
    def formatException(self, ei: Any) -> str:
        error = traceback.TracebackException(*ei)
        _cut(error)
        return "".join(error.format()).rstrip()


def _cut(error: traceback.TracebackException) -> bool:
    """Remove the frames of tubes, and chained errors without other frames. Return True if there are other frames."""
    error.stack[:] = [frame for frame in error.stack if not frame.filename.startswith(_PACKAGE)]
    for name in ("__cause__", "__context__"):
        chained: traceback.TracebackException | None = getattr(error, name)
        if chained is not None and not _cut(chained):
            setattr(error, name, None)
    has_frames = bool(error.stack)
    if not has_frames:
        error.stack = None  # type: ignore[assignment]  # Print no header of an empty traceback.
    return has_frames


class _StderrHandler(logging.Handler):
    """Prints records on stderr, unless the program has configured logging itself."""

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
_WARNINGS: Final = _WarningHandler()
_WARNINGS.setFormatter(logging.Formatter("warning: %(message)s"))


def _has_own_logs() -> bool:
    """Return True if the program has configured logging: its handlers get the records, so the command prints none."""
    handlers = [handler for name in _LOGGERS for handler in logging.getLogger(name).handlers]
    return not all(isinstance(handler, (_StderrHandler, logging.NullHandler)) for handler in handlers)


def hide_logs() -> None:
    """Hide log records about background errors: if they matter to a command, its own call fails with a message."""
    logging.getLogger(_NAME).addHandler(_SILENT)
    logging.getLogger(f"{_NAME}.unreadable").addHandler(_WARNINGS)


def show_logs(*, is_one_of_many: bool) -> None:
    """Print the log records of a worker, with time and level; with the process if it is one of many."""
    logging.getLogger(f"{_NAME}.unreadable").removeHandler(_WARNINGS)
    handler = _StderrHandler()
    process = "[%(process)d] " if is_one_of_many else ""
    handler.setFormatter(_Formatter(f"%(asctime)s %(levelname)s {process}%(message)s"))
    logging.getLogger(_NAME).addHandler(handler)


def set_log_level(level: int) -> None:
    """Set the log level, unless the program has configured logging or the level itself."""
    logger = logging.getLogger(_NAME)
    if logger.level == logging.NOTSET and not _has_own_logs():
        logger.setLevel(level)
