"""Change one task: end or renew its take, remove it, cancel it or update it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tubes.backend.port import check_reason
from tubes.drivers.failures import NO_TRACE, Trace
from tubes.drivers.moves import State
from tubes.drivers.options import CANCELLED_KEPT, KEEP, Seconds, micros
from tubes.errors import TaskCancelled, TaskNotFound
from tubes.redis import task_codec
from tubes.redis.port import reads
from tubes.redis.port.base import RedisPort, Request, encode_text, lane_word
from tubes.redis.transport.script_call import Flow
from tubes.redis.transport.wire import ErrorReply, Reply, Word
from tubes.values.codecs import encode
from tubes.values.task import F, TaskView, reserved_names

if TYPE_CHECKING:
    from tubes.backend.interface import Options

#: Fields that an update may change, apart from the data.
_UPDATE_FIELDS: Final = ("pri", "delay", "ttl")


def ack(port: RedisPort[F], task: object) -> F:
    """Acknowledge a held task."""
    return port.call("ack", ack_request(port, task))


def ack_with(port: RedisPort[F], task: object, result: object) -> F:
    """Acknowledge a held task, with a result."""
    assert port.codec is not None  # Data on a server is always encoded.
    return port.call("ack_with", port.task_request(task, encode(port.codec, result), ends=True))


def ack_request(port: RedisPort[F], task: object) -> Request[F]:
    """Return a request to ack a task; with a known lane the server need not read the task."""
    _, _, view = port.resolve_task(task)
    lane = (lane_word(view),) if port._driver.lane is not None and isinstance(view, TaskView) else ()
    return port.task_request(task, *lane, ends=True)


def release(
    port: RedisPort[F],
    task: object,
    delay: Seconds | None,
    reason: str | None = None,
    pri: int | None = None,
    data: object = KEEP,
    trace: Trace = NO_TRACE,
) -> F:
    """Give a held task back; without `delay` it waits for the tube's backoff."""
    reason_word, delay_argument = task_codec.encode_reason(check_reason(reason)), delay_word(port, delay)
    changes: tuple[Word, ...] = () if pri is None else (port.check_pri(pri),)
    raw = None
    if data is not KEEP:
        assert port.codec is not None  # Data on a server is always encoded.
        raw = encode(port.codec, data)
        changes = (*(changes or ("",)), raw)
    if delay is not None and "delay" not in port._driver.options:
        return port.run(_refuse(port, task, "delay"))
    return port.call(
        "release",
        port.task_request(task, delay_argument, reason_word, _trace_word(trace), *changes, ends=True, data=raw),
    )


def _trace_word(trace: Trace) -> Word:
    """Return the worker, a line break and the traceback as an argument of functions."""
    return encode_text("\n".join((trace.worker.replace("\n", " "), trace.traceback))) if any(trace) else ""


def release_unfailed(port: RedisPort[F], task: object) -> F:
    """Give a held task back at once, without a failure."""
    return port.call("release", port.task_request(task, "", ends=True))


def decline(port: RedisPort[F], task: object, delay: Seconds) -> F:
    """Give a held task back for another caller; the attempt does not count. Without a delay it is ready at once."""
    return port.call("decline", port.task_request(task, micros("delay", delay), ends=True))


def delay_word(port: RedisPort[F], delay: Seconds | None) -> int | str:
    """Return the delay of a released task as an argument of functions."""
    return "backoff" if delay is None else micros("delay", delay)


def touch(port: RedisPort[F], task: object, seconds: Seconds) -> F:
    """Extend the time to run of a held task."""
    span = micros("seconds", seconds)
    if "ttr" not in port._driver.options:
        return port.run(_refuse(port, task, "ttr"))
    return port.call("touch", port.task_request(task, span), changes=False)


def set_ttr(port: RedisPort[F], task: object, span: int | None) -> F:
    """Set the time to run of a held task, from now; None: no limit."""
    if "ttr" not in port._driver.options:
        return port.run(_refuse(port, task, "ttr"))
    return port.call("set_ttr", port.task_request(task, "" if span is None else span), changes=False)


def checkpoint(port: RedisPort[F], task: object, changes: Mapping[str, str]) -> F:
    """Store facts in the context of a held task, and renew it."""
    facts = [encode_text(word) for pair in reserved_names(changes).items() for word in pair]
    put = task_codec.put_of(task) if isinstance(task, TaskView) else ""  # pyright: ignore[reportUnknownArgumentType]
    show_task, words, lease = port.task_request(task, put, *facts)  # pyright: ignore[reportUnknownArgumentType]

    def decode(reply: Reply) -> F:
        found = show_task(reply)
        if found._state is State.DONE:
            raise TaskCancelled(id=found._record.id, tube=port.shared.name, reason=found.reason)
        return found

    if lease is not None:
        return port.run(_checkpoint_by_lease(port, (decode, words, lease)))
    return port.call("checkpoint", (decode, words, lease), changes=False)


def _checkpoint_by_lease(port: RedisPort[F], request: Request[F]) -> Flow[F]:
    decode, words, lease = request
    reply = yield from port.run_script("checkpoint", words, lease=lease)
    if type(reply) is ErrorReply and reply.code == "SESSIONGONE":
        # The function does not run in a session that has ended: read the task in another one.
        seen = yield from port.run_script("peek", (words[0], "", ""))
        if type(seen) is bytes and port.decode(task_codec.parse(seen)).cancelled:
            reply = seen
    return decode(reply)


def _refuse(port: RedisPort[F], task: object, option: str) -> Flow[F]:
    """Raise the error for an option that the driver lacks; an error about the task comes first."""
    yield from port.run_request("touch", port.task_request(task, 0))
    raise port._driver.make_option_error(option)


def bury(port: RedisPort[F], task: object, reason: str | None, pri: int | None = None, trace: Trace = NO_TRACE) -> F:
    """Bury a task."""
    reason_word = task_codec.encode_reason(check_reason(reason))
    pri_word = () if pri is None else (port.check_pri(pri),)
    return port.call("bury", port.task_request(task, reason_word, _trace_word(trace), *pri_word, looks=True, ends=True))


def delete(port: RedisPort[F], task: object, states: tuple[State, ...] = ()) -> F:
    """Remove a task; with `states` only in these states."""
    show_task, words, lease = port.task_request(task, letters_of(states), looks=True, ends=True)

    def decode(reply: Reply) -> F:
        if type(reply) is ErrorReply and reply.code == "STATE":
            raise TaskNotFound(id=words[0], tube=port.shared.name, states=" or ".join(states))
        return show_task(reply)

    return port.call("delete", (decode, words, lease))


def cancel(port: RedisPort[F], task: object, reason: str | None) -> F:
    """End a task as cancelled."""
    reason_word = task_codec.encode_reason(check_reason(reason))
    return port.call("cancel", port.task_request(task, reason_word, CANCELLED_KEPT, looks=True, ends=True))


def update(port: RedisPort[F], task: object, changes: Options) -> F:
    """Change a task."""
    checked = port.prepare_update(changes)
    if not checked:
        return reads.peek(port, task)
    data = ("1", checked["data"]) if "data" in checked else ("", "")
    others = [checked.get(name, "") for name in _UPDATE_FIELDS]
    show_task, words, lease = port.task_request(task, *data, *others, looks=True)

    def decode(reply: Reply) -> F:
        if type(reply) is ErrorReply and reply.code == "STATE":
            raise port._driver.make_update_error(checked, State(str(reply).split()[1]))
        return show_task(reply)

    return port.call("update", (decode, words, lease))


def kick_task(port: RedisPort[F], task: object, attempts: int | None, ttl: Seconds | None) -> F:
    """Make one buried task ready."""
    limits = ["" if limit is None else limit for limit in port._driver.check_kick(attempts, ttl)]
    return port.call("kick_task", port.task_request(task, *limits, looks=True))


def letters_of(states: tuple[State, ...]) -> str:
    """Return the letters of states as an argument of functions."""
    return "".join([state.letter for state in states])
