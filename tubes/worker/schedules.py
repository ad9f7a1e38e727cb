"""Schedules and their times, in microseconds since the epoch."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tubes.drivers.options import SECOND, Seconds, seconds, text
from tubes.errors import InvalidOption, needs

if TYPE_CHECKING:
    from collections.abc import Iterator


#: Characters of a cron expression.
_LONGEST: Final = 400


class Schedule(Protocol):
    """A schedule: its occurrences are the same for every caller at any time."""

    def after(self, moment: int) -> int:
        """The first occurrence after a moment."""
        ...


class Every:
    """At all multiples of a time since the epoch: workers need not agree on a beginning."""

    def __init__(self, interval: Seconds) -> None:
        span = seconds("interval", interval)
        if span < 1:
            raise InvalidOption(option="interval", value=interval, rule="must be at least 1 second")
        self._span: Final = round(span * SECOND)

    def after(self, moment: int) -> int:
        """The next multiple."""
        return (moment // self._span + 1) * self._span


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
        if len(line) > _LONGEST or re.search(r"\d{5}", line):  # cronsim would count for hours.
            rule = f"must have at most {_LONGEST} characters, and numbers of at most 4 digits"
            raise InvalidOption(option="line", value=line, rule=rule)
        try:
            next(self._from(0))
        except CronSimError as error:
            raise InvalidOption(option="line", value=line, rule=f"is not a cron expression: {error}") from None
        except StopIteration:
            raise InvalidOption(option="line", value=line, rule="names a date that never comes") from None

    def _from(self, moment: int) -> Iterator[datetime]:
        start = datetime.fromtimestamp(moment // SECOND, self._zone)
        found: Iterator[datetime] = self._occurrences(self._line, start)
        return found

    def after(self, moment: int) -> int:
        """The next time of the expression. When clocks are set back or forward, as Debian's cron does it."""
        for found in self._from(moment):
            at = round(found.timestamp()) * SECOND
            if at > moment:  # An hour that comes twice begins with its first time.
                return at
        raise OverflowError(f"{self._line!r} has no further times")


class AnyOf:
    """Several schedules of one function."""

    def __init__(self, schedules: list[Schedule]) -> None:
        self._schedules: Final = schedules

    def after(self, moment: int) -> int:
        """The first occurrence of any of them."""
        return min(schedule.after(moment) for schedule in self._schedules)


def latest(schedule: Schedule, after: int, until: int) -> int | None:
    """The last occurrence after one moment and not after another; None: there is none."""
    first = schedule.after(after)
    if first > until:
        return None
    window = first - after
    while True:
        found = None
        at = schedule.after(max(after, until - window))
        while at <= until:
            found, at = at, schedule.after(at)
        if found is not None:
            return found
        window *= 2


def _zone(timezone: Any) -> tzinfo:
    if isinstance(timezone, tzinfo):
        return timezone
    try:
        return UTC if timezone == "UTC" else ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        rule = "must be a tzinfo, or a time zone that this machine knows, as 'Europe/Vienna'"
        raise InvalidOption(option="timezone", value=timezone, rule=rule) from None
