"""The methods of a port that only read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tubes.drivers import options as known_options
from tubes.drivers.options import SECOND, Seconds, whole
from tubes.drivers.timers import NEVER
from tubes.errors import Unreadable
from tubes.redis import task_codec, validation
from tubes.redis.scripts.replies import Reply, bytes_of, list_of, number_of
from tubes.redis.task_codec import Parsed
from tubes.redis.transport.script_call import Flow, verb
from tubes.redis.verbs import VerbPort
from tubes.values.lane import Utube, lane_of
from tubes.values.statistics import Statistics, until
from tubes.values.task import F

#: How many tasks are looked at in one call, and how many places of buried ones.
_LOOKS: Final = 250
_PLACES: Final = 1000
#: How many bytes a place has at least, and what is behind an empty one.
_PLACE: Final = 6
_BEHIND_NONE: Final = b"\0"
#: The end of a pause that has none.
FOR_EVER: Final = 1e18
#: The calls that the meta hash counts by name.
_CALLS: Final = ("release", "touch", "bury", "kick", "delete", "delay", "ttl", "ttr")


class LookingPort(VerbPort[F]):
    """A port with the verbs that look at a tube."""

    def statistics(self) -> Statistics:
        """How many tasks there are by state, and what was done so far."""
        shared = self.shared

        def show(reply: Reply) -> Statistics:
            with validation.reading(f"tube {shared.name!r}"):
                return statistics_of(reply, shared.store.count_waiting(shared.name, list_of(reply)[4]))

        return self.call("statistics", (show, (), None), changes=False)

    @verb
    def tasks(self, start: int, limit: int) -> Flow[list[F]]:
        """The tasks from an id on."""
        first, limit = whole("start", start), whole("limit", limit)
        found: list[F] = []
        while len(found) < limit:
            after, *replies = list_of((yield from self.ask("tasks", first, min(limit - len(found), _LOOKS))))
            found += self._show_each(task_codec.parse(bytes_of(reply)) for reply in replies)
            first = number_of(after)
            if not first:
                break
        return found

    def _show_each(self, parsed: Iterable[Parsed]) -> Iterator[F]:
        """Tasks that scripts tell of; one that cannot be read is left out."""
        for one in parsed:
            try:
                yield self.show(one)
            except Unreadable as error:
                self.shared.store.strangers.leave_out(f"tube {self.shared.name!r}", {error.facts["what"]: error})

    @verb
    def buried(self, limit: int) -> Flow[list[F]]:
        """The oldest buried tasks."""
        limit, driver = whole("limit", limit), self.shared.driver
        # Where places are more than ids, the oldest may have any place.
        in_order = driver.signs == (0, 1) and driver.rank is None
        ids: list[int] = []
        place = b""
        while limit and (not in_order or len(ids) < limit):
            most = min(limit, _PLACES) if in_order else _PLACES
            places = [bytes_of(one) for one in list_of((yield from self.ask("buried", place, most)))]
            # What is shorter than an id is nobody's: `repair` removes it.
            ids += (driver.id_at(one) for one in places if len(one) >= _PLACE)
            if not places or places[-1] == place:
                break
            place = places[-1] or _BEHIND_NONE
        wanted = sorted(ids)[:limit]
        return list(self._show_each((yield from self.parsed(wanted, buried=True))))

    def parsed(self, ids: list[int], *, buried: bool = False) -> Flow[list[Parsed]]:
        """What is there of tasks with these ids, for `show`; `buried`: of those that are buried."""
        found: list[Parsed] = []
        at = 0
        while at < len(ids):
            seen, *replies = list_of((yield from self.ask("looks", "1" if buried else "", *ids[at : at + _LOOKS])))
            found += [task_codec.parse(bytes_of(reply)) for reply in replies]
            at += number_of(seen)
        return found

    @verb
    def oldest_ready_age(self) -> Flow[float | None]:
        """How long ago the oldest ready task was put."""
        start: int | str = ""
        while True:
            reply = yield from self.ask("oldest", start)
            if not isinstance(reply, int):
                return None if reply is None else number_of(reply) / SECOND
            start = reply

    @verb
    def due_histogram(self, edges: Iterable[Seconds]) -> Flow[list[int]]:
        """Count tasks by when they move by themselves."""
        return [number_of(count) for count in list_of((yield from self.ask("due", *known_options.edges(edges))))]

    @verb
    def utubes(self, limit: int) -> Flow[list[Utube]]:
        """Look at the lanes."""
        most = whole("limit", limit)
        lane_of(self._driver, "")
        found: dict[str, Utube] = {}
        cursor = 0
        while True:
            after, *seen = list_of((yield from self.ask("utubes", cursor)))
            cursor = number_of(after)
            for told, *facts in zip(*[iter(seen)] * 6, strict=True):
                ready, taken, rest, interval, in_flight = map(number_of, facts)
                lane = bytes_of(told)
                try:
                    name = lane.decode("utf-8", "surrogatepass")
                except UnicodeDecodeError as error:
                    self.shared.store.strangers.leave_out(f"the lanes of tube {self.shared.name!r}", {lane: error})
                    continue
                found[name] = Utube(name, ready, taken, rest / SECOND if rest else None, interval / SECOND, in_flight)
            if cursor == 0:
                return [found[name] for name in sorted(found)[:most]]


def statistics_of(reply: Reply, waiting: int, now: int | None = None) -> Statistics:
    """What a script has counted; `now`: a pause that is over then is none. Raises `ValueError` and the like."""
    *numbers, counted, _, paused = list_of(reply)
    total, taken, buried = map(number_of, numbers)
    puts, takes, acks, delayed, *others, unputs = (number_of(count or 0) for count in list_of(counted))
    calls = dict(zip(_CALLS, others, strict=True))
    tasks = {
        "ready": total - taken - buried - delayed,
        "taken": taken,
        "buried": buried,
        "delayed": delayed,
        "done": acks + calls["delete"],
        "total": total,
    }
    first = {"put": puts + unputs, "take": takes, "ack": acks}
    ends = None if paused is None else NEVER if float(bytes_of(paused)) == FOR_EVER else int(float(bytes_of(paused)))
    if ends is not None and now is not None and ends <= now:
        ends = None
    return Statistics(tasks, first | calls, waiting, until(ends))
