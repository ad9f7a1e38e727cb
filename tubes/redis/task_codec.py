"""Tasks in the server's format, which `drivers/lua/entry.lua` reads and writes there.

A stored task consists of a byte of flags, the moment of its put (7 bytes), optional fields in the order of the flags,
and the data. A kept done task has another header in front of it.
"""

from __future__ import annotations

import struct
from struct import Struct, pack, unpack_from
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from tubes.drivers.entry import Extras
from tubes.drivers.moves import MOVES, State
from tubes.drivers.options import EXTRA_OPTIONS, MAX_COUNT
from tubes.drivers.timers import NEVER
from tubes.errors import Unreadable
from tubes.redis import validation
from tubes.values.reasons import kind_of
from tubes.values.task import F, TaskView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tubes.drivers.driver import Driver
    from tubes.redis.transport.wire import Word
    from tubes.values.task import Origin

#: A task in a function's reply: id, state, attempts, take, due time (-1: never), and the stored task or its header.
Parsed: TypeAlias = tuple[int, bytes, int, int, int, bytes]

_EVENTS: Final = frozenset(move.event.encode() for moves in MOVES.values() for move in moves.values())
_STATES: Final = {state.letter.encode(): state for state in State}
#: The header of a task in a function's reply: id, state, attempts, number of the take, due time.
_HEADER: Final = Struct(">QcIIq")
#: The first bytes of a stored task: one byte of flags, and the moment of its put in 7 bytes.
_PREFIX: Final = Struct(">Q").unpack_from
_MOMENT: Final = (1 << 56) - 1
_ATTEMPTS, _PRI, _TTL, _TTR, _LANE, _EXTRAS = 4, 8, 16, 32, 64, 128
_MAX_ATTEMPTS, _KEY, _KEY_TTL, _REASON, _CONTEXT, _KEEP_DONE, _COUNTERS = 1, 2, 4, 8, 32, 64, 128
#: The first bytes of a kept done task: why it ended, the time of its end, the time until which it is kept (7 bytes
#: each), its attempts, and whether it has a result.
_DONE_HEADER: Final = Struct(">c7s7s3s?")
_END_CAUSES: Final = {b"a": "ack", b"d": "delete", b"t": "ttl", b"c": "cancelled"}


class StoredTask:
    """The stored facts of a task: most never change; a touch or a delay changes its times."""

    __slots__ = ("created", "data", "extras", "id", "pri", "ttl", "ttr", "utube")

    id: int
    created: int
    data: Any
    pri: int
    ttl: int | None
    ttr: int | None
    utube: str | None
    extras: Extras | None


class StoredDone(StoredTask):
    """A kept done task."""

    __slots__ = ("attempts", "ended", "result", "until", "why")

    attempts: int
    ended: int
    until: int
    why: str
    result: bytes | None


class NewTask(NamedTuple):
    """A task to be put: its flags, its other header fields, and the other arguments of the function."""

    flags: bytes
    header: bytes
    #: Microseconds until it is due, its priority, and its lane.
    due: int | str
    pri: int | str
    lane: bytes
    ttl: int | None
    ttr: int | None
    is_delayed: bool
    extras: Extras | None
    #: The name of its lane for users.
    utube: str | None


def write(driver: Driver, tube: Mapping[str, Any], options: Mapping[str, Any]) -> NewTask:
    """Return a new task with these options for a tube with the options `tube`, both checked by `Driver`."""
    flags, header = 0, b""
    pri = options.get("pri", tube.get("pri", 0)) if "pri" in driver.options else 0
    ttl = options.get("ttl", tube.get("ttl"))
    ttr = options.get("ttr", tube.get("ttr", tube.get("ttl"))) if "ttr" in driver.options else None
    delay = options.get("delay", 0)
    lane = options.get(driver.lane) if driver.lane is not None else None
    if pri:
        flags |= _PRI
        header += pack(">I", pri)
    if ttl is not None:
        ttl += delay
        flags |= _TTL
        header += ttl.to_bytes(7, "big")
    if ttr is not None:
        flags |= _TTR
        header += ttr.to_bytes(7, "big")
    name = b""
    if lane is not None:
        name = lane.encode("utf-8", "surrogatepass")
        flags |= _LANE
        header += _text(name)
    has_extras = "max_attempts" in tube or tube.get("keep_done") or not EXTRA_OPTIONS.isdisjoint(options)
    extras = _extras_of(tube, options) if has_extras else None
    if extras is not None:
        flags |= _EXTRAS
        header += _write_extras(extras)
    if delay:
        flags |= 1
    due = delay or ("" if ttl is None else ttl)
    return NewTask(bytes((flags,)), header, due, pri or "", name, ttl, ttr, bool(delay), extras, lane)


def in_lane(plain: NewTask, lane: str) -> NewTask:
    """Return a task whose only option is its lane: like `write` in half the time. `plain` has no extras."""
    name = lane.encode("utf-8", "surrogatepass")
    flags, header = bytes((plain.flags[0] | _LANE,)), plain.header + _text(name)
    return NewTask(flags, header, plain.due, plain.pri, name, plain.ttl, plain.ttr, False, None, lane)


def put_words(puts: Iterable[tuple[NewTask, list[bytes]]], *, laned: bool) -> list[Word]:
    """Return the arguments of `put_many` for tasks; the tasks of one pair share their options.

    `laned`: the tube has lanes. Single tasks that differ only by lane take two words each instead of seven.
    """
    words: list[Any] = []
    group: object = None
    offset = 0
    for new, data in puts:
        is_single = laned and len(data) == 1
        kind = (new.flags, new.due, new.pri) if is_single else new
        if kind != group:
            group, offset = kind, len(words)
            words += (0, *kind) if is_single else (0, new.flags, new.due, new.pri, new.lane, new.header)
        if is_single:
            words[offset] -= 1
            words += new.lane, new.header + data[0]
        else:
            words[offset] += len(data)
            words += data
    return words


def _text(words: bytes) -> bytes:
    return (bytes((len(words),)) if len(words) < 255 else pack(">BI", 255, len(words))) + words


def _words_at(raw: bytes, offset: int) -> tuple[bytes, int]:
    length = raw[offset]
    offset += 1
    if length == 255:
        (length,) = unpack_from(">I", raw, offset)
        offset += 4
    return raw[offset : offset + length], offset + length


def _text_at(raw: bytes, offset: int) -> tuple[str, int]:
    words, offset = _words_at(raw, offset)
    return words.decode("utf-8", "surrogatepass"), offset


def encode_reason(reason: str | None) -> bytes:
    """Encode a reason for functions, which store it with its kind; None: as no bytes."""
    if reason is None:
        return b""
    kind = kind_of(reason)
    prefix = b"" if kind == reason else kind.encode("utf-8", "surrogatepass")
    return b"%02x%b%b" % (len(prefix), prefix, reason.encode("utf-8", "surrogatepass"))


def decode_reason(words: bytes) -> str:
    """Decode a reason as it is stored."""
    return words[2 + int(words[:2], 16) :].decode("utf-8", "surrogatepass")


def _extras_of(tube: Mapping[str, Any], options: Mapping[str, Any]) -> Extras:
    key = options.get("key")
    key_ttl = options.get("key_ttl", tube.get("key_ttl", 0)) if key is not None else 0
    max_attempts = options.get("max_attempts", tube.get("max_attempts", 0))
    keep_done = options.get("keep_done", tube.get("keep_done", 0))
    return Extras(key, key_ttl, max_attempts, context=options.get("context"), keep_done=keep_done)


def _write_extras(extras: Extras) -> bytes:
    flags, written = 0, b""
    if extras.max_attempts:
        flags |= _MAX_ATTEMPTS
        written += extras.max_attempts.to_bytes(3, "big")
    if extras.key is not None:
        flags |= _KEY
        written += _text(extras.key.encode("utf-8", "surrogatepass"))
    if extras.key_ttl:
        flags |= _KEY_TTL
        written += extras.key_ttl.to_bytes(7, "big")
    if extras.context:
        flags |= _CONTEXT
        pairs = (_text(words.encode("utf-8", "surrogatepass")) for pair in extras.context.items() for words in pair)
        written += _text(b"".join(pairs))
    if extras.keep_done:
        flags |= _KEEP_DONE
        written += extras.keep_done.to_bytes(7, "big")
    return bytes((flags,)) + written


def _read_extras(raw: bytes, offset: int) -> tuple[Extras, int]:
    flags = raw[offset]
    offset += 1
    key = reason = None
    key_ttl = max_attempts = keep_done = counters = 0
    if flags & _MAX_ATTEMPTS:
        max_attempts, offset = int.from_bytes(raw[offset : offset + 3], "big"), offset + 3
    if flags & _KEY:
        key, offset = _text_at(raw, offset)
    if flags & _KEY_TTL:
        key_ttl, offset = int.from_bytes(raw[offset : offset + 7], "big"), offset + 7
    if flags & _REASON:
        words, offset = _words_at(raw, offset)
        reason = decode_reason(words)
    context = None
    if flags & _CONTEXT:
        packed, offset = _words_at(raw, offset)
        context = _read_context(packed)
    if flags & _KEEP_DONE:
        keep_done, offset = int.from_bytes(raw[offset : offset + 7], "big"), offset + 7
    if flags & _COUNTERS:
        counters, offset = int.from_bytes(raw[offset : offset + 16], "big"), offset + 16
    return Extras(key, key_ttl, max_attempts, reason, context=context, keep_done=keep_done, counters=counters), offset


def _read_context(packed: bytes) -> dict[str, str]:
    """Read alternating names and values."""
    context: dict[str, str] = {}
    offset = 0
    while offset < len(packed):
        name, offset = _text_at(packed, offset)
        context[name], offset = _text_at(packed, offset)
    return context


def read(id: int, raw: bytes) -> tuple[StoredTask, int]:
    """Return a stored task, and the offset of its data."""
    stored = StoredTask()
    (prefix,) = _PREFIX(raw)
    stored.id = id
    stored.created = prefix & _MOMENT
    stored.pri = 0
    stored.ttl = stored.ttr = stored.utube = stored.extras = None
    flags, offset = prefix >> 56, 8
    if flags > 3:
        if flags & _ATTEMPTS:
            offset += 3
        if flags & _PRI:
            (stored.pri,) = unpack_from(">I", raw, offset)
            offset += 4
        if flags & _TTL:
            stored.ttl = int.from_bytes(raw[offset : offset + 7], "big")
            offset += 7
        if flags & _TTR:
            stored.ttr = int.from_bytes(raw[offset : offset + 7], "big")
            offset += 7
        if flags & _LANE:
            stored.utube, offset = _text_at(raw, offset)
        if flags & _EXTRAS:
            stored.extras, offset = _read_extras(raw, offset)
        if offset > len(raw):
            raise ValueError("it is cut off")
    return stored, offset


def read_done(id: int, raw: bytes) -> StoredDone:
    """Read a kept done task."""
    why, ended, until, attempts, has_result = _DONE_HEADER.unpack_from(raw)
    offset, result = _DONE_HEADER.size, None
    if has_result:
        result, offset = _words_at(raw, offset)
    stored, body = read(id, raw[offset:])
    done = StoredDone()
    for name in StoredTask.__slots__:
        if name != "data":
            setattr(done, name, getattr(stored, name))
    done.data = raw[offset + body :]
    done.attempts = int.from_bytes(attempts, "big")
    done.why, done.result = _END_CAUSES[why], result
    done.ended, done.until = int.from_bytes(ended, "big"), int.from_bytes(until, "big")
    return done


#: The bytes before a task that was taken for a waiter: when the next one can be taken.
OUTLOOK: Final = 8


def parse(reply: bytes, offset: int = 0) -> Parsed:
    """Read the task in a function's reply."""
    try:
        return *_HEADER.unpack_from(reply, offset), reply[offset + _HEADER.size :]
    except struct.error as error:
        raise Unreadable(what="a task", why=error) from error


def see(reply: bytes) -> tuple[int, int, str, int, int]:
    """Read the `Seen` of a task from a function's reply."""
    id, state, attempts, take, _, raw = parse(reply)
    try:
        return id, _PREFIX(raw)[0] & _MOMENT, state.decode(), attempts, take
    except struct.error as error:
        raise Unreadable(what="a task", why=error) from error


def decode(kind: type[F], tube: Origin, parsed: Parsed, known: bytes | None = None) -> F:
    """Return the task of a parsed reply; the reply contains no data if the caller passes it as `known`."""
    id, state, attempts, take, due, raw = parsed
    try:
        if take and state == b"-":
            return make_task(kind, tube, read_done(id, raw), State.DONE, attempts, NEVER)
        stored, offset = read(id, raw)
    except validation.WRONG as error:
        raise validation.unreadable(f"task {id} of tube {tube.name!r}", error) from error
    stored.data = raw[offset:] if known is None else known
    return make_task(kind, tube, stored, _STATES[state], attempts, NEVER if due < 0 else due, take)


def make_task(kind: type[F], tube: Origin, stored: Any, state: State, attempts: int, due: int, take: int = 0) -> F:
    """Return a task with these facts."""
    task = kind()
    task._tube = tube
    task._record = stored
    task._state = state
    task._attempts = attempts
    task._extras = stored.extras
    ttl = stored.ttl
    task._times = (ttl, stored.ttr, due, NEVER if ttl is None else stored.created + ttl)
    task._take = take
    return task


_TAKEN: Final = State.TAKEN
_PLAIN_TIMES: Final = (None, None, NEVER, NEVER)


class _Plain:
    """The stored facts of a task that has only data."""

    __slots__ = ("created", "data", "id")

    id: int
    created: int
    data: Any
    pri: Final = 0
    ttl: Final = None
    ttr: Final = None
    utube: Final = None
    extras: Final = None


def make_new_tasks(kind: type[F], tube: Origin, first: int, created: int, new: NewTask, data: list[bytes]) -> list[F]:
    """Return the tasks of one put, with ids from `first`. Every batch runs this, so the code is flat."""
    state = State.DELAYED if new.is_delayed else State.READY
    due = NEVER if new.due == "" else created + int(new.due)
    times = (new.ttl, new.ttr, due, NEVER if new.ttl is None else created + new.ttl)
    plain = not new.header
    tasks: list[F] = []
    stored: Any
    for id, raw in enumerate(data, first):
        task = kind()
        task._tube = tube
        stored = _Plain() if plain else StoredTask()
        task._record = stored
        stored.id = id
        stored.created = created
        stored.data = raw
        if not plain:
            stored.pri, stored.ttl, stored.ttr, stored.utube = new.pri or 0, new.ttl, new.ttr, new.utube
            stored.extras = new.extras
        task._state = state
        task._attempts = task._take = 0
        task._extras = new.extras
        task._times = times
        tasks.append(task)
    return tasks


def make_taken_tasks(
    kind: type[F], tube: Origin, take: int, ids: list[bytes], attempts: list[bytes], dues: list[int], raws: list[bytes]
) -> list[F]:
    """Return the tasks of one take; `dues`: their due times (-1: never), empty if no task of the tube is ever due.

    An unreadable task is left out, and stays taken.
    """
    tasks: list[F] = []
    add = tasks.append
    for number, (id, attempt_count, raw) in enumerate(zip(map(int, ids), map(int, attempts), raws, strict=True)):
        due = dues[number] if dues else -1
        try:
            # The first byte contains the flags; without flags, all 8 bytes are the moment of the put.
            (prefix,) = _PREFIX(raw)
            if prefix >> 56 or due >= 0:
                known, offset = read(id, raw)
                known.data = raw[offset:]
                add(make_task(kind, tube, known, State.TAKEN, attempt_count, NEVER if due < 0 else due, take))
                continue
        except validation.WRONG as error:
            validation.leave_out_task(tube, id, error)
            continue
        task = kind()
        task._tube = tube
        stored: Any = _Plain()
        task._record = stored
        stored.id = id
        stored.created = prefix
        stored.data = raw[8:]
        task._state = _TAKEN
        task._attempts = attempt_count
        task._take = take
        task._extras = None
        task._times = _PLAIN_TIMES
        add(task)
    return tasks


#: The message of `truncate` and `drop` to callers that wait until the tube is empty; listeners do not get it.
ALL_GONE: Final = b"gone"


def parse_event(message: bytes) -> tuple[str, Parsed]:
    """Return the event and the parsed task of a published message; raise `ValueError` or the like if it is invalid."""
    event, id, state, attempts, take, due, raw = message.split(b" ", 6)
    if event not in _EVENTS or state not in _STATES:
        raise ValueError(f"{event!r} is not an event, or {state!r} not a state")
    numbers = int(id), int(attempts), int(take), int(due)
    if min(numbers) < -1 or max(numbers) > MAX_COUNT:
        raise ValueError(f"{numbers} has a number that no task can have")
    (read_done if state == b"-" and numbers[2] else read)(numbers[0], raw)
    return event.decode(), (numbers[0], state, *numbers[1:], raw)


def put_of(task: TaskView) -> str:
    """Identify a task by the moment of its put: after a rollback another task may get its id."""
    return f"c{task._record.created}"
