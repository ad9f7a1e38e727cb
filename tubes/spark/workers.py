"""The Python processes that Spark runs its tasks in."""

from __future__ import annotations

import gc

from pyspark import TaskContext

_settled = False


def freeze_loaded() -> None:
    """Exclude all that the process has loaded from garbage collection. Called within a Spark task.

    Spark collects after each of its tasks; over pyspark and pyarrow that takes some 50 ms.
    """
    global _settled
    if not _settled and TaskContext.get() is not None:
        _settled = True
        gc.freeze()
