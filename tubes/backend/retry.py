"""Delays between retries, and the log of an outage."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from random import SystemRandom
from typing import Final

from tubes.errors import ConnectionLost, TubesError

_log = logging.getLogger("tubes")
_random: Final = SystemRandom()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Delays after failures.

    `delays`: seconds to wait after the first failure, the second, and so on; the last one repeats.
    `jitter`: each delay is longer or shorter at random by up to this fraction, so that clients do not retry together.

    >>> RetryPolicy((0.0, 0.5, 2.0)).delay(7)
    2.0
    """

    delays: tuple[float, ...]
    jitter: float = 0.0

    @classmethod
    def from_growth(cls, first: float, longest: float, *, growth: float = 2.0, jitter: float = 0.0) -> RetryPolicy:
        """Return a policy whose delays grow by the factor `growth`, from `first` up to `longest`.

        >>> RetryPolicy.from_growth(0.2, 1.0).delays
        (0.2, 0.4, 0.8, 1.0)
        """
        delays: list[float] = []
        while first < longest:
            delays.append(first)
            first *= growth
        return cls((*delays, longest), jitter)

    def delay(self, failures: int = 1) -> float:
        """Return the seconds to wait after `failures` failures in a row."""
        delay = self.delays[min(failures, len(self.delays)) - 1]
        return delay * _random.uniform(1 - self.jitter, 1 + self.jitter) if self.jitter else delay


class Outage:
    """A series of failures of a thread that keeps running: only the first one is logged."""

    def __init__(self, longest: float = 5.0) -> None:
        """`longest`: the longest delay in seconds."""
        self._policy: Final = RetryPolicy.from_growth(0.2, longest)
        self._failures = 0
        self._is_logged = False

    def log(self, what: str, error: BaseException) -> None:
        """Log the first error of this outage; add the traceback if the error is a bug."""
        if not self._is_logged:
            self._is_logged = True
            with suppress(Exception):  # A logger that raises must not end the thread.
                _log.warning("%s: %s", what, error, exc_info=None if isinstance(error, TubesError) else error)

    def next_delay(self, what: str, error: BaseException) -> float:
        """Log an error as `log` does, and return the delay in seconds: the shortest one if the connection was lost."""
        self.log(what, error)
        if isinstance(error, ConnectionLost):
            return self._policy.delay()
        self._failures += 1
        return self._policy.delay(self._failures)

    def end(self) -> None:
        self._failures = 0
        self._is_logged = False
