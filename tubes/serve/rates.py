"""Rate limits of tokens, over all processes of a service: the generic cell rate algorithm."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tubes.aio import AsyncQueue
from tubes.drivers.options import SECOND
from tubes.errors import InvalidOption

_TEXT: Final = re.compile(r"([0-9]{1,9})/([0-9]{1,6}(?:\.[0-9]{1,6})?)")
#: Limits that a process without a server remembers.
_MOST: Final = 100_000


@dataclass(frozen=True, slots=True)
class Rate:
    """So many calls in so many seconds; all of them may come at once."""

    count: int
    seconds: float

    @classmethod
    def read(cls, text: str) -> Rate:
        """A rate of its text.

        >>> Rate.read("100/60")
        Rate(count=100, seconds=60.0)
        """
        found = _TEXT.fullmatch(text)
        if found is None or not int(found[1]) or not float(found[2]):
            raise InvalidOption(option="rate", value=text, rule="must be CALLS/SECONDS, as in 100/60")
        return cls(int(found[1]), float(found[2]))

    def __str__(self) -> str:
        return f"{self.count}/{self.seconds:g}"


class Rates:
    """Counts calls, on the server of a queue, or in this process where that is the only one.

    `now`: seconds, for a queue that is on no server.
    """

    def __init__(self, queue: AsyncQueue, now: Callable[[], float] = time.monotonic) -> None:
        self._connection: Final[Any] = queue._connection
        self._now: Final = now
        self._filled: Final[OrderedDict[str, float]] = OrderedDict()

    async def wait(self, name: str, rate: Rate, calls: int = 1) -> float:
        """Count calls under this name; returns after how many seconds they may come again: 0: they may go now."""
        return await self._count(name, rate, calls)

    async def give_back(self, name: str, rate: Rate) -> None:
        """A call that was counted came to nothing."""
        await self._count(name, rate, -1)

    async def _count(self, name: str, rate: Rate, calls: int) -> float:
        pace = rate.seconds / rate.count
        store = self._connection.store
        if hasattr(store, "ask"):
            key = f"{store.prefix}:rate:{name}"
            span, burst = max(1, round(pace * abs(calls) * SECOND)), round(rate.seconds * SECOND)
            sign = 1 if calls > 0 else -1
            answer: int = await self._connection.run(store.ask("rate", key, span, burst, sign, what=key))
            return answer / SECOND
        now = self._now()
        filled = max(self._filled.get(name, 0.0), now) + pace * calls
        if calls > 0 and filled - rate.seconds - now > 1e-9:
            return filled - rate.seconds - now
        self._filled[name] = filled
        self._filled.move_to_end(name)
        if len(self._filled) > _MOST:
            self._filled.popitem(last=False)
        return 0.0
