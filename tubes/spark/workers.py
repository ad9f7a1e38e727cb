"""The Python processes that Spark runs its tasks in."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
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
