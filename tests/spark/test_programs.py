"""Programs that use the data source in a Spark of their own: through Spark Connect, and killed again and again."""

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

import tubes

from .conftest import SETTINGS, environment

PROGRAM = Path(__file__).parent / "program.py"


def test_spark_connect_knows_the_source_too(queue: tubes.Queue, options: dict[str, str]) -> None:
    queue.create_tube("t")
    # In a process of its own: this one has a classic session.
    told = [sys.executable, str(PROGRAM), "connect", json.dumps(options), json.dumps(SETTINGS)]
    known = {**os.environ, **environment()}
    done = subprocess.run(told, env=known, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["20", "20"]
    assert queue.tube("t").statistics().tasks["total"] == 0


def test_queries_that_are_killed_again_and_again_lose_nothing_and_do_nothing_twice(
    queue: tubes.Queue, options: dict[str, str], tmp_path: Path
) -> None:
    """One into files and one into a tube; `make soak-faults` has more tasks and more kills."""
    tasks, kills = int(os.environ.get("TUBES_KILL_TASKS", 4000)), int(os.environ.get("TUBES_KILLS", 1))
    sources = [queue.create_tube(name) for name in ("t", "u")]
    results = queue.create_tube("results")
    for source in sources:
        source.put_many([f"{number}" for number in range(tasks)])
    told = [sys.executable, str(PROGRAM), "stream", json.dumps(options), json.dumps(SETTINGS), str(tmp_path)]
    for goal in [*(tasks * (kill + 1) // (kills + 2) for kill in range(kills)), None]:
        assert any(_has_run(told, sources, goal, tmp_path / "said") for _ in range(5))
    everything = Counter(f"{number}" for number in range(tasks))
    assert Counter(task.data for task in iter(lambda: results.take(timeout=0), None)) == everything
    assert Counter(_rows_in(tmp_path / "out")) == everything
    assert [source.statistics().tasks["total"] for source in sources] == [0, 0]


#: Spark writes down a stage that it still changes, and fails the query: a race of its own. It is started again then.
_GAVE_UP = "Task serialization failed: java.lang.IllegalStateException: Illegal size"


def _has_run(told: list[str], sources: list[tubes.Tube], goal: int | None, said: Path) -> bool:
    """Run the program until so many tasks are done, and kill it; None: to its end. False: Spark gave up by itself."""
    with said.open("w") as stderr:
        process = subprocess.Popen(told, env={**os.environ, **environment()}, stderr=stderr, start_new_session=True)
    try:
        ends = time.monotonic() + 400
        while goal is None or min(source.statistics().tasks["done"] for source in sources) < goal:
            if (code := process.poll()) is not None:
                if code and _GAVE_UP in said.read_text():
                    return False
                assert (code, goal) == (0, None), said.read_text()[-5000:]
                break
            assert time.monotonic() < ends
            time.sleep(0.02)
    finally:
        if process.poll() is None:  # The driver, its JVM and all executors at once.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return True


def _rows_in(folder: Path) -> list[str]:
    """What is in the files that Spark's file sink has committed, by its log."""
    parquet: Any = import_module("pyarrow.parquet")
    names: dict[str, None] = {}
    for log in (folder / "_spark_metadata").iterdir():
        if not log.name.startswith("."):
            for line in log.read_text().splitlines()[1:]:
                names[json.loads(line)["path"].removeprefix("file://")] = None
    return [text for name in names for text in parquet.read_table(name)["data"].to_pylist()]
