"""What became of a soak, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from soak.samples import SHORTEST, Sample, growths


class Part(NamedTuple):
    """One part: on a server, or in memory."""

    name: str
    samples: list[Sample]
    #: What is against the rules: lost, done twice, out of turn, too early.
    mistakes: list[str]
    #: What was done to it, how often.
    counts: dict[str, int]
    #: Takes of which the order was looked at, and acks that came too late.
    judged: int
    late: int
    #: When what was done to it, in seconds since its begin; none where that is done all the time.
    troubles: Sequence[tuple[float, str]] = ()

    @property
    def is_good(self) -> bool:
        """Whether the rules were kept, tasks were done, and memory is flat."""
        last = self.samples[-1] if self.samples else None
        return (
            not self.mistakes
            and last is not None
            and last.done > 0
            and all(one.is_flat for one in growths(self.samples))
        )

    def lines(self) -> Iterator[str]:
        """The verdict, to be read."""
        last = self.samples[-1] if self.samples else Sample(0.0, 0, 0, {})
        yield f"{self.name}: {'good' if self.is_good else 'BAD'}"
        rate = last.done / max(last.when, 1)
        yield f"  {last.when:.0f} s, {last.put:,} tasks put, {last.done:,} done, {rate:,.0f} per second"
        yield f"  {', '.join(f'{what} {times} times' for what, times in sorted(self.counts.items())) or 'no trouble'}"
        yield f"  {self.judged:,} takes were judged by the order of their tube; {self.late:,} acks came too late"
        if self.mistakes:
            yield f"  {len(self.mistakes)} times against the rules:"
            yield from (f"    {mistake}" for mistake in self.mistakes[:20])
        else:
            yield "  nothing lost, nothing done twice, all in turn"
        grown = growths(self.samples)
        if not grown:
            yield f"  memory: not judged, the part was shorter than {SHORTEST:g} s"
        for one in grown:
            yield f"  memory {'flat' if one.is_flat else 'GROWS'}, {one}"
