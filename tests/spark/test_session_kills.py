"""Streams whose driver, with its JVM and executors, is killed repeatedly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tubes

from .conftest import environment
from .program import stream

pytestmark = pytest.mark.full

PROGRAM = Path(__file__).parent / "program.py"


def test_repeatedly_killed_queries_lose_and_repeat_nothing(
    spark: Any, queue: tubes.Queue, options: dict[str, str], tmp_path: Path
) -> None:
    """One query writes files and one a tube. `make soak-faults` uses more tasks and more kills."""
    tasks, kills = int(os.environ.get("TUBES_KILL_TASKS", 3000)), int(os.environ.get("TUBES_KILLS", 1))
    sources = [queue.create_tube(name) for name in ("t", "u")]
    results = queue.create_tube("results")
    for source in sources:
        source.put_many([f"{number}" for number in range(tasks)])
    command = [sys.executable, str(PROGRAM), json.dumps(options), str(tmp_path)]
    for kill in range(kills):
        goal = tasks * (kill + 1) // (kills + 2)
        assert any(_was_killed(command, sources, goal, tmp_path / "log") for _ in range(5))
    # The Spark session of this process continues the streams.
    assert any(_has_ended(spark, options, tmp_path) for _ in range(5))
    everything = Counter(f"{number}" for number in range(tasks))
    assert Counter(task.data for task in iter(lambda: results.take(timeout=0), None)) == everything
    assert Counter(_rows_in(tmp_path / "out")) == everything
    assert [source.statistics().tasks["total"] for source in sources] == [0, 0]


#: Error of a race within Spark, which serializes a stage while it changes it. The test restarts the query.
_GAVE_UP = "Task serialization failed: java.lang.IllegalStateException: Illegal size"


def _was_killed(command: list[str], sources: list[tubes.Tube], goal: int, log: Path) -> bool:
    """Run the program until `goal` tasks are done, and kill it. Return False if Spark failed by itself."""
    with log.open("w") as stderr:
        process = subprocess.Popen(command, env={**os.environ, **environment()}, stderr=stderr, start_new_session=True)
    try:
        ends = time.monotonic() + 400
        while min(source.statistics().tasks["done"] for source in sources) < goal:
            if (code := process.poll()) is not None:
                if code and _GAVE_UP in log.read_text():
                    return False
                assert code == 0, log.read_text()[-5000:]
                break
            assert time.monotonic() < ends
            time.sleep(0.02)
    finally:
        if process.poll() is None:  # Kill the driver, its JVM and all executors together.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return True


def _has_ended(spark: Any, options: dict[str, str], folder: Path) -> bool:
    """Run the streams to their ends. Return False if Spark failed by itself."""
    from pyspark.errors import StreamingQueryException

    try:
        stream(spark, options, str(folder))
    except StreamingQueryException as error:
        if _GAVE_UP in str(error):
            return False
        raise
    return True


def _rows_in(folder: Path) -> list[str]:
    """Return the rows of all files that Spark's file sink has committed according to its log."""
    parquet: Any = import_module("pyarrow.parquet")
    names: dict[str, None] = {}
    for entry in (folder / "_spark_metadata").iterdir():
        if not entry.name.startswith("."):
            for line in entry.read_text().splitlines()[1:]:
                names[json.loads(line)["path"].removeprefix("file://")] = None
    return [text for name in names for text in parquet.read_table(name)["data"].to_pylist()]
