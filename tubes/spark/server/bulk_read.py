"""Read many tasks without taking them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import compress
from operator import itemgetter
from struct import unpack
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from tubes.drivers.entry import NO_EXTRAS
from tubes.drivers.moves import State
from tubes.drivers.options import SECOND
from tubes.errors import TubeNotFound
from tubes.redis.bulk import (
    MOST_ATTEMPTS,
    TAKES,
    WRONG,
    BulkTube,
    bytes_of,
    leave_out_task,
    list_of,
    number_of,
    pack,
    read_done,
    read_task,
)
from tubes.values.task import own_context

if TYPE_CHECKING:
    from tubes.redis.bulk import Reply, Word
    from tubes.sync import Tube

#: Maximum number of tasks in one read, and of ids in one scan of a key.
_READS: Final = 2_000
_IDS: Final = 5_000
#: Tasks in the first read, and target bytes per read: task sizes are not known in advance. So each read also asks for
#: the sizes of `_PROBES` tasks of the next one.
_FIRST: Final = 2
_BYTES: Final = 500_000
_PROBES: Final = 20
#: State -> the key with its tasks, in the order in which a task may move from one to the next.
_SETS: Final = {"t": "taken", "~": "due", "!": "buried"}
#: A time later than all others, in microseconds.
_LAST: Final = 1 << 56
#: If the newest buried tasks come first, their key stores `_HIGHEST - id`.
_HIGHEST: Final = (1 << 48) - 1


class Row(NamedTuple):
    """A task, with its data and result as stored. Times are microseconds since 1970."""

    id: int
    state: str
    data: bytes
    utube: str | None
    pri: int
    attempts: int
    #: Take number; None: it is not taken.
    take: int | None
    reason: str | None
    key: str | None
    created: int
    due: int | None
    expires: int | None
    max_attempts: int | None
    context: dict[str, str] | None
    #: Only for done tasks: the stored result, why it ended, and when.
    result: bytes | None = None
    why: str | None = None
    ended: int | None = None


class Same(NamedTuple):
    """A column with one value for all tasks."""

    value: object


#: A column of a table: one value per task, or one for all.
Column: TypeAlias = Sequence[object] | Same


class Table:
    """Some tasks in columnar form. The columns are the fields of `Row`."""

    __slots__ = ("columns", "size")

    def __init__(self, size: int, columns: Mapping[str, Column]) -> None:
        self.size: Final = size
        self.columns: Final = columns

    def values(self, name: str) -> Sequence[Any]:
        column = self.columns[name]
        return [column.value] * self.size if isinstance(column, Same) else column

    def select(self, name: str, values: Container[object]) -> Table:
        """Return the tasks whose field `name` has one of these values."""
        column = self.columns.get(name)
        if isinstance(column, Same):
            return self if column.value in values else Table(0, _EMPTY)
        return self.filter([value in values for value in self.values(name)])

    def filter(self, keep: Sequence[bool]) -> Table:
        return self if all(keep) else Table(sum(keep), self._filter_columns(keep))

    def _filter_columns(self, keep: Sequence[bool]) -> dict[str, Column]:
        return {
            name: column if isinstance(column, Same) else list(compress(column, keep))
            for name, column in self.columns.items()
        }

    def rows(self) -> list[Row]:
        return [Row(*row) for row in zip(*(self.values(name) for name in Row._fields), strict=True)]


class Plain(Table):
    """Tasks without options: each is stored as its creation time, in `HEAD` bytes, and its data.

    The stored bytes stay in `raws`, and whole columns are decoded at once. This is fast enough for millions of tasks.
    """

    HEAD: Final = 8

    __slots__ = ("raws",)

    def __init__(self, raws: Sequence[bytes], columns: Mapping[str, Column]) -> None:
        super().__init__(len(raws), columns)
        self.raws: Final = raws

    def values(self, name: str) -> Sequence[Any]:
        if name == "data":
            return [raw[self.HEAD :] for raw in self.raws]
        if name == "created":
            return unpack(f">{self.size}Q", b"".join([raw[: self.HEAD] for raw in self.raws]))
        return super().values(name)

    def filter(self, keep: Sequence[bool]) -> Table:
        return self if all(keep) else Plain(list(compress(self.raws, keep)), self._filter_columns(keep))


class Extent(NamedTuple):
    """The number of tasks, a lower bound for their ids, and the id of the next put."""

    tasks: int
    lowest: int
    next: int


class BulkReader:
    """Reads tasks by id. Blocking. One call reads up to 2,000 tasks, each about 1 µs of the server's time.

    >>> import tubes
    >>> from tubes.spark.server.bulk_read import BulkReader
    >>> with tubes.connect("redis://localhost") as queue:
    ...     tube = queue.create_tube("mail", "utubettl")
    ...     tasks = tube.put("to ann", utube="ann"), tube.put("to bob", delay=5)
    ...     records = BulkReader(tube)
    ...     (table,) = records.read_range(0, records.extent().next)
    ...     [(row.id, row.state, row.utube, row.data) for row in table.rows()]
    [(0, 'r', 'ann', b'"to ann"'), (1, '~', None, b'"to bob"')]
    """

    def __init__(self, tube: Tube) -> None:
        self._tube: Final = tube
        self._bulk: Final = BulkTube(tube)
        #: True if no task was taken or due at the last read.
        self._is_idle = True
        #: Number of tasks in the next read.
        self._count = _FIRST

    def extent(self) -> Extent:
        """Return the number of tasks and the range of their ids. Raises `TubeNotFound`."""
        reply = self._bulk.call("extent")
        if reply is None:
            raise TubeNotFound(name=self._bulk.name)
        return Extent(*map(number_of, list_of(reply)))

    def ids(self, states: Container[str] = "r") -> list[int]:
        """Return the ids of all tasks that are in these states during the whole call, ascending; maybe more ids."""
        if "r" in states:
            return sorted(set(self._read_ids("tasks")))
        found: set[int] = set()
        # In the order of `_SETS`: no task moves back by itself, so a task whose state changes meanwhile is found.
        for state, part in _SETS.items():
            if state in states:
                found.update(self._read_ids(part))
        return sorted(found)

    def now(self) -> int:
        """Return the server's time, in microseconds since 1970."""
        (time,) = self._bulk.run_commands(pack("TIME"))
        seconds, micros = map(int, map(bytes_of, list_of(time)))
        return seconds * SECOND + micros

    def list_kept(self) -> list[int]:
        """Return the ids of all done tasks that are kept during the whole call, ascending; maybe more ids."""
        return sorted(set(self._read_ids("ended")))

    def find_page_end(self, after: int, count: int) -> int | None:
        """Return the end of the page of about `count` done tasks that are forgotten after the time `after`.

        The end is the time at which the last task of the page is forgotten; None: the page contains all remaining
        tasks. Done tasks are ordered by the time at which they are forgotten. Tasks with equal times share a page.
        """
        words = (f"{self._bulk.key}:ended", f"({after}", "+inf", "WITHSCORES", "LIMIT", count - 1, 2)
        (found,) = self._bulk.run_commands(pack("ZRANGEBYSCORE", *words))
        last = list_of(found)
        return int(float(bytes_of(last[1]))) if len(last) == 4 else None

    def list_kept_between(self, after: int, last: int | None) -> list[int]:
        """Return the ids of the done tasks that are forgotten after the time `after` and by `last`; None: no end."""
        words = (f"{self._bulk.key}:ended", f"({after}", "+inf" if last is None else last)
        (found,) = self._bulk.run_commands(pack("ZRANGEBYSCORE", *words))
        return [int.from_bytes(bytes_of(id), "big") for id in list_of(found)]

    def _read_ids(self, part: str) -> Iterator[int]:
        newest_first = part == "buried" and self._bulk.driver.signs[1] < 0
        cursor = b"0"
        while True:
            cursor_reply, ids = list_of(self._bulk.call("scan_ids", cursor, _IDS, part))
            for id in map(int, bytes_of(ids).split()):
                yield _HIGHEST - id if newest_first else id
            cursor = bytes_of(cursor_reply)
            if cursor == b"0":
                return

    def find_stored(self, ids: Sequence[int]) -> list[int]:
        """Return the ids for which the server stores a value, even an unreadable one."""
        key = f"{self._bulk.key}:tasks"
        found: list[int] = []
        for first in range(0, len(ids), _READS):
            page = ids[first : first + _READS]
            sizes = map(number_of, self._bulk.run_commands(*(pack("HSTRLEN", key, id) for id in page)))
            found += compress(page, sizes)
        return found

    def read_range(self, first: int, end: int) -> Iterator[Table]:
        """Yield the existing tasks with ids from `first` up to, not including, `end`."""
        return self.of(range(first, end))

    def of(self, ids: Sequence[int]) -> Iterator[Table]:
        """Yield the existing tasks with these ids."""
        start = 0
        while start < len(ids):
            end = start + self._count
            table, sizes = self._read(ids[start:end], ids[end : end + _READS : _READS // _PROBES])
            start, self._count = end, _next_count(table, self._count, sizes)
            yield table

    def read_heads(self, ids: Sequence[int]) -> Iterator[Table]:
        """Yield the existing tasks with these ids and empty data: the data stay on the server."""
        for page, replies in self._scan(ids, "tasks", "", "", ""):
            yield _decode(self._tube, page, *map(_column, replies))

    def done(self, ids: Sequence[int], *, data: bool, since: int = -1, to: int = _LAST) -> Iterator[Table]:
        """Yield the kept done tasks with these ids that ended after the time `since`, up to and including `to`.

        The server sends only these. Without `data` their data stay on the server.
        """
        for page, (raws, *_) in self._scan(ids, "done", "1" if data else "", since, to):
            yield _decode_done(self._tube, page, _column(raws))

    def _scan(self, ids: Sequence[int], *args: Word) -> Iterator[tuple[Sequence[int], list[Reply]]]:
        """Yield pages of ids with the server's replies. The server decides how many ids of a page it handles."""
        start = 0
        while start < len(ids):
            page = ids[start : start + _READS]
            reply = self._bulk.call("task_headers", *args, *page)
            if reply is None:
                raise TubeNotFound(name=self._bulk.name)
            first, *replies = list_of(reply)
            count = number_of(first)
            yield page[:count], replies
            start += count

    def _read(self, ids: Sequence[int], probes: Sequence[int]) -> tuple[Table, list[int]]:
        """Read the tasks `ids`, and the sizes of the tasks `probes`."""
        key = self._bulk.key
        words = _Words(ids)
        commands = [pack("HSTRLEN", f"{key}:tasks", id) for id in probes]
        commands.append(words.append_to("HMGET", f"{key}:tasks"))
        if self._is_idle:
            *sizes, raws, busy = self._bulk.run_commands(*commands, pack("EXISTS", f"{key}:taken", f"{key}:due"))
            if not busy:
                return _decode(self._tube, ids, _column(raws)), [number_of(size) for size in sizes]
            self._is_idle = False
        commands.append(words.append_to("ZMSCORE", f"{key}:taken"))
        if self._bulk.is_timed:
            commands.append(pack("ZMSCORE", f"{key}:due", *(id.to_bytes(6, "big") for id in ids)))
        replies = self._bulk.run_commands(*commands)
        columns, sizes = map(_column, replies[len(probes) :]), replies[: len(probes)]
        return _decode(self._tube, ids, *columns), [number_of(size) for size in sizes]


def _column(reply: Reply) -> list[bytes | None]:
    """Check the reply of a command that returns a string or null for each task."""
    return cast("list[bytes | None]", list_of(reply))


_NOTHING: Final = Same(None)
#: Columns that only done tasks have.
_NOT_DONE: Final[dict[str, Column]] = dict.fromkeys(("result", "why", "ended"), _NOTHING)
#: Columns of tasks that have no options and are not due at any time.
_PLAIN: Final[dict[str, Column]] = {
    **dict.fromkeys(("utube", "take", "reason", "key", "due", "expires", "max_attempts", "context"), _NOTHING),
    **_NOT_DONE,
    "pri": Same(0),
}


def _next_count(table: Table, count: int, sizes: Sequence[int]) -> int:
    """Return the number of tasks for the next read.

    `table` has the tasks found by the last read, of `count` ids; `sizes` are the sizes of some of the next tasks.
    """
    raws = table.raws if isinstance(table, Plain) else table.values("data")
    known = list(filter(None, sizes))
    mean = max(sum(map(len, raws)) // (table.size or 1), sum(known) // (len(known) or 1), 1)
    return max(1, min(_READS, count * 10, _BYTES // mean))


class _Words:
    """Arguments that several commands end with, packed once."""

    def __init__(self, words: Sequence[Word]) -> None:
        self._count: Final = len(words)
        # Cut off the number of words, and the placeholder command X with its length.
        _, _, _, self._packed = pack("X", *words).split(b"\r\n", 3)

    def append_to(self, *command: str) -> bytes:
        """Pack a command that ends with these arguments."""
        _, _, packed = pack(*command).partition(b"\r\n")
        return b"*%d\r\n%b%b" % (len(command) + self._count, packed, self._packed)


def _decode(
    tube: Tube,
    ids: Sequence[int],
    raws: list[bytes | None],
    takes: Sequence[bytes | None] = (),
    moments: Sequence[bytes | None] = (),
) -> Table:
    """Build a table from replies. Unreadable tasks are left out.

    Empty `takes` or `moments` mean that none of the tasks is taken, or due.
    """
    if None in raws:
        exists = [raw is not None for raw in raws]
        ids, takes = list(compress(ids, exists)), list(compress(takes, exists))
        moments = list(compress(moments, exists))
    found = [raw for raw in raws if raw is not None]
    if not found:
        return Table(0, _EMPTY)
    if min(map(len, found)) < Plain.HEAD:
        readable = [raw if raw and len(raw) >= Plain.HEAD else None for raw in raws if raw is not None]
        for id, raw in zip(ids, readable, strict=True):
            if raw is None:
                leave_out_task(tube, id, ValueError("it is too short"))
        return _decode(tube, ids, readable, takes, moments)
    free = takes.count(None)
    # Tasks without options that are all taken, or all not taken, are decoded column by column.
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


def _decode_done(tube: Tube, ids: Sequence[int], raws: Sequence[bytes | None]) -> Table:
    """Build a table of done tasks. Unreadable tasks are left out."""
    rows: list[Row] = []
    for id, raw in zip(ids, raws, strict=True):
        if raw is None:
            continue
        try:
            done = read_done(id, raw)
        except WRONG as error:
            leave_out_task(tube, id, error)
            continue
        extras = done.extras or NO_EXTRAS
        expires = None if done.ttl is None else done.created + done.ttl
        row = Row(
            id, State.DONE.letter, done.data, done.utube, done.pri, done.attempts, None, extras.reason, extras.key,
            done.created, None, expires, extras.max_attempts or None, own_context(extras.context) or None,
            done.result, done.why, done.ended,
        )  # fmt: skip
        rows.append(row)
    return Table(len(rows), dict(zip(Row._fields, zip(*rows, strict=True), strict=True)) if rows else _EMPTY)


def _rows(
    tube: Tube, ids: Sequence[int], raws: list[bytes], takes: Sequence[bytes | None], moments: Sequence[bytes | None]
) -> Iterator[Row]:
    """Decode stored tasks one by one. Unreadable tasks are left out."""
    for id, raw, take, moment in zip(ids, raws, takes, moments, strict=True):
        try:
            stored, at = read_task(id, raw)
        except WRONG as error:
            leave_out_task(tube, id, error)
            continue
        flags = raw[0]
        attempts = int.from_bytes(raw[8:11], "big") if flags & 4 else 0
        number = None
        if take is not None:
            state, attempts, number = "t", min(attempts + 1, MOST_ATTEMPTS), int(take) % TAKES
        else:
            state = "~" if flags & 1 else "!" if flags & 2 else "r"
        extras = stored.extras or NO_EXTRAS
        due = None if moment is None else int(moment)
        expires = None if stored.ttl is None else stored.created + stored.ttl
        yield Row(
            id, state, raw[at:], stored.utube, stored.pri, attempts, number, extras.reason, extras.key,
            stored.created, due, expires, extras.max_attempts or None, own_context(extras.context) or None,
        )  # fmt: skip
