"""The Python processes that Spark runs its tasks in."""

from __future__ import annotations

import gc

from pyspark import TaskContext

_settled = False


def freeze_loaded() -> None:
    """Called by what runs in a task: let collections of garbage pass over all that the process has loaded.

    Spark makes one after each of its tasks, over pyspark and pyarrow again and again: some 50 ms.
    """
    global _settled
    if not _settled and TaskContext.get() is not None:
        _settled = True
        gc.freeze()
