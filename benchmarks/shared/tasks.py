"""The tasks that all benchmarks put."""

from __future__ import annotations

from typing import Final

#: One object for all tasks: what waits costs what the queue costs, not what its data does.
PAYLOAD: Final = "x" * 100
#: Spans that never run out while a benchmark runs, in seconds.
TTL: Final = 3600
TTR: Final = 600
