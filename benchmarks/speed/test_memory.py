"""Bytes of Python memory per waiting task, beyond its data."""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from benchmarks.speed.subjects import TUBES, Subject
from benchmarks.speed.table import Comparison, Results

if TYPE_CHECKING:
    from benchmarks.speed.conftest import Scale

_LIMIT = 600


@pytest.mark.parametrize("subject", TUBES, ids=lambda subject: subject.name)
def test_memory(subject: Subject, scale: Scale, results: Results) -> None:
    """All tasks share one data object, and the names of utubes belong to the user: neither counts."""
    stage = subject.stage()
    batch = stage.batch(scale.memory_tasks)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        stage.put(batch)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        stage.close()
    goal = 1 if subject.name == "fifo" else None
    comparison = Comparison("memory", f"{subject.name}: a waiting task", "limit", goal=goal, unit="bytes")
    results.compare(comparison, "ours", (after - before) / scale.memory_tasks)
    results.compare(comparison, "yardstick", _LIMIT)
