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
    """What the original did, step by step, from an empty tube on."""

    #: The kind and what it shows: `scripted/fifo.order_by_id`.
    name: str
    driver: str
    create: dict[str, Any]
    steps: list[dict[str, Any]]
    final: dict[str, Any]
    #: What a sane queue need not copy.
    quirks: frozenset[str]
    #: For how many seconds a session outlives its last connection; 0: it ends with it.
    lease: float
    records_events: bool

    @property
    def tells_time(self) -> bool:
        """Whether it says how long its waiting calls took."""
        return any("after" in step for step in self.steps)

    def __repr__(self) -> str:
        return self.name


def load(line: str) -> Trace:
    """Read one trace."""
    told = json.loads(line)
    # `temporary` says where the original kept the tube, which changes nothing.
    create = {option: value for option, value in told["create"].items() if option != "temporary"}
    return Trace(
        name=told["name"],
        driver=told["driver"],
        create=create,
        steps=told["steps"],
        final=told["final"],
        quirks=frozenset(told["quirks"]),
        lease=told.get("queue_cfg", {}).get("ttr", 0),
        records_events=told.get("record_events", False),
    )


#: Each file has the traces of one kind, one per line.
TRACES = [load(line) for path in sorted(_HERE.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
BY_NAME = {trace.name: trace for trace in TRACES}
#: By kind and driver: `scripted/fifo`.
GROUPS = {group: list(traces) for group, traces in groupby(TRACES, key=lambda trace: trace.name.partition(".")[0])}
