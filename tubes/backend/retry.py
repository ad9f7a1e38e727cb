"""What a thread does about errors that goes on for as long as the process: it says so once, and rests."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from tubes.errors import ConnectionLost, TubesError

_log = logging.getLogger("tubes")

#: Seconds of the first rest, and by how much each is longer than the one before.
REST: Final = 0.2
_GROWTH: Final = 2.0


class Outage:
    """A time in which something goes wrong again and again. `longest`: seconds of the longest rest."""

    def __init__(self, longest: float) -> None:
        self._longest: Final = longest
        self._rest = REST
        self._is_said = False

    def say(self, what: str, error: BaseException) -> None:
        """Log what goes wrong, if it is the first error of this outage; a bug with where it comes from."""
        if not self._is_said:
            self._is_said = True
            with suppress(Exception):  # A log that fails is not to end what goes on.
                _log.warning("%s: %s", what, error, exc_info=None if isinstance(error, TubesError) else error)

    def rest(self, what: str, error: BaseException) -> float:
        """The same; answers how many seconds to rest now: few where there is no server, which may be back at once."""
        self.say(what, error)
        if isinstance(error, ConnectionLost):
            return REST
        rest, self._rest = self._rest, min(self._rest * _GROWTH, self._longest)
        return rest

    def end(self) -> None:
        """All is well."""
        self._rest = REST
        self._is_said = False
