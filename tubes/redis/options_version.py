"""The options of a tube as one session knows them, prepared for calls and puts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tubes.drivers.options import compute_delay
from tubes.errors import ServerRefused
from tubes.redis import task_codec
from tubes.redis.library.functions import FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tubes.drivers.driver import Driver
    from tubes.redis.library.functions import Function
    from tubes.redis.transport.wire import Reply, Word


class TubeSession(NamedTuple):
    """A session that is open in a tube."""

    #: The number of the session in the tube, followed in an altered tube by the name of its version.
    number: Word
    #: The field of the meta hash that exists as long as the session.
    token: str
    #: The name of this caller among the callers of the session.
    caller: str
    version: OptionsVersion


class LeaseSession(TubeSession):
    """The session of a lease, used on behalf of its holder by another caller. The lease ends with the session."""


class OpenedTube(NamedTuple):
    """The reply of the function `open` for a tube that was opened."""

    driver: Reply
    options: Reply
    number: int
    token: str
    #: The server's time.
    now: int
    #: True if the user may not publish events.
    is_muted: bool
    #: The version of the options; '' for the options of the tube's creation.
    version: str
    #: The commands of functions that the user may not run.
    lacks: frozenset[str]
    #: The number of the request among all in this process: a reply to a later request is not older.
    request: int

    def session(self, caller: str, version: OptionsVersion) -> TubeSession:
        """Return the session with the options of this version."""
        number = f"{self.number} {version.name}" if version.name else self.number
        return TubeSession(number, self.token, caller, version)


class OptionsVersion:
    """The options of a tube from one `alter` to the next. It is immutable: `alter` makes a new one.

    A session uses the version with which it opened the tube. Hence the arguments of a function always match the version
    named in the call, even if another thread learns of a newer one. The server rejects calls of any other version with
    `ALTERED`, and the caller opens the tube again.
    """

    def __init__(
        self,
        driver: Driver,
        options: Mapping[str, Any],
        now: Callable[[], int],
        name: str = "",
        *,
        lacks: frozenset[str] = frozenset(),
        url: str = "",
    ) -> None:
        #: '' until the tube is altered.
        self.name: Final = name
        #: The commands of functions that this user may not run.
        self.lacks: Final = lacks
        self._url: Final = url
        self.options: Final = options
        #: The capacity as an argument of functions; '' without a limit.
        self.room: Final[int | str] = options.get("capacity") or ""
        #: True if a put may find the tube or its lane full.
        self.is_bounded: Final = bool(self.room) or "lane_capacity" in options
        #: The new task of a put without options.
        self.plain: Final = task_codec.write(driver, options, {})
        self._driver: Final = driver
        # The time by the server's clock.
        self._now: Final = now

    def function(self, name: str) -> Function:
        """Return the function `name`. Raises `ServerRefused` if a right is missing."""
        found = FUNCTIONS[name]
        if self.lacks:
            self.check_rights(found)
        return found

    def check_rights(self, function: Function) -> None:
        """Raise `ServerRefused` if the user may not run all commands of a function."""
        if missing := ", ".join(sorted(self.lacks & function.commands)):
            raise ServerRefused(url=self._url, why=f"NOPERM the user has no permission to run {missing}")

    def write(self, options: Mapping[str, Any]) -> task_codec.NewTask:
        """Return a new task with these options, checked by `Driver`, to be put now."""
        if not options:
            return self.plain
        if "at" in options:
            options = {**options, "delay": compute_delay(options["at"], self._now())}
        lane: Any = self._driver.lane
        if len(options) == 1 and lane in options and self.plain.extras is None:
            return task_codec.in_lane(self.plain, options[lane])
        return task_codec.write(self._driver, self.options, options)
