"""The recorded traces, as data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent / "traces"


@dataclass(frozen=True)
class Trace:
    """The steps and results of the original, starting with an empty tube."""

    #: The kind, the driver and the subject: `scripted/fifo.order_by_id`.
    name: str
    driver: str
    create: dict[str, Any]
    steps: list[dict[str, Any]]
    final: dict[str, Any]
    #: Behaviour of the original that is not reproduced.
    quirks: frozenset[str]
    #: The seconds for which a session outlives its last connection.
    lease: float
    records_events: bool

    @property
    def tells_time(self) -> bool:
        """True if the trace has the durations of its waiting calls."""
        return any("after" in step for step in self.steps)

    def __repr__(self) -> str:
        return self.name


def load(line: str) -> Trace:
    """Read one trace."""
    recorded = json.loads(line)
    # `temporary` selects the storage of the original, which does not matter here.
    create = {option: value for option, value in recorded["create"].items() if option != "temporary"}
    return Trace(
        name=recorded["name"],
        driver=recorded["driver"],
        create=create,
        steps=recorded["steps"],
        final=recorded["final"],
        quirks=frozenset(recorded["quirks"]),
        lease=recorded.get("queue_cfg", {}).get("ttr", 0),
        records_events=recorded.get("record_events", False),
    )


#: The traces of all files; each file has one kind, with a trace per line.
TRACES = [load(line) for path in sorted(_HERE.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
BY_NAME = {trace.name: trace for trace in TRACES}
#: By kind and driver: `scripted/fifo`.
GROUPS = {group: list(traces) for group, traces in groupby(TRACES, key=lambda trace: trace.name.partition(".")[0])}
