"""Rate limits of tokens over all processes of a service, by the generic cell rate algorithm (GCRA)."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tubes.aio import AsyncQueue
from tubes.backend.port import connection_of
from tubes.drivers.options import SECOND
from tubes.errors import InvalidOption

_RATE_TEXT: Final = re.compile(r"([0-9]{1,9})/([0-9]{1,6}(?:\.[0-9]{1,6})?)")
#: Maximum names that a process without a server remembers.
_MAX_NAMES: Final = 100_000


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` calls in `seconds`; they may all come at once."""

    count: int
    seconds: float

    @classmethod
    def read(cls, text: str) -> Rate:
        """Parse a rate.

        >>> Rate.read("100/60")
        Rate(count=100, seconds=60.0)
        """
        match = _RATE_TEXT.fullmatch(text)
        if match is None or not int(match[1]) or not float(match[2]):
            raise InvalidOption(option="rate", value=text, rule="must be CALLS/SECONDS, as in 100/60")
        return cls(int(match[1]), float(match[2]))

    def __str__(self) -> str:
        return f"{self.count}/{self.seconds:g}"


class Rates:
    """Count calls: on the server of a queue, or in this process for a queue without a server.

    `now`: the clock in seconds, for a queue without a server.
    """

    def __init__(self, queue: AsyncQueue, now: Callable[[], float] = time.monotonic) -> None:
        self._connection: Final[Any] = connection_of(queue)
        self._now: Final = now
        self._filled: Final[OrderedDict[str, float]] = OrderedDict()

    async def wait(self, name: str, rate: Rate, calls: int = 1) -> float:
        """Count calls under this name. Return 0 if they are allowed now, else the seconds until they may be retried."""
        pace = rate.seconds / rate.count
        if self._connection.is_remote:
            span, burst = max(1, round(pace * abs(calls) * SECOND)), round(rate.seconds * SECOND)
            micros: int = await self._connection.count_calls(name, span, burst, 1 if calls > 0 else -1)
            return micros / SECOND
        now = self._now()
        filled = max(self._filled.get(name, 0.0), now) + pace * calls
        if calls > 0 and filled - rate.seconds - now > 1e-9:
            return filled - rate.seconds - now
        self._filled[name] = filled
        self._filled.move_to_end(name)
        if len(self._filled) > _MAX_NAMES:
            self._filled.popitem(last=False)
        return 0.0

    async def give_back(self, name: str, rate: Rate) -> None:
        """Uncount a call that had no effect."""
        await self.wait(name, rate, -1)
