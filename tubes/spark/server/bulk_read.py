"""Many tasks as they are now, without taking any."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import compress
from operator import itemgetter
from struct import unpack
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from tubes.drivers.entry import NOTHING_MORE
from tubes.drivers.moves import State
from tubes.drivers.options import SECOND
from tubes.errors import TubeNotFound
from tubes.redis import task_codec, validation
from tubes.redis.scripts.assembly import MOST_ATTEMPTS, TAKES, knobs_of
from tubes.redis.scripts.replies import bytes_of, list_of, number_of
from tubes.redis.transport.wire import pack

if TYPE_CHECKING:
    from tubes.redis.port import Port
    from tubes.redis.transport.wire import Reply, Word
    from tubes.sync import Task, Tube

#: Tasks that one call reads; ids that one looks for.
_READS: Final = 2_000
#: How many the first one reads, and bytes that one is to read: large data are not known before. Each looks how large
#: some are that the next one would read.
_FIRST: Final = 2
_BYTES: Final = 500_000
_PROBES: Final = 20
_IDS: Final = 5_000
#: Where tasks stand that are not ready, in the order in which a task may go from one to another.
_SETS: Final = {"t": "taken", "~": "due", "!": "buried"}
#: Moments of which all others are before, and after.
_LAST: Final = 1 << 56
#: Where the newest come first, places have what is left up to this.
_HIGHEST: Final = (1 << 48) - 1


class Row(NamedTuple):
    """A task: what is known of it, with its data as they are stored. Moments are microseconds since 1970."""

    id: int
    state: str
    data: bytes
    utube: str | None
    pri: int
    attempts: int
    #: The number of its take; None: it is not taken.
    take: int | None
    reason: str | None
    key: str | None
    created: int
    due: int | None
    expires: int | None
    max_attempts: int | None
    context: dict[str, str] | None
    #: Of a done task: its result as it is stored, why it ended, and when.
    result: bytes | None = None
    why: str | None = None
    ended: int | None = None


class Same(NamedTuple):
    """A column that has one value for all tasks."""

    value: object


#: A column of a table: its values, of whatever type, or the one that all tasks have.
Column: TypeAlias = Sequence[Any] | Same


class Table:
    """Some tasks, by columns: the fields of `Row`."""

    __slots__ = ("columns", "size")

    def __init__(self, size: int, columns: Mapping[str, Column]) -> None:
        self.size: Final = size
        self.columns: Final = columns

    def values(self, name: str) -> Sequence[Any]:
        """A column, written out."""
        column = self.columns[name]
        return [column.value] * self.size if isinstance(column, Same) else column

    def having(self, name: str, values: Container[object]) -> Table:
        """Those whose field is among these."""
        column = self.columns.get(name)
        if isinstance(column, Same):
            return self if column.value in values else Table(0, _EMPTY)
        return self.where([value in values for value in self.values(name)])

    def where(self, keep: Sequence[bool]) -> Table:
        """Those for which this is true."""
        return self if all(keep) else Table(sum(keep), self._where(keep))

    def _where(self, keep: Sequence[bool]) -> dict[str, Column]:
        return {
            name: column if isinstance(column, Same) else list(compress(column, keep))
            for name, column in self.columns.items()
        }

    def rows(self) -> list[Row]:
        """Give the tasks of this table one by one, as rows."""
        return [Row(*row) for row in zip(*(self.values(name) for name in Row._fields), strict=True)]


class Plain(Table):
    """Tasks without options, of which nothing is stored but the moment of the put, in `HEAD` bytes, and the data.

    Millions of them are read as they are stored, in `raws`, and looked at all together.
    """

    HEAD: Final = 8

    __slots__ = ("raws",)

    def __init__(self, raws: Sequence[bytes], columns: Mapping[str, Column]) -> None:
        super().__init__(len(raws), columns)
        self.raws: Final = raws

    def values(self, name: str) -> Sequence[Any]:
        """A column, written out."""
        if name == "data":
            return [raw[self.HEAD :] for raw in self.raws]
        if name == "created":
            return unpack(f">{self.size}Q", b"".join([raw[: self.HEAD] for raw in self.raws]))
        return super().values(name)

    def where(self, keep: Sequence[bool]) -> Table:
        """Those for which this is true."""
        return self if all(keep) else Plain(list(compress(self.raws, keep)), self._where(keep))


class Extent(NamedTuple):
    """How many tasks there are, the lowest id that may be there, and the next one to be given."""

    tasks: int
    lowest: int
    next: int


class BulkReader:
    """Reads tasks by their ids. For threads; a call looks at 2,000 tasks, each about a µs of the server's.

    >>> import tubes
    >>> from tubes.spark.server.bulk_read import BulkReader
    >>> with tubes.connect("redis://localhost") as queue:
    ...     tube = queue.create_tube("mail", "utubettl")
    ...     tasks = tube.put("to ann", utube="ann"), tube.put("to bob", delay=5)
    ...     records = BulkReader(tube)
    ...     (table,) = records.between(0, records.extent().next)
    ...     [(row.id, row.state, row.utube, row.data) for row in table.rows()]
    [(0, 'r', 'ann', b'"to ann"'), (1, '~', None, b'"to bob"')]
    """

    def __init__(self, tube: Tube) -> None:
        self._port: Final[Port[Task]] = cast("Port[Task]", tube._port)
        #: Whether nothing was taken, or due, when it last looked.
        self._idle = True
        #: How many tasks it reads next.
        self._count = _FIRST
        self._timed: Final = "TIMED" in knobs_of(self._port.shared.driver)

    def extent(self) -> Extent:
        """Where its tasks are."""
        reply = self._call("extent", parts=("tasks", "ready", "back", "buried", "due", "taken"))
        if reply is None:
            raise TubeNotFound(name=self._port.shared.name)
        return Extent(*map(number_of, list_of(reply)))

    def ids(self, states: Container[str] = "r") -> list[int]:
        """The ids of the tasks that are in these states all the time that this takes, ascending, and of some others."""
        if "r" in states:
            return sorted(set(self._ids_in("tasks")))
        found: set[int] = set()
        # In this order: no task goes back by itself, so one that changes its state meanwhile is found.
        for state, part in _SETS.items():
            if state in states:
                found.update(self._ids_in(part))
        return sorted(found)

    def now(self) -> int:
        """The time of the server, in microseconds since 1970."""
        (time,) = self._port.run(self._port.look(pack("TIME")))
        seconds, micros = map(int, map(bytes_of, list_of(time)))
        return seconds * SECOND + micros

    def kept(self) -> list[int]:
        """The ids of the done tasks that are kept all the time that this takes, ascending, and of some others."""
        return sorted(set(self._ids_in("ended")))

    def kept_page(self, after: int, count: int) -> int | None:
        """Done tasks stand in the order in which they are forgotten; the moment at which the page ends of so many.

        It begins after the moment `after`. None: it ends with the last of them. Tasks of one moment share a page.
        """
        words = (f"{self._port.shared.key}:ended", f"({after}", "+inf", "WITHSCORES", "LIMIT", count - 1, 2)
        (found,) = self._port.run(self._port.look(pack("ZRANGEBYSCORE", *words)))
        last = list_of(found)
        return int(float(bytes_of(last[1]))) if len(last) == 4 else None

    def kept_between(self, after: int, last: int | None) -> list[int]:
        """The ids of the done tasks that are forgotten after one moment, and not after another; None: all others."""
        words = (f"{self._port.shared.key}:ended", f"({after}", "+inf" if last is None else last)
        (found,) = self._port.run(self._port.look(pack("ZRANGEBYSCORE", *words)))
        return [int.from_bytes(bytes_of(id), "big") for id in list_of(found)]

    def _ids_in(self, part: str) -> Iterator[int]:
        newest_first = part == "buried" and self._port.shared.driver.signs[1] < 0
        cursor = b"0"
        while True:
            after, some = list_of(self._call("ids", cursor, _IDS, part, parts=(part,)))
            for id in map(int, bytes_of(some).split()):
                yield _HIGHEST - id if newest_first else id
            cursor = bytes_of(after)
            if cursor == b"0":
                return

    def stored(self, ids: Sequence[int]) -> list[int]:
        """Those of these ids for which something is stored, whether it can be read or not."""
        key = f"{self._port.shared.key}:tasks"
        found: list[int] = []
        for first in range(0, len(ids), _READS):
            some = ids[first : first + _READS]
            sizes = map(number_of, self._port.run(self._port.look(*(pack("HSTRLEN", key, id) for id in some))))
            found += compress(some, sizes)
        return found

    def between(self, first: int, end: int) -> Iterator[Table]:
        """The tasks with ids from `first` to before `end`."""
        return self.of(range(first, end))

    def of(self, ids: Sequence[int]) -> Iterator[Table]:
        """The tasks with these ids that are there."""
        start = 0
        while start < len(ids):
            end = start + self._count
            table, sizes = self._read(ids[start:end], ids[end : end + _READS : _READS // _PROBES])
            start, self._count = end, _next(table, self._count, sizes)
            yield table

    def heads_of(self, ids: Sequence[int]) -> Iterator[Table]:
        """The same without their data, which stays on the server: each has none."""
        for some, told in self._looked_at(ids, "tasks", "", "", "", parts=("tasks", "taken", "due")):
            yield _part(self._port.tube, some, *map(_column, told))

    def done(self, ids: Sequence[int], *, data: bool, since: int = -1, to: int = _LAST) -> Iterator[Table]:
        """The done tasks with these ids that are kept, and that ended after the moment `since`, and not after `to`.

        Only these are sent; without `data` theirs stay on the server.
        """
        for some, (raws, *_) in self._looked_at(ids, "done", "1" if data else "", since, to, parts=("done",)):
            yield _done_part(self._port.tube, some, _column(raws))

    def _looked_at(
        self, ids: Sequence[int], *asked: Word, parts: tuple[str, ...]
    ) -> Iterator[tuple[Sequence[int], list[Reply]]]:
        """Some of these ids, and what the server says of them, until it has looked at all."""
        start = 0
        while start < len(ids):
            some = ids[start : start + _READS]
            reply = self._call("heads", *asked, *some, parts=parts)
            if reply is None:
                raise TubeNotFound(name=self._port.shared.name)
            count, *told = list_of(reply)
            looked = number_of(count)
            yield some[:looked], told
            start += looked

    def _read(self, ids: Sequence[int], ahead: Sequence[int]) -> tuple[Table, list[int]]:
        """Tasks, and how large some others are."""
        key = self._port.shared.key
        words = _Words(ids)
        commands = [pack("HSTRLEN", f"{key}:tasks", id) for id in ahead]
        commands.append(words.after("HMGET", f"{key}:tasks"))
        if self._idle:
            *sizes, raws, busy = self._port.run(
                self._port.look(*commands, pack("EXISTS", f"{key}:taken", f"{key}:due"))
            )
            if not busy:
                return _part(self._port.tube, ids, _column(raws)), [number_of(size) for size in sizes]
            self._idle = False
        commands.append(words.after("ZMSCORE", f"{key}:taken"))
        if self._timed:
            commands.append(pack("ZMSCORE", f"{key}:due", *(id.to_bytes(6, "big") for id in ids)))
        replies = self._port.run(self._port.look(*commands))
        told, sizes = map(_column, replies[len(ahead) :]), replies[: len(ahead)]
        return _part(self._port.tube, ids, *told), [number_of(size) for size in sizes]

    def _call(self, verb: str, *args: Word, parts: tuple[str, ...]) -> Reply:
        return self._port.run(self._port.ask_alone(verb, *args, parts=parts))


def _column(reply: Reply) -> list[bytes | None]:
    """What a command answers that looks at each of some tasks."""
    return cast("list[bytes | None]", list_of(reply))


_NOTHING: Final = Same(None)
#: What a done task alone has.
_NOT_DONE: Final[dict[str, Column]] = dict.fromkeys(("result", "why", "ended"), _NOTHING)
#: What a task has that has no options, and is not due by itself.
_PLAIN: Final[dict[str, Column]] = {
    **dict.fromkeys(("utube", "take", "reason", "key", "due", "expires", "max_attempts", "context"), _NOTHING),
    **_NOT_DONE,
    "pri": Same(0),
}


def _next(table: Table, count: int, sizes: Sequence[int]) -> int:
    """How many tasks to read next, after this many, of which these are there; `sizes`: of some of the next ones."""
    raws = table.raws if isinstance(table, Plain) else table.values("data")
    there = list(filter(None, sizes))
    mean = max(sum(map(len, raws)) // (table.size or 1), sum(there) // (len(there) or 1), 1)
    return max(1, min(_READS, count * 10, _BYTES // mean))


class _Words:
    """Words that several commands end with, packed once."""

    def __init__(self, words: Sequence[Word]) -> None:
        self._count: Final = len(words)
        # Behind how many there are, the length of the first and that: it must look like a command.
        _, _, _, self._packed = pack("X", *words).split(b"\r\n", 3)

    def after(self, *command: str) -> bytes:
        """Pack one command that ends with these words."""
        _, _, packed = pack(*command).partition(b"\r\n")
        return b"*%d\r\n%b%b" % (len(command) + self._count, packed, self._packed)


def _part(
    tube: Tube,
    ids: Sequence[int],
    raws: list[bytes | None],
    takes: Sequence[bytes | None] = (),
    moments: Sequence[bytes | None] = (),
) -> Table:
    """What the server answers; without `takes` or `moments` it has none of these tasks there.

    Tasks that cannot be read are left out.
    """
    if None in raws:
        there = [raw is not None for raw in raws]
        ids, takes, moments = list(compress(ids, there)), list(compress(takes, there)), list(compress(moments, there))
    found = [raw for raw in raws if raw is not None]
    if not found:
        return Table(0, _EMPTY)
    if min(map(len, found)) < Plain.HEAD:
        readable = [raw if raw and len(raw) >= Plain.HEAD else None for raw in raws if raw is not None]
        for id, raw in zip(ids, readable, strict=True):
            if raw is None:
                validation.leave_out_task(tube, id, ValueError("it is too short"))
        return _part(tube, ids, readable, takes, moments)
    free = takes.count(None)
    # Most tubes have many tasks that are alike: they are looked at all together then.
    if 0 < free < len(takes) or any(moments) or any(map(_flags, found)):
        nothing = (None,) * len(found)
        rows = list(_rows(tube, ids, found, takes or nothing, moments or nothing))
        columns = zip(*rows, strict=True) if rows else ((),) * len(Row._fields)
        return Table(len(rows), {**dict(zip(Row._fields, columns, strict=True)), **_NOT_DONE})
    if free == len(takes):
        return Plain(found, {**_PLAIN, "id": ids, "state": Same("r"), "attempts": Same(0)})
    numbers = [int(take) % TAKES for take in takes if take is not None]
    return Plain(found, {**_PLAIN, "id": ids, "state": Same("t"), "attempts": Same(1), "take": numbers})


_flags: Final = itemgetter(0)
_EMPTY: Final[dict[str, Column]] = dict.fromkeys(Row._fields, ())


def _done_part(tube: Tube, ids: Sequence[int], raws: Sequence[bytes | None]) -> Table:
    """Done tasks; those that cannot be read are left out."""
    rows: list[Row] = []
    for id, raw in zip(ids, raws, strict=True):
        if raw is None:
            continue
        try:
            done = task_codec.read_done(id, raw)
        except validation.WRONG as error:
            validation.leave_out_task(tube, id, error)
            continue
        more = done.more or NOTHING_MORE
        expires = None if done.ttl is None else done.created + done.ttl
        row = Row(
            id, State.DONE.value, done.data, done.utube, done.pri, done.attempts, None, more.reason, more.key,
            done.created, None, expires, more.max_attempts or None, more.context, done.result, done.why, done.ended,
        )  # fmt: skip
        rows.append(row)
    return Table(len(rows), dict(zip(Row._fields, zip(*rows, strict=True), strict=True)) if rows else _EMPTY)


def _rows(
    tube: Tube, ids: Sequence[int], raws: list[bytes], takes: Sequence[bytes | None], moments: Sequence[bytes | None]
) -> Iterator[Row]:
    """Read stored tasks one by one, and leave out those that cannot be read."""
    for id, raw, take, moment in zip(ids, raws, takes, moments, strict=True):
        try:
            stored, at = task_codec.read(id, raw)
        except validation.WRONG as error:
            validation.leave_out_task(tube, id, error)
            continue
        flags = raw[0]
        attempts = int.from_bytes(raw[8:11], "big") if flags & 4 else 0
        number = None
        if take is not None:
            state, attempts, number = "t", min(attempts + 1, MOST_ATTEMPTS), int(take) % TAKES
        else:
            state = "~" if flags & 1 else "!" if flags & 2 else "r"
        more = stored.more or NOTHING_MORE
        due = None if moment is None else int(moment)
        expires = None if stored.ttl is None else stored.created + stored.ttl
        yield Row(
            id, state, raw[at:], stored.utube, stored.pri, attempts, number, more.reason, more.key,
            stored.created, due, expires, more.max_attempts or None, more.context,
        )  # fmt: skip
