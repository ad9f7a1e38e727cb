"""The options of a tube as one session knows them: what they mean for scripts and for puts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tubes.drivers.options import compute_delay
from tubes.redis import task_codec
from tubes.redis.scripts.assembly import TubeSettings, script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tubes.drivers.driver import Driver
    from tubes.redis.scripts.assembly import Script
    from tubes.redis.transport.wire import Word


class TubeSession(NamedTuple):
    """A session in a tube."""

    #: Its number there; in a tube that was altered also the name of the edition that it knows.
    number: Word
    #: The field of the meta hash that says that it lives.
    token: str
    #: The caller's name among its callers.
    caller: str
    edition: Edition


class LeaseSession(TubeSession):
    """The session of a lease, as another caller speaks for it. If it has ended, so has the lease."""


class Edition:
    """The options of a tube from one `alter` to the next. It never changes: an altered tube has another one.

    A session in a tube has the edition that it was opened with. So what is told to a script and the name of the edition
    that goes with it always agree, whatever other threads hear meanwhile; of any other edition the server refuses it.
    """

    def __init__(
        self,
        driver: Driver,
        options: Mapping[str, Any],
        now: Callable[[], int],
        name: str = "",
        *,
        is_paced: bool = False,
    ) -> None:
        #: '': that of a tube that was never altered.
        self.name: Final = name
        #: Whether its lanes are throttled, or were once: by its options, or some lane by itself.
        self.is_paced: Final = is_paced
        self.options: Final = options
        #: How many tasks have room, as scripts are told it.
        self.room: Final[int | str] = options.get("capacity") or ""
        #: Whether a put may find no room.
        self.is_bounded: Final = bool(self.room) or "lane_capacity" in options
        #: What a put without options of its own puts.
        self.plain: Final = task_codec.write(driver, options, {})
        self._driver: Final = driver
        # The time by the server's clock.
        self._now: Final = now
        self._settings: Final = TubeSettings.of(options, is_altered=bool(name), is_paced=is_paced)

    def script(self, verb: str) -> Script:
        """The script of a verb."""
        return script(verb, self._driver, self._settings)

    def write(self, options: Mapping[str, Any]) -> task_codec.NewTask:
        """A new task with these options, as `Driver` checked them, to be put now."""
        if not options:
            return self.plain
        if "at" in options:
            options = {**options, "delay": compute_delay(options["at"], self._now())}
        lane: Any = self._driver.lane
        if len(options) == 1 and lane in options and self.plain.extras is None:
            return task_codec.in_lane(self.plain, options[lane])
        return task_codec.write(self._driver, self.options, options)
