"""The data and spans of the tasks of all benchmarks."""

from __future__ import annotations

from typing import Final

#: One object for all tasks, so that only the cost of the queue is measured, not that of the data.
PAYLOAD: Final = "x" * 100
#: Spans in seconds that never end during a benchmark.
TTL: Final = 3600
TTR: Final = 600
