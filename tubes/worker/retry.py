"""How long a worker rests after an error of the backend."""

from __future__ import annotations

import random
from typing import Final

#: Seconds: of the first rest, and of the longest.
_FIRST: Final = 0.1
_CAP: Final = 15.0


def after(attempts: int) -> float:
    """Seconds for which a task is kept that has failed so often and would come again at once, without end."""
    return min(_FIRST * 2.0 ** min(attempts - 1, 20), _CAP) * random.uniform(0.5, 1.5)


class Rests:
    """Longer from error to error, and never the same for two workers: a server that comes back is not run over."""

    def __init__(self) -> None:
        self._next = _FIRST
        self._random: Final = random.Random()

    def next(self) -> float:
        """Seconds to rest now."""
        span, self._next = self._next, min(self._next * 2, _CAP)
        return span * self._random.uniform(0.5, 1.5)

    def reset(self) -> None:
        """It went well."""
        self._next = _FIRST
