"""Read tasks, counts and lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tubes.drivers import options as known_options
from tubes.drivers.lists import is_by_id
from tubes.drivers.moves import State
from tubes.drivers.options import SECOND, Seconds, integer
from tubes.drivers.timers import NEVER
from tubes.errors import TaskNotFound, Unreadable
from tubes.redis import task_codec, validation
from tubes.redis.library.functions import FUNCTIONS
from tubes.redis.library.replies import ErrorReply, Reply, bytes_of, list_of, number_of
from tubes.redis.port.base import RedisPort, encode_text
from tubes.redis.port.msgpack_array import packed
from tubes.redis.task_codec import Parsed
from tubes.redis.transport.script_call import Flow, ScriptCall
from tubes.redis.transport.wire import Word
from tubes.values.lane import LaneInfo, lane_of
from tubes.values.statistics import Statistics, to_seconds
from tubes.values.task import F

if TYPE_CHECKING:
    from tubes.backend.selecting import Filters, Scan

#: Tasks read per call, and ids of taken tasks requested per call.
_TASKS_PER_CALL: Final = 250
_IDS_PER_CALL: Final = 1000
#: Facts of a lane in the reply of the function `lanes`.
_LANE_FACTS: Final = 12
#: The stored end of a pause without an end.
FOR_EVER: Final = 1e18
#: The calls that the meta hash counts by name.
_CALLS: Final = ("release", "touch", "bury", "kick", "delete", "delay", "ttl", "ttr")


def peek(port: RedisPort[F], task: object) -> F:
    """Return a task without changing it."""
    return port.call("peek", port.task_request(task, looks=True), changes=False)


def first(port: RedisPort[F]) -> Flow[tuple[int, int] | None]:
    """Return the priority and the id of the first available task."""
    reply = bytes_of((yield from port.run_script("first")))
    if not reply:
        return None
    pri, id = map(int, reply.split())
    return pri, id


def statistics(port: RedisPort[F]) -> Statistics:
    """Count the tasks by state and the calls so far."""
    shared = port.shared

    def decode(reply: Reply) -> Statistics:
        with validation.reading(f"tube {shared.name!r}"):
            return statistics_of(reply, port.connection.store.count_waiting(shared.name, list_of(reply)[4]))

    return port.call("statistics", (decode, (), None), changes=False)


def select(port: RedisPort[F], filters: Filters, scan: Scan, most: int, with_data: bool) -> Flow[list[Any]]:
    """Return the next part of a selection: tasks, or the `Seen` of each without `with_data`."""
    state, back, cursor = filters.state, "1" if filters.newest_first else "", scan.cursor
    letter = "" if state is None else state.letter
    only = _filter_word(filters, scan.bound, with_data=with_data)
    after: Word = "" if scan.after is None else scan.after
    bound: Reply = None
    if state is State.DONE:
        last, moment = cursor or (after, "")
        reply = yield from _ask_after(port, scan, "ended", most, last, moment, only)
        last, moment, *replies, bound = list_of(reply)
        scan.cursor, scan.ended = (last, moment), last == b""
    elif filters.key is not None:
        _, *replies = list_of((yield from port.run_script("peek_many", (letter, only, encode_text(filters.key)))))
        scan.ended = True
    elif state is State.TAKEN:
        if cursor is None:
            ids = yield from _taken_after(port, -1 if scan.after is None or filters.newest_first else scan.after)
            cursor = ids[::-1] if filters.newest_first else ids
            if filters.newest_first and scan.after is not None:
                cursor = [id for id in cursor if id < scan.after]
        replies = []
        if cursor:
            looked, *replies = list_of((yield from port.run_script("peek_many", (letter, only, "", *cursor[:most]))))
            del cursor[: number_of(looked)]
        scan.cursor, scan.ended = cursor, not cursor
    elif is_by_id(port._driver, state) or (filters.newest_first and state is State.READY and _is_by_id(port)):
        # The reverse of an order by the newest id is the order by id.
        back = back if is_by_id(port._driver, state) or port._driver.signs[1] > 0 else ""
        lane = b"" if filters.lane is None else b"=" + encode_text(filters.lane)
        start: Word = cursor
        if cursor is None:
            start = after if back else 0 if scan.after is None else scan.after + 1
        reply = yield from port.run_script("tasks", (start, most, letter, lane, only, back))
        scan.cursor, *replies, bound = list_of(reply)
        scan.ended = not scan.cursor
    else:
        start = after if cursor is None else ""
        reply = yield from _ask_after(port, scan, "by_state", cursor or "", most, letter, start, only, back)
        scan.cursor, *replies, bound = list_of(reply)
        scan.ended = not scan.cursor
    if scan.bound is None and bound is not None:
        scan.bound = number_of(bound)
    if with_data:
        tasks = _show_all(port, replies)
        return [task for task in tasks if scan.is_new(task._record.id)]
    seen = [task_codec.see(bytes_of(one)) for one in replies]
    return [one for one in seen if scan.is_new(one[0])]


def _ask_after(port: RedisPort[F], scan: Scan, name: str, *words: Word) -> Flow[Reply]:
    """Call a function that looks up the task after which the first part begins."""
    reply = yield from port.run_script(name, words)
    if type(reply) is ErrorReply:
        raise TaskNotFound(id=scan.after, tube=port.shared.name)
    return reply


def _is_by_id(port: RedisPort[F]) -> bool:
    """Return True if ready tasks are ordered by id alone."""
    return port._driver.rank is None and not port._driver.signs[0]


def _taken_after(port: RedisPort[F], id: int) -> Flow[list[int]]:
    """Return the ids of taken tasks above `id`, sorted."""
    found: set[int] = set()
    cursor = b"0"
    while True:
        reply: Reply = yield ScriptCall(FUNCTIONS["scan_ids"], port.shared.key, (cursor, _IDS_PER_CALL, "taken"))
        if type(reply) is ErrorReply:
            raise port.refusal(reply)
        after, ids = map(bytes_of, list_of(reply))
        found.update(map(int, ids.split()))
        cursor = after
        if cursor == b"0":
            return sorted(one for one in found if one > id)


def _show_all(port: RedisPort[F], replies: Iterable[Reply]) -> Iterator[F]:
    """Yield the tasks for these replies; leave out unreadable tasks."""
    for reply in replies:
        try:
            yield port.decode(task_codec.parse(bytes_of(reply)))
        except Unreadable as error:
            port.connection.store.invalid_names.leave_out(f"tube {port.shared.name!r}", {error.facts["what"]: error})


def parsed(port: RedisPort[F], ids: list[int]) -> Flow[list[Parsed]]:
    """Return the stored tasks with these ids, for `decode`."""
    found: list[Parsed] = []
    at = 0
    while at < len(ids):
        seen, *replies = list_of(
            (yield from port.run_script("peek_many", ("", "", "", *ids[at : at + _TASKS_PER_CALL])))
        )
        found += [task_codec.parse(bytes_of(reply)) for reply in replies]
        at += number_of(seen)
    return found


def reasons(port: RedisPort[F]) -> Flow[Counter[str]]:
    """Count buried tasks by the kind of their reason."""
    found: Counter[str] = Counter()
    place: Word = b""
    while True:
        last, *pairs = list_of((yield from port.run_script("reasons", (place, _TASKS_PER_CALL))))
        for kind, count in zip(*[iter(pairs)] * 2, strict=True):
            with suppress(UnicodeDecodeError):  # It is damaged: `repair` reports it.
                found[bytes_of(kind).decode("utf-8", "surrogatepass")] += number_of(count)
        place = bytes_of(last)
        if not place:
            return found


def oldest_ready_age(port: RedisPort[F]) -> Flow[float | None]:
    """Return the age of the oldest ready task."""
    start: int | str = ""
    while True:
        reply = yield from port.run_script("oldest", (start,))
        if not isinstance(reply, int):
            return None if reply is None else number_of(reply) / SECOND
        start = reply


def due_histogram(port: RedisPort[F], edges: Iterable[Seconds]) -> Flow[list[int]]:
    """Count tasks by their due times."""
    return [
        number_of(count) for count in list_of((yield from port.run_script("due", tuple(known_options.edges(edges)))))
    ]


def lanes(port: RedisPort[F], limit: int, should_stop: Callable[[], bool] = lambda: False) -> Flow[list[LaneInfo]]:
    """Return the lanes, or some of them if `should_stop` returns True after a part."""
    most = integer("limit", limit)
    lane_of(port._driver, "")
    found: dict[str, LaneInfo] = {}
    cursor = 0
    while True:
        after, *seen = list_of((yield from port.run_script("lanes", (cursor,))))
        cursor = number_of(after)
        for raw_name, *facts in zip(*[iter(seen)] * _LANE_FACTS, strict=True):
            lane = bytes_of(raw_name)
            try:
                name = lane.decode("utf-8", "surrogatepass")
            except UnicodeDecodeError as error:
                port.connection.store.invalid_names.leave_out(f"the lanes of tube {port.shared.name!r}", {lane: error})
                continue
            found[name] = _lane_info(name, facts)
        if cursor == 0 or should_stop():
            return [found[name] for name in sorted(found)[:most]]


def lane_info(port: RedisPort[F], lane: object) -> LaneInfo:
    """Return the counts, limits and block of one lane."""
    name = lane_of(port._driver, lane)

    def decode(reply: Reply) -> LaneInfo:
        return _lane_info(name, list_of(reply)[2:])

    return port.call("lanes", (decode, (0, encode_text(name)), None), changes=False)


def _lane_info(name: str, facts: Sequence[Reply]) -> LaneInfo:
    """Return the view of a lane, from the facts that the function has returned after its name."""
    *numbers, reason, put = facts
    ready, taken, cooldown, interval, in_flight, capacity, blocked, burst, weight = map(number_of, numbers)
    start, until = (moment / SECOND if moment else None for moment in (cooldown, blocked))
    since = number_of(put) / SECOND if number_of(put) >= 0 else None
    why = bytes_of(reason).decode("utf-8", "surrogatepass") or None
    limits = interval / SECOND, in_flight, capacity, burst, weight
    return LaneInfo(name, ready, taken, start, *limits, until, why, since)


def _filter_word(filters: Filters, bound: int | None, *, with_data: bool) -> bytes:
    """Return the filters of a selection as an argument of functions: see `filter_of` in reads.lua."""
    return packed(
        (
            "" if bound is None else bound,
            "" if filters.older_than is None else filters.older_than,
            filters.attempts or "",
            b"" if filters.lane is None else b"=" + encode_text(filters.lane),
            encode_text(filters.key or ""),
            encode_text(filters.reason or ""),
            filters.contains or b"",
            "" if with_data else "1",
            encode_text(filters.function or ""),
        )
    )


def statistics_of(reply: Reply, waiting: int, now: int | None = None) -> Statistics:
    """Return the statistics in a function's reply; a pause that ended before `now` is ignored.

    Raises one of `validation.WRONG` for an unreadable reply.
    """
    total, taken, buried, counts, _, paused, *kept = list_of(reply)
    total, taken, buried = map(number_of, (total, taken, buried))
    puts, takes, acks, delayed, *others, undone_puts = (number_of(count or 0) for count in list_of(counts))
    calls = dict(zip(_CALLS, others, strict=True))
    tasks = {
        "ready": total - taken - buried - delayed,
        "taken": taken,
        "buried": buried,
        "delayed": delayed,
        "done": acks + calls["delete"],
        "total": total,
    }
    first = {"put": puts + undone_puts, "take": takes, "ack": acks}
    ends = None if paused is None else NEVER if float(bytes_of(paused)) == FOR_EVER else int(float(bytes_of(paused)))
    if ends is not None and now is not None and ends <= now:
        ends = None
    return Statistics(tasks, first | calls, waiting, to_seconds(ends), number_of(kept[0]) if kept else 0)
