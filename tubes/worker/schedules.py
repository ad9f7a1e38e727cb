"""Schedules. Times are microseconds since the epoch."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tubes.drivers.options import SECOND, Seconds, seconds, text
from tubes.errors import InvalidOption, needs

if TYPE_CHECKING:
    from collections.abc import Iterator


#: Longest cron expression, in characters.
_MAX_LENGTH: Final = 400


class Schedule(Protocol):
    """A series of times, which every process computes alike."""

    def next_after(self, moment: int) -> int:
        """Return the first occurrence after a moment."""
        ...


class Every:
    """All multiples of an interval since the epoch, so that workers need not agree on a start."""

    def __init__(self, interval: Seconds) -> None:
        span = seconds("interval", interval)
        if span < 1:
            raise InvalidOption(option="interval", value=interval, rule="must be at least 1 second")
        self._span: Final = round(span * SECOND)

    def next_after(self, moment: int) -> int:
        return (moment // self._span + 1) * self._span

    def __str__(self) -> str:
        return f"every {self._span / SECOND:.12g} s"


class Cron:
    """The times of a cron expression, in a time zone."""

    def __init__(self, line: str, timezone: str | tzinfo) -> None:
        with needs("worker.cron", "schedule"):
            from cronsim import CronSim, CronSimError
        self._line: Final = text("line", line)
        self._zone: Final = _zone(timezone)
        self._occurrences: Final[Any] = CronSim
        if len(line.split()) != 5:
            rule = "must have five fields: minute, hour, day of the month, month, day of the week"
            raise InvalidOption(option="line", value=line, rule=rule)
        if len(line) > _MAX_LENGTH or re.search(r"\d{5}", line):  # cronsim would compute for hours.
            rule = f"must have at most {_MAX_LENGTH} characters, and numbers of at most 4 digits"
            raise InvalidOption(option="line", value=line, rule=rule)
        try:
            next(self._iterate_from(0))
        except CronSimError as error:
            raise InvalidOption(option="line", value=line, rule=f"is not a cron expression: {error}") from None
        except StopIteration:
            raise InvalidOption(option="line", value=line, rule="must match a date that exists") from None

    def _iterate_from(self, moment: int) -> Iterator[datetime]:
        start = datetime.fromtimestamp(moment // SECOND, self._zone)
        found: Iterator[datetime] = self._occurrences(self._line, start)
        return found

    def next_after(self, moment: int) -> int:
        """Return the next time that matches. When clocks are set back or forward, it follows Debian's cron."""
        for found in self._iterate_from(moment):
            at = round(found.timestamp()) * SECOND
            if at > moment:  # In an hour that clocks repeat, cronsim may return an earlier time.
                return at
        raise OverflowError(f"{self._line!r} has no further times")

    def __str__(self) -> str:
        return self._line if self._zone is UTC else f"{self._line} {self._zone}"


class AnyOf:
    """The union of several schedules of one function."""

    def __init__(self, schedules: list[Schedule]) -> None:
        self._schedules: Final = schedules

    def next_after(self, moment: int) -> int:
        return min(schedule.next_after(moment) for schedule in self._schedules)

    def __str__(self) -> str:
        return ", ".join(map(str, self._schedules))


def latest(schedule: Schedule, after: int, until: int) -> int | None:
    """Return the last occurrence in (after, until], or None.

    Searches backwards from `until` in windows that double, because a schedule only computes the next occurrence.
    """
    first = schedule.next_after(after)
    if first > until:
        return None
    window = first - after
    while True:
        found = None
        at = schedule.next_after(max(after, until - window))
        while at <= until:
            found, at = at, schedule.next_after(at)
        if found is not None:
            return found
        window *= 2


def _zone(timezone: Any) -> tzinfo:
    name = timezone
    if isinstance(timezone, tzinfo):
        # A zone of pytz has one offset all year: use the zone of the standard library that has its name.
        name = getattr(timezone, "zone", None) if hasattr(timezone, "localize") else None
        if name is None:
            return timezone
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        rule = "must be a tzinfo, or a time zone that this machine knows, such as 'Europe/Vienna'"
        raise InvalidOption(option="timezone", value=timezone, rule=rule) from None
