"""State of the Python worker processes in which Spark runs its tasks: connections, and garbage collection."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

import tubes
from tubes.errors import TubesError

if TYPE_CHECKING:
    from tubes.sync import Queue

#: Undocumented properties of a Spark task that this package uses: the id of its query, and of its micro-batch. A test
#: of `tests/spark/test_session_versions.py` fails if a version of Spark does not set them.
INTERNAL: Final = ("sql.streaming.queryId", "streaming.sql.batchId")
#: (URL with its password, codec, process id) -> an idle connection. The most recently used one comes last.
_idle: Final[dict[tuple[str, str, int], Queue]] = {}
#: Maximum number of idle connections.
_MAX_IDLE: Final = 4

_is_frozen = False


def freeze_loaded() -> None:
    """Exclude all objects loaded so far from garbage collection. Has an effect only within a Spark task.

    Spark collects garbage after each task, which takes some 50 ms for the objects of pyspark and pyarrow.
    """
    global _is_frozen
    if not _is_frozen and TaskContext.get() is not None:
        _is_frozen = True
        gc.freeze()


def find_slots() -> int | None:
    """Return the number of Spark tasks that run at a time, or None outside a Spark task or if it is not configured."""
    context = TaskContext.get()
    return None if context is None else slots_of(context.getLocalProperty)


def slots_of(setting: Callable[[str], str | None]) -> int | None:
    """Return the number of Spark tasks that run at a time, by Spark's settings, or None."""

    def number(name: str) -> int | None:
        words = setting(name) or ""
        return int(words) if words.isdecimal() and int(words) else None

    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", setting("spark.master") or "")
    if local is not None:
        return os.cpu_count() if local[1] == "*" else int(local[1] or 1)
    is_dynamic = setting("spark.dynamicAllocation.enabled") == "true"
    executors = number("spark.dynamicAllocation.maxExecutors" if is_dynamic else "spark.executor.instances")
    cores = (number("spark.executor.cores") or 1) // (number("spark.task.cpus") or 1)
    known = executors * max(cores, 1) if executors else number("spark.cores.max")
    return number("spark.default.parallelism") or known


class ShortErrors:
    """A block whose errors contain no earlier calls and no cause: Spark prints a traceback several times."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, TubesError):
            raise error.with_traceback(None) from None


@contextmanager
def shared_queue(url: str, codec: str) -> Generator[Queue]:
    """Borrow an idle connection of this process, or open one.

    Spark uses a worker process for many of its tasks, one after the other. The block has the connection for itself, and
    must hold no tasks at its end. After an error the connection is closed.
    """
    key = url, codec, os.getpid()
    queue = _idle.pop(key, None) or tubes.connect(url, codec=codec, session_ttl=30.0)
    try:
        yield queue
    except Exception:
        _close(queue)
        raise
    except GeneratorExit:
        _release(key, queue)
        raise
    else:
        _release(key, queue)


def _release(key: tuple[str, str, int], queue: Queue) -> None:
    duplicate = _idle.pop(key, None)
    if duplicate is not None:
        _close(duplicate)
    _idle[key] = queue
    while len(_idle) > _MAX_IDLE:
        _close(_idle.pop(next(iter(_idle))))


def _close(queue: Queue) -> None:
    with suppress(TubesError):
        queue.close()
