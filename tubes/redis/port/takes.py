"""Take one task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tubes.backend.port import mark_finished
from tubes.errors import TaskNotTaken
from tubes.redis import task_codec
from tubes.redis.library.replies import bytes_of, number_of
from tubes.redis.port import ends
from tubes.redis.port.base import RedisPort
from tubes.redis.transport.script_call import Flow
from tubes.values.task import F, log_lost_take

#: The first byte of a reply of `next` if the acked task was not held.
_NOT_HELD: Final = b"0"[0]


def take(port: RedisPort[F]) -> Flow[F | None]:
    """Take the first available task; return None if no task is available. Waiters of this process come first."""
    shared = port.shared
    while port.may_serve_waiters and shared.queue.has_unserved():
        if not (yield from shared.serving.serve_one()):
            return None
    reply = yield from port.run_script("take", undo=port.undo_take)
    return port.decode(task_codec.parse(reply)) if type(reply) is bytes else None


def take_standing(
    port: RedisPort[F], callers: int, was_woken: bool, span: int | None, note: Callable[[int | None], None]
) -> Flow[F | None]:
    """Take the first available task of a partition; if none is left, this process stands in its line.

    `callers`: the waiting callers that this take registers; 0: none. `was_woken`: the partition has woken this process.
    `note`: gets the time at which the next task can be taken (None: now; 0: nothing is due).
    """
    words = callers, port.connection.store.process, "1" if was_woken else "", "" if span is None else span
    reply = yield from port.run_script("take", words, undo=port.undo_waiting_take)
    if type(reply) is not bytes:
        note(number_of(reply))
        return None
    soonest = int.from_bytes(reply[: task_codec.OUTLOOK])
    note(None if soonest == 1 else soonest)
    return port.decode(task_codec.parse(reply, task_codec.OUTLOOK))


def take_task(port: RedisPort[F], task: object, span: int | None) -> Flow[F | None]:
    """Take this task, even before earlier ones; return None if it may not be taken now."""
    port.resolve_untaken_task(task)
    if span is not None:
        port.require_option("ttr")
    decode, words, _ = port.task_request(task, "" if span is None else span, looks=True)
    reply = yield from port.run_script("take_task", words, undo=lambda reply: port.undo_take(reply or None))
    return decode(reply) if reply else None


def take_next(port: RedisPort[F], task: F) -> Flow[F | None]:
    """Acknowledge a held task and take the next; return None if no task is available. A lost take is logged."""
    shared = port.shared
    if port.may_serve_waiters and shared.queue.has_take_waiter():
        try:
            yield from port.run_request("ack", ends.ack_request(port, task))
        except TaskNotTaken as lost:
            log_lost_take(lost)
        return (yield from take(port))
    _, words, _ = ends.ack_request(port, task)
    reply = yield from port.run_script("next", words, undo=port.undo_next)
    return show_next(port, task, bytes_of(reply))


def show_next(port: RedisPort[F], task: F, reply: bytes) -> F | None:
    """Return the task in a reply of `next`."""
    mark_finished(task)
    if reply[0] == _NOT_HELD:
        log_lost_take(TaskNotTaken(id=task.id, tube=port.shared.name))
    return port.decode(task_codec.parse(reply, 1)) if len(reply) > 1 else None
