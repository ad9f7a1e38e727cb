"""A cache of expensive reads."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final, TypeVar

Value = TypeVar("Value")
#: Seconds for which a result is reused: this multiple of the time that the read took, within these limits. So all reads
#: of a result together cost at most about 1 % of the time, however many clients request it.
_FACTOR: Final = 100
_SHORTEST: Final = 1.0
_LONGEST: Final = 10.0
#: Maximum results kept.
_MAX_RESULTS: Final = 64


class _Result:
    """A result, and until when it is reused: at least until it has been read."""

    def __init__(self, work: Coroutine[object, None, Any], clock: Callable[[], float]) -> None:
        self.until = math.inf
        self.future: Final = asyncio.ensure_future(self._read(work, clock))
        # Retrieve the exception: the only request that waits for the result may have been cancelled.
        self.future.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _read(self, work: Coroutine[object, None, Any], clock: Callable[[], float]) -> Any:
        started, lifetime = clock(), 0.0
        try:
            value = await work
            lifetime = min(max(_FACTOR * (clock() - started), _SHORTEST), _LONGEST)
        except Exception:
            lifetime = clock() - started
            raise
        finally:
            self.until = clock() + lifetime
        return value


class Recent:
    """The recent results of a service, for operations that read all tubes of a namespace or all lanes of a tube.

    A result is reused for 100 times the time that it took to read, at least a second and at most 10. An error is raised
    again for as long as the failed read took. A change that the audit records drops the results of its namespace in
    this process; changes by puts, takes, and other processes show when the result is read again.

    `clock`: a function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._results: Final[dict[tuple[str, Hashable], _Result]] = {}

    async def get(self, namespace: str, key: Hashable, read: Callable[[], Coroutine[object, None, Value]]) -> Value:
        """Return the recent result with this key, or `read()`. Simultaneous requests share one read.

        `key`: all that the result depends on within the namespace, such as `("lanes", "mail")`.
        """
        now = self._clock()
        result = self._results.get((namespace, key))
        if result is None or result.until <= now:
            self._drop_old(now)
            result = self._results[namespace, key] = _Result(read(), self._clock)
        # Shield it: one of several waiting requests may be cancelled.
        value: Value = await asyncio.shield(result.future)
        return value

    def forget(self, namespace: str) -> None:
        """Drop the results of this namespace: the next request reads them again."""
        for key in [key for key in self._results if key[0] == namespace]:
            del self._results[key]

    def _drop_old(self, now: float) -> None:
        """Drop the results that are no longer reused, and the oldest ones if there are too many."""
        for key, result in list(self._results.items()):
            if result.until <= now or (result.future.done() and len(self._results) >= _MAX_RESULTS):
                del self._results[key]
