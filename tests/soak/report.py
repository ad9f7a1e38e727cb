"""The result of each part of a soak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from tests.soak.samples import SHORTEST, Sample, growths

#: The minimum duration in seconds for requiring progress in each quarter: one fault may block a shorter quarter.
_LONG: Final = 40.0


class Part(NamedTuple):
    """One part: on a server, or in memory."""

    name: str
    samples: list[Sample]
    #: Broken rules: lost, done twice, out of turn, too early.
    mistakes: list[str]
    #: The number of faults by kind.
    counts: dict[str, int]
    #: The numbers of takes whose order was checked and of late acks.
    judged: int
    late: int
    #: The faults with their times in seconds since the start; empty if faults are continuous.
    troubles: Sequence[tuple[float, str]] = ()
    #: The planned duration.
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """Return True if no rule was broken, tasks were done and checked all the time, and memory did not grow."""
        return not self.mistakes and not self.problems() and all(one.is_flat for one in growths(self.samples))

    def problems(self) -> list[str]:
        """Return the reasons why the result is inconclusive although no rule was broken."""
        last = self.samples[-1] if self.samples else Sample(0.0, 0, 0, {})
        found: list[str] = []
        if last.when < self.seconds / 2:
            found.append(f"nothing was measured after {last.when:.0f} s of {self.seconds:.0f}")
        if not last.done:
            found.append("nothing was done")
        elif last.when >= _LONG:
            found += [f"nothing was done from {one:.0f} to {two:.0f} s" for one, two in self._idle_quarters(last.when)]
        if not self.judged:
            found.append("the order of no take was looked at")
        return found

    def _idle_quarters(self, end: float) -> Iterator[tuple[float, float]]:
        edges = [end * number / 4 for number in range(5)]
        for one, two in pairwise(edges):
            done = [sample.done for sample in self.samples if one <= sample.when <= two]
            if not done or done[-1] == done[0]:
                yield one, two

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        last = self.samples[-1] if self.samples else Sample(0.0, 0, 0, {})
        yield f"{self.name}: {'good' if self.is_good else 'BAD'}"
        rate = last.done / max(last.when, 1)
        yield f"  {last.when:.0f} s, {last.put:,} tasks put, {last.done:,} done, {rate:,.0f} per second"
        yield f"  {', '.join(f'{what} {times} times' for what, times in sorted(self.counts.items())) or 'no trouble'}"
        yield f"  {self.judged:,} takes were judged by the order of their tube; {self.late:,} acks came too late"
        if self.mistakes:
            yield f"  {len(self.mistakes)} times against the rules:"
            yield from (f"    {mistake}" for mistake in self.mistakes[:20])
        elif not self.problems():
            yield "  nothing lost, nothing done twice, all in turn"
        yield from (f"  {flaw}" for flaw in self.problems())
        grown = growths(self.samples)
        if not grown:
            yield f"  memory: not judged, the part was shorter than {SHORTEST:g} s"
        for one in grown:
            yield f"  memory {'flat' if one.is_flat else 'GROWS'}, {one}"
