"""Put, take and change many tasks: few calls, each of a bounded size.

**How a large put works.** `put_many` sends up to `PUTS` tasks and `BYTES` bytes in one call. A larger batch is first
uploaded in parts under a key of its own; then one call puts all of its tasks or none. If a part expired meanwhile,
the upload starts again. If the tube was altered meanwhile, the arguments are made again with the new options.

**How a move of many tasks works.** If both tubes are on the same node, one function (`relay`) moves up to `RELAYED`
tasks: it removes each task that has not changed since it was read, and puts it into the other tube in the same step. An
error of the other tube arrives as `THERE` with the original error behind it.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha1
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from uuid import uuid4

from tubes.drivers.moves import State
from tubes.drivers.options import CANCELLED_KEPT, Seconds, micros
from tubes.errors import DuplicateKey, TubeFull, TubesError
from tubes.redis import task_codec
from tubes.redis.library.replies import bytes_of, list_of, number_of
from tubes.redis.port import ends, puts, reads
from tubes.redis.port.base import RedisPort, identity_of
from tubes.redis.port.ends import letters_of
from tubes.redis.port.msgpack_array import packed
from tubes.redis.transport import script_call
from tubes.redis.transport.script_call import SERVING, Flow, ScriptCall
from tubes.redis.transport.wire import ErrorReply, Reply, Word
from tubes.values.batch import Batch, TasksById, mark_all_finished, tasks_by_id
from tubes.values.lease import Lease
from tubes.values.task import F, TaskView

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tubes.backend.interface import Options, PreparedPut
    from tubes.backend.selecting import Seen
    from tubes.redis.options_version import OptionsVersion

_Row: TypeAlias = "tuple[Word, ...]"
#: Limits of one put, in tasks and in bytes; larger batches are uploaded to the server first.
PUTS: Final = 4_000
BYTES: Final = 4_000_000
#: Milliseconds until uploaded tasks expire.
STAY: Final = 60_000
#: Tasks per call of `take_many`.
TAKES: Final = 500
#: Ids per call of a function that handles all tasks with the same commands, of one that needs some commands for each
#: task, and of one that needs many for each (tubes with lanes).
IDS: Final = 1_000
IDS_ALONE: Final = 250
IDS_WITH_LANES: Final = 50
#: Tasks of a selection that one call changes, in a few milliseconds.
CHANGES: Final = 100
#: Tasks per call of `relay`.
RELAYED: Final = 100


def put_many(port: RedisPort[F], batch: Batch, *, waits: bool = False) -> Flow[list[F] | None]:
    """Put all of these tasks or none; return None if the tube is full. `waits`: in that case the caller waits."""
    if port.closed_error is not None:
        raise port.closed_error()
    if not batch.size:
        return []
    yield from puts.require_keep_done(port, *(options for options, _ in batch.runs))
    shared = port.shared
    version: OptionsVersion | None = None
    new_tasks: list[task_codec.NewTask] = []
    words: list[Word] = []
    is_uploaded = True
    limit = () if batch.max_waiting is None else (batch.max_waiting,)
    one_by_one = batch.has_keys or bool(limit)

    def arguments(current: OptionsVersion) -> tuple[Word, ...] | None:
        """Return the function's arguments; None if the tube was altered after `words` was made."""
        if current is not version:
            return None
        waiting = puts.waiter_words(port, waits=waits)
        return (
            batch.size,
            batch.upload_key,
            len(words),
            current.room,
            *waiting,
            *(() if batch.upload_key else words),
            *limit,
        )

    try:
        while True:
            current = yield from port.version()
            if current is not version:
                batch.check_size(current.options.get("capacity", 0))
                version, new_tasks = current, [current.write(options) for options, _ in batch.runs]
                words = _arguments_of(port, batch, new_tasks, one_by_one=one_by_one)
                if batch.upload_options is not current:
                    _discard_upload(port, batch)
                    if batch.size > PUTS or sum(len(raw) for _, data in batch.runs for raw in data) > BYTES:
                        batch.upload_key, batch.upload_options, is_uploaded = uuid4().hex, current, False
            if not is_uploaded:
                yield from _stage(port, batch.upload_key, words)
                is_uploaded = True
            reply = yield from port.run_script(
                "put_limited" if limit else "put_keyed" if one_by_one else "put_many",
                arguments,
                slot=SERVING if waits else None,
            )
            if type(reply) is not ErrorReply:
                break
            if reply.code == "ALTERED":
                continue
            if reply.code == "LANEFULL":
                raise port.lane_full(reply)
            if reply.code == "FULL":
                raise TubeFull(tube=shared.name, tasks=int(str(reply).split()[1]), max_waiting=batch.max_waiting)
            if reply.code == "DUPLICATE":
                _, id, number = str(reply).split()
                key = next(islice(batch, int(number), None))[1]["key"]
                raise DuplicateKey(key=key, tube=shared.name, id=int(id), item=int(number))
            is_uploaded = False
    except BaseException:
        _discard_upload(port, batch)
        raise
    if reply is None:
        if not waits:
            _discard_upload(port, batch)
        return None
    if one_by_one:
        return (yield from _show_keyed(port, batch, new_tasks, *list_of(reply)))
    created, first = puts.read_put(port, bytes_of(reply))
    tasks: list[F] = []
    for new, (_, data) in zip(new_tasks, batch.runs, strict=True):
        if new.due != "":
            shared.watch(created + int(new.due))
        tasks += task_codec.make_new_tasks(port.kind, port.tube, first + len(tasks), created, new, data)
    return tasks


def _arguments_of(
    port: RedisPort[F], batch: Batch, new_tasks: list[task_codec.NewTask], *, one_by_one: bool
) -> list[Word]:
    """Return the tasks as arguments of `put_keyed` if they are put `one_by_one`, else of `put_many`."""
    runs = zip(new_tasks, batch.runs, strict=True)
    if not one_by_one:
        return task_codec.put_words(((new, data) for new, (_, data) in runs), laned=port.shared.driver.lane is not None)
    words: list[Word] = []
    for new, (options, data) in runs:
        words += (len(data), new.flags, new.due, new.pri, new.lane, new.header)
        words += puts.key_words(options) if "key" in options else ("", "")
        words += data
    return words


def _show_keyed(
    port: RedisPort[F], batch: Batch, new_tasks: list[task_codec.NewTask], head: Reply, *found: Reply
) -> Flow[list[F]]:
    """Return the tasks for a reply of `put_keyed`: each is new, or was found by its key.

    The reply contains only the id of a found task that did not fit into it.
    """
    tasks: list[F] = []
    moment, id = bytes_of(head)[:7], number_of(bytes_of(head)[7:])
    left_out = {int(entry[1:]) for entry in found if type(entry) is bytes and entry[:1] == _ID_PREFIX}
    found_by_id = {task[0]: task for task in (yield from reads.parsed(port, sorted(left_out)))} if left_out else {}
    entries = iter(found)
    for new, (_, data) in zip(new_tasks, batch.runs, strict=True):
        for raw in data:
            entry: Reply | task_codec.Parsed = next(entries)
            if entry == b"":
                tasks.append(puts.show_put(port, moment + str(id).encode(), new, raw))
                id += 1
            else:
                if type(entry) is bytes and entry[:1] == _ID_PREFIX:
                    # A number stands for a task that has ended since, or whose key is remembered.
                    entry = found_by_id.get(int(entry[1:]), int(entry[1:]))
                tasks.append(puts.show_existing(port, entry, new, raw))
    return tasks


def put_waiting(port: RedisPort[F], request: Batch | PreparedPut) -> Flow[F | list[F] | None]:
    """Do the put of a waiter; return None if the tube has no room for it."""
    if isinstance(request, Batch):
        return (yield from put_many(port, request, waits=True))
    return (yield from puts.put_encoded(port, *request, waits=True))


def _stage(port: RedisPort[F], name: str, words: list[Word]) -> Flow[None]:
    """Upload the words of a batch in parts; start again if the server lost an early part."""
    at = number = 0
    while at < len(words):
        if port.closed_error is not None:
            raise port.closed_error()
        part = _next_part(words, at)
        reply = yield from port.run_plain_script("upload_words", name, number, STAY, packed(part))
        at, number = (0, 0) if reply.__class__ is ErrorReply else (at + len(part), number + 1)


def _discard_upload(port: RedisPort[F], batch: Batch) -> None:
    """Remove the uploaded tasks."""
    name, batch.upload_key, batch.upload_options = batch.upload_key, "", None
    if name:
        port.connection.store.later(lambda: _remove(port, name))


def _remove(port: RedisPort[F], name: str) -> Flow[None]:
    with suppress(TubesError):
        yield from port.run_plain_script("upload_words", name, "")


def take_many(port: RedisPort[F], limit: int, span: int | None = None) -> Flow[list[F]]:
    """Take up to `limit` tasks, each for `span` if it is given. Waiters of this process are served first."""
    if span is not None:
        port.require_option("ttr")
    shared = port.shared
    while port.may_serve_waiters and shared.queue.has_take_waiter():
        if not (yield from shared.serving.serve_one()):
            return []
    tasks: list[F] = []
    reply: Reply = None
    try:
        more = True
        while more and len(tasks) < limit:
            reply = None
            wanted = min(limit - len(tasks), TAKES)
            name, words = ("take_many", (wanted,)) if span is None else ("take_for", (wanted, span))
            reply = yield from port.run_script(
                name, words, undo=lambda reply: _undo_takes_later(port, _takes_of_reply(reply))
            )
            found = list_of(reply)
            tasks += show_many(port, found)
            more = bool(found) and (len(list_of(found[5])) == wanted or bool(found[3]))
    except BaseException:
        port.connection.undos.append((_undo_takes, port, tasks, reply))
        port.connection.run_undos()
        raise
    return tasks


def show_many(port: RedisPort[F], reply: list[Reply]) -> list[F]:
    """Return the tasks in a reply of `take_many`."""
    if not reply:
        return []
    ids, attempts, dues = (bytes_of(words).split() for words in reply[:3])
    moments = [int(due) for due in dues]
    soonest = min((due for due in moments if due >= 0), default=None)
    if soonest is not None:
        port.shared.watch(soonest)
    raws = cast("list[bytes]", reply[5])  # `make_taken_tasks` leaves out a value that is not bytes.
    return task_codec.make_taken_tasks(port.kind, port.tube, number_of(reply[4]), ids, attempts, moments, raws)


def _undo_takes(port: RedisPort[F], tasks: list[F], reply: Reply) -> None:
    """Give back `tasks` and the tasks in the last reply, which may overlap."""
    _undo_takes_later(port, {**_takes_of_reply(reply), **{task._record.id: task._take for task in tasks}})


def _undo_takes_later(port: RedisPort[F], taken: dict[int, int]) -> None:
    """Undo takes. `taken`: their numbers by the ids of the tasks."""
    takes = list(reversed(taken.items()))  # Each task returns to the front, so the last one goes first.
    for first in range(0, len(takes), TAKES):
        words = [word for take in takes[first : first + TAKES] for word in take]
        port.connection.store.later(lambda words=words: port.undo("undo_take", *words))  # type: ignore[misc]


def ack_many(port: RedisPort[F], tasks: object) -> dict[int, bool]:
    """Acknowledge held tasks."""
    return port.change(_change_many(port, "ack_many", tasks_by_id(tasks, port.resolve_task)))


def release_many(port: RedisPort[F], tasks: object, delay: Seconds | None) -> dict[int, bool]:
    """Give held tasks back."""
    delay_argument = ends.delay_word(port, delay)
    if delay is not None:
        port.require_option("delay")
    return port.change(_change_many(port, "release_many", tasks_by_id(tasks, port.resolve_task), delay_argument))


def renew_many(port: RedisPort[F], tasks: object, seconds: Seconds) -> dict[int, bool]:
    """Extend the time to run of held tasks to at least `seconds` from now."""
    span = micros("seconds", seconds)
    port.require_option("ttr")
    return port.run(_change_many(port, "renew_many", tasks_by_id(tasks, port.resolve_task), span, finishes=False))


def delete_many(port: RedisPort[F], tasks: object, states: tuple[State, ...] = ()) -> dict[int, bool]:
    """Remove tasks; with `states` only tasks in these states."""
    chosen = tasks_by_id(tasks, port.resolve_task)
    return port.change(_change_many(port, "delete_many", chosen, letters_of(states), by_put=True))


def evict(port: RedisPort[F], tasks: list[F]) -> Flow[list[bool]]:
    """Remove the tasks that have not changed since they were read; return for each whether it was removed."""
    size = IDS_ALONE if port.shared.driver.lane is None else IDS_WITH_LANES
    return (yield from _call_in_parts(port, "evict", (), [*map(_words_of_unchanged, tasks)], size, []))


def _words_of_unchanged(task: TaskView) -> tuple[Word, ...]:
    """Return the four arguments by which a function recognizes a task that has not changed since it was read."""
    digest = sha1(task._record.data, usedforsecurity=False).hexdigest()
    return task._record.id, identity_of(task, by_put=True), task._state.letter, digest


def change_seen(port: RedisPort[F], act: str, seen: list[Seen], arguments: tuple[Any, ...]) -> Flow[list[bool]]:
    """Change the selected tasks that are still as they were seen; return for each whether it was changed."""
    if act == "cancel":
        arguments = (*arguments, CANCELLED_KEPT)
    if act in ("bury", "cancel"):
        arguments = (task_codec.encode_reason(arguments[0]), *arguments[1:])
    words = (act, *("" if word is None else word for word in (*arguments, "", "")[:2]))
    size = CHANGES if port.shared.driver.lane is None else IDS_WITH_LANES
    each = [(id, f"c{created}", state, attempts, take) for id, created, state, attempts, take in seen]
    return (yield from _call_in_parts(port, "act_some", words, each, size, []))


def relay_limit(port: RedisPort[F], target: object) -> int:
    """Return the number of tasks that one call of `relay` moves; 0 if `target` is on another node."""
    if not isinstance(target, RedisPort):
        return 0
    own, other = port.connection.store, target.connection.store
    if own.server.moving or own.server.url != other.server.url or own.manual != other.manual:
        return 0
    is_laned = port.shared.driver.lane is not None or target.shared.driver.lane is not None
    return IDS_WITH_LANES if is_laned else RELAYED


def relay(port: RedisPort[F], target: RedisPort, tasks: list[F], batch: Batch) -> list[bool] | None:
    """Move the leading tasks that have not changed since they were read to another tube of the node.

    `batch` has their data and options for that tube. Return for each whether it was moved; tasks beyond the size
    limit of a call are left out. Return None if the target has no room.
    """
    flow = _relay(port, target, tasks, [*batch])
    if target.connection.store.manual and target.shared.queue.take_waiters:
        flow = target.shared.serving.serve_after(flow)
    return port.change(flow)


def _relay(
    port: RedisPort[F], target: RedisPort, tasks: list[F], items: list[tuple[bytes, Options]]
) -> Flow[list[bool] | None]:
    sources: list[Word] = []
    size = count = 0
    for task in tasks:
        size += len(task._record.data)
        if count and size > BYTES:
            break
        count += 1
        sources += _words_of_unchanged(task)
    yield from puts.require_keep_done(target, *(options for _, options in items))
    while True:
        own_session, target_session = (yield from port.open_session()), (yield from target.open_session())
        version, field = target_session.version, f"a{target_session.token}.{target_session.caller}.m"
        now, number = target.connection.store.now(), next(script_call.numbers)
        put_words: list[Word] = [target_session.number, target_session.token, field, number, now, version.room]
        for raw, options in items[:count]:
            put_words += puts.item_words(target, version.write(options), raw, options)
        relay_script = own_session.version.function("relay")
        words = count, *sources, target.shared.key, *put_words
        call = ScriptCall(relay_script, port.shared.key, words, own_session, port.connection.store.now())
        reply = yield call
        if type(reply) is not ErrorReply:
            return [entry != _UNCHANGED[0] for entry in bytes_of(reply)]
        if reply.code != _TARGET_ERROR:
            yield from port.settle("relay", reply, own_session)
            continue
        refusal = ErrorReply(str(reply).partition(" ")[2])
        if refusal.code == "FULL":
            return None
        if refusal.code == "LANEFULL":
            raise target.lane_full(refusal)
        if refusal.code == "DUPLICATE":
            _, id, at = str(refusal).split()
            key: Any = items[int(at)][1]["key"]
            raise DuplicateKey(key=key, tube=target.shared.name, id=int(id), item=int(at))
        yield from target.settle("put_keyed", refusal, target_session)


def _change_many(
    port: RedisPort[F], name: str, chosen: TasksById, *args: Word, finishes: bool = True, by_put: bool = False
) -> Flow[dict[int, bool]]:
    """Call a function for each of these tasks; return for each whether it was changed.

    `finishes`: the call ends the takes of its callers. `by_put`: identify a task by its put instead of by its take.
    """
    done, sent, changed = dict.fromkeys(chosen, False), list[int](), list[bool]()
    try:
        version = yield from port.version()
        is_batched = name == "ack_many" and "keep_done" not in version.options
        size = IDS if is_batched else IDS_ALONE
        if port.shared.driver.lane is not None:
            size = IDS_ALONE if is_batched else IDS_WITH_LANES
        for lease, ids in _by_session(chosen):
            words = [(id, identity_of(chosen[id][2], by_put=by_put)) for id in ids]
            sent += ids
            yield from _call_in_parts(port, name, args, words, size, changed, lease)
    finally:
        done.update(zip(sent, changed, strict=False))
        if finishes:
            mark_all_finished(chosen, done)
    return done


def _call_in_parts(
    port: RedisPort[F],
    name: str,
    head: _Row,
    tasks: Sequence[_Row],
    size: int,
    done: list[bool],
    lease: Lease | None = None,
) -> Flow[list[bool]]:
    """Call a function for `tasks`, up to `size` per call; append to `done` whether each was changed, and return it.

    A call that has read and written many bytes leaves its last tasks to the next call.
    """
    first = 0
    while first < len(tasks):
        part = tasks[first : first + size]
        reply = yield from port.run_script(name, (*head, *chain.from_iterable(part)), lease=lease)
        # After an error the session has ended, so it holds none of these tasks.
        entries = _UNCHANGED * len(part) if type(reply) is ErrorReply else bytes_of(reply)
        if not 0 < len(entries) <= len(part):
            raise ValueError(f"{entries!r} is not about {len(part)} tasks")
        done += [entry != _UNCHANGED[0] for entry in entries]
        first += len(entries)
    return done


#: A function's reply for a task that it did not change.
_UNCHANGED: Final = b"0"
#: The code of errors of the tube to which tasks are moved.
_TARGET_ERROR: Final = "THERE"
#: The prefix of an id that is returned in place of a task.
_ID_PREFIX: Final = b"?"


def _by_session(chosen: TasksById) -> Iterable[tuple[Lease | None, list[int]]]:
    """Group the ids by session, each with a lease of that session (None: the caller's own session)."""
    leases = {id: view for id, (_, _, view) in chosen.items() if isinstance(view, Lease)}
    if not leases:
        return [(None, [*chosen])]
    found: dict[tuple[int, int] | None, tuple[Lease | None, list[int]]] = {}
    for id in chosen:
        lease = leases.get(id)
        session = None if lease is None else (lease.number, lease.session)
        found.setdefault(session, (lease, []))[1].append(id)
    return found.values()


def _takes_of_reply(reply: Reply) -> dict[int, int]:
    """Return the takes in a reply of `take_many` by task id."""
    if type(reply) is not list or not reply:
        return {}
    return dict.fromkeys(map(int, bytes_of(reply[0]).split()), number_of(reply[4]))


def _next_part(words: list[Word], at: int) -> list[Word]:
    """Return the words of the next part of an upload."""
    size, end = 0, at
    while end < len(words) and end - at < PUTS and size < BYTES:
        word = words[end]
        size += len(word) if isinstance(word, bytes) else 8
        end += 1
    return words[at:end]
