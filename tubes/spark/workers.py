"""The Python processes that Spark runs its tasks in."""

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

#: Connections that nobody uses, the last used one last: by URL, which has the password, codec and process.
_idle: Final[dict[tuple[str, str, int], Queue]] = {}
#: More are closed.
_MOST_IDLE: Final = 4

_settled = False


def freeze_loaded() -> None:
    """Exclude all that the process has loaded from garbage collection. Called within a Spark task.

    Spark collects after each of its tasks; over pyspark and pyarrow that takes some 50 ms.
    """
    global _settled
    if not _settled and TaskContext.get() is not None:
        _settled = True
        gc.freeze()


def find_slots() -> int | None:
    """How many of its tasks Spark runs at a time; None: its settings do not say. Called within a Spark task."""
    context = TaskContext.get()
    return None if context is None else slots_of(context.getLocalProperty)


def slots_of(setting: Callable[[str], str | None]) -> int | None:
    """The same, by Spark's settings."""

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


@contextmanager
def shared_queue(url: str, codec: str) -> Generator[Queue]:
    """A connection that this process has used before, or a new one. Whoever has it has it alone, and holds no tasks.

    Spark uses a worker process for many of its tasks, one after the other. After an error the connection is closed.
    """
    key = url, codec, os.getpid()
    queue = _idle.pop(key, None) or tubes.connect(url, codec=codec, session_ttl=30.0)
    try:
        yield queue
    except Exception:
        _close(queue)
        raise
    except GeneratorExit:
        _give_back(key, queue)
        raise
    else:
        _give_back(key, queue)


def _give_back(key: tuple[str, str, int], queue: Queue) -> None:
    other = _idle.pop(key, None)
    if other is not None:
        _close(other)
    _idle[key] = queue
    while len(_idle) > _MOST_IDLE:
        _close(_idle.pop(next(iter(_idle))))


def _close(queue: Queue) -> None:
    with suppress(TubesError):
        queue.close()
