"""The results of a run: figures per round, and their medians."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any, Final, Self

#: Rates, each compared with a yardstick of the same moment.
ONE: Final = "one"
SEVERAL: Final = "several"
BATCHES: Final = "batches"
WORK: Final = "work"
CYCLE: Final = "cycle"
#: Costs: bytes per waiting task, and the server's seconds per task.
BYTES: Final = "bytes"
CPU_PUT: Final = "cpu of a put"
CPU_WORK: Final = "cpu of work"


@dataclass
class Turn:
    """One subject in one round."""

    #: Tasks per second, and relative to the yardstick, by measure.
    rates: dict[str, float] = field(default_factory=dict[str, float])
    ratios: dict[str, float] = field(default_factory=dict[str, float])
    #: Figures without a yardstick, by measure.
    costs: dict[str, float] = field(default_factory=dict[str, float])
    #: Seconds from before a put to the handler in another process.
    latencies: list[float] = field(default_factory=list[float])

    def rate(self, measure: str, tasks: int, seconds: float, yardstick: float) -> None:
        """Record the time of `tasks` tasks; `yardstick`: seconds of one round trip of the yardstick."""
        self.rates[measure] = tasks / seconds
        self.ratios[measure] = tasks * yardstick / seconds


@dataclass
class Figures:
    """One subject in all rounds."""

    turns: list[Turn] = field(default_factory=list[Turn])
    versions: dict[str, str] = field(default_factory=dict[str, str])
    #: The latest error, and the number of failures.
    why: str = ""
    failures: int = 0

    def rate(self, measure: str) -> float | None:
        """Return the rate per second, the median of the rounds."""
        return _median([turn.rates[measure] for turn in self.turns if measure in turn.rates])

    def ratio(self, measure: str) -> float | None:
        """Return the rate relative to the yardstick, the median of the rounds."""
        return _median([turn.ratios[measure] for turn in self.turns if measure in turn.ratios])

    def cost(self, measure: str) -> float | None:
        """Return a cost, the median of the rounds."""
        return _median([turn.costs[measure] for turn in self.turns if measure in turn.costs])

    def latency(self, percent: int) -> float | None:
        """Return a percentile of the latencies of all rounds, in seconds."""
        every = [latency for turn in self.turns for latency in turn.latencies]
        return quantiles(every, n=100, method="inclusive")[percent - 1] if len(every) > 1 else None


def _median(found: list[float]) -> float | None:
    return median(found) if found else None


@dataclass
class Results:
    """All subjects by key, and the settings of the run."""

    machine: str
    #: The server of the peers on Redis.
    server: str
    rounds: int
    figures: dict[str, Figures] = field(default_factory=dict[str, Figures])
    #: Yardsticks per second, medians.
    yardsticks: dict[str, float] = field(default_factory=dict[str, float])
    servers: dict[str, str] = field(default_factory=dict[str, str])

    def of(self, key: str) -> Figures:
        """Return the figures of one subject; empty ones if it was not measured."""
        return self.figures.get(key, Figures())

    def as_json(self) -> dict[str, Any]:
        """Return all results as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Self:
        """Read results written by `as_json`."""
        figures = {
            key: Figures([Turn(**turn) for turn in found["turns"]], found["versions"], found["why"], found["failures"])
            for key, found in kept["figures"].items()
        }
        settings: dict[str, Any] = {**kept, "figures": figures}
        return cls(**settings)
