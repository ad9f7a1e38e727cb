"""Put one task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tubes.backend.moving import item_of_done
from tubes.drivers.entry import KEPT, NO_EXTRAS, Extras
from tubes.drivers.moves import State
from tubes.drivers.options import MAX_WAITING
from tubes.drivers.timers import NEVER
from tubes.errors import DuplicateKey, TaskNotFound, TubeFull
from tubes.redis import task_codec, validation
from tubes.redis.library.replies import number_of
from tubes.redis.port import tube
from tubes.redis.port.base import RedisPort, encode_text, identity_of
from tubes.redis.transport.script_call import SERVING, Flow
from tubes.redis.transport.wire import ErrorReply, Reply, Word
from tubes.values.options import put_options
from tubes.values.task import F

if TYPE_CHECKING:
    from tubes.backend.interface import Options
    from tubes.redis.options_version import OptionsVersion

#: Options of a put that need another function than `put`, or several.
NEEDS_OTHER_SCRIPT: Final = frozenset({"key", "keep_done", MAX_WAITING})


def put(port: RedisPort[F], data: object, options: Options, *usual: Any) -> F | None:
    """Add a task; return None if the tube is full."""
    options = put_options(options, *usual)
    return port.change(put_encoded(port, *port.prepare(data, options), waits=False))


def put_encoded(
    port: RedisPort[F], raw: bytes, options: Options, *, waits: bool, old: tuple[Word, ...] = ()
) -> Flow[F | None]:
    """Put encoded data with checked options.

    `waits`: the caller waits if the tube is full. `old`: the id and the put of the task that this put replaces.
    """
    yield from require_keep_done(port, options)
    shared = port.shared
    limit: tuple[Any, ...] = (options[MAX_WAITING],) if MAX_WAITING in options else ()
    keyed = "key" in options or bool(old or limit)
    new: Any = None

    def words(version: OptionsVersion) -> tuple[Word, ...]:
        nonlocal new
        new = version.write(options)
        if not keyed:
            return put_words(port, version, new, raw, waits=waits)
        item = item_words(port, new, raw, options)
        return 1, "", len(item), version.room, *waiter_words(port, waits=waits), *item, *old, *limit

    name = "put_again" if old else "put_limited" if limit else "put_keyed" if keyed else "put"
    reply = yield from port.run_script(name, words, slot=SERVING if waits else None)
    if type(reply) is ErrorReply:
        if reply.code == "NOTFOUND":
            raise TaskNotFound(id=old[0], tube=shared.name)
        if reply.code == "LANEFULL":
            raise port.lane_full(reply)
        if reply.code == "FULL":
            raise TubeFull(tube=shared.name, tasks=1, max_waiting=options[MAX_WAITING])
        raise DuplicateKey(key=options["key"], tube=shared.name, id=int(str(reply).split()[1]))
    if type(reply) is list:
        put, found = reply
        if found != b"":
            return show_existing(port, found, new, raw)
        reply = put
    return show_put(port, reply, new, raw) if type(reply) is bytes else None


def put_again(port: RedisPort[F], task: object, new: tuple[object, Options] | None = None) -> Flow[F | None]:
    """Put a done task again, or `new` data with options instead of any task; return None if the tube is full."""
    id, _, view = port.resolve_untaken_task(task)
    if new is not None:
        raw, options = port.prepare(*new)
        return (yield from put_encoded(port, raw, options, waits=False, old=(id, identity_of(view, by_put=True))))
    done = yield from port.run_request("peek", port.task_request(task, looks=True))
    options = port._driver.check_put(item_of_done(done, port._driver).options)
    old = done._record.id, f"c{done._record.created}"
    return (yield from put_encoded(port, done._record.data, options, waits=False, old=old))


def require_keep_done(port: RedisPort[F], *options: Options) -> Flow[None]:
    """Alter the tube to keep done tasks if a put requires it and the tube does not yet."""
    if any(options_of_put.get("keep_done") for options_of_put in options):
        yield from tube.require_option(port, "keep_done")


def waiter_words(port: RedisPort[F], *, waits: bool) -> tuple[Word, Word]:
    """Return a put's arguments about this process: how many callers wait for room, and its name."""
    shared = port.shared
    return (shared.queue.count(), port.connection.store.process) if waits else ("", "")


def put_words(
    port: RedisPort[F], version: OptionsVersion, new: task_codec.NewTask, raw: bytes, *, waits: bool = False
) -> tuple[Word, ...]:
    """Return the arguments of the function `put` for a new task."""
    waiting = waiter_words(port, waits=waits)
    return new.flags, new.header + raw, new.due, new.pri, new.lane, version.room, *waiting


def item_words(port: RedisPort[F], new: task_codec.NewTask, raw: bytes, options: Options) -> tuple[Word, ...]:
    """Return the arguments of `put_keyed` for one task."""
    key = key_words(options) if "key" in options else ("", "")
    return 1, new.flags, new.due, new.pri, new.lane, new.header, *key, raw


def key_words(options: Mapping[str, Any]) -> tuple[bytes, str]:
    return encode_text(options["key"]), options.get("on_duplicate", "keep")


def show_existing(port: RedisPort[F], reply: Reply | task_codec.Parsed, new: task_codec.NewTask, raw: bytes) -> F:
    """Return the task that a put found by its key; it may have ended, with its key remembered."""
    if isinstance(reply, tuple):
        task = port.decode(reply)
    elif isinstance(reply, bytes):
        task = port.decode(task_codec.parse(reply))
    else:
        stored = _stored(port, number_of(reply), port.clock.micros(), new, raw)
        task = task_codec.make_task(port.kind, port.tube, stored, State.DONE, 0, NEVER)
        task._times = (None, None, NEVER, NEVER)
        task._extras = Extras(None if new.extras is None else new.extras.key)
    task._extras = (task._extras or NO_EXTRAS)._replace(key_effect=KEPT)
    return task


def _stored(port: RedisPort[F], id: int, created: int, new: task_codec.NewTask, raw: bytes) -> task_codec.StoredTask:
    stored = task_codec.StoredTask()
    stored.id, stored.created, stored.data, stored.extras = id, created, raw, new.extras
    stored.pri, stored.ttl, stored.ttr, stored.utube = int(new.pri or 0), new.ttl, new.ttr, new.utube
    return stored


def read_put(port: RedisPort[F], reply: bytes) -> tuple[int, int]:
    """Return the moment of a put and the id of its task."""
    try:
        return int.from_bytes(reply[:7], "big"), int(reply[7:])
    except ValueError as error:
        raise validation.unreadable(f"tube {port.shared.name!r}: the reply to a put", error) from error


def show_put(port: RedisPort[F], reply: bytes, new: task_codec.NewTask, raw: bytes) -> F:
    """Return a new task for the user."""
    shared = port.shared
    created, id = read_put(port, reply)
    stored = _stored(port, id, created, new, raw)
    due = NEVER
    if new.due != "":
        due = created + int(new.due)
        shared.watch(due)
    return task_codec.make_task(port.kind, port.tube, stored, State.DELAYED if new.is_delayed else State.READY, 0, due)
