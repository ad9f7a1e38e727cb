"""Change the tube, its options and its lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from tubes.backend.listeners import Listener, check_listener
from tubes.backend.port import check_reason
from tubes.drivers.entry import Loss
from tubes.drivers.options import Seconds, flag, micros, text
from tubes.drivers.tube_options import apply_changes
from tubes.errors import TubeBusy
from tubes.redis.library.replies import list_of, number_of
from tubes.redis.port.base import RedisPort, Request, encode_text
from tubes.redis.transport.script_call import Flow
from tubes.redis.transport.wire import Reply, Word
from tubes.redis.validation import describe_options, encode_lane_options
from tubes.values.lane import check_lane_limits, lane_of
from tubes.values.task import F

if TYPE_CHECKING:
    from tubes.backend.interface import Options, Wrap
    from tubes.redis.options_version import OptionsVersion

#: Done tasks per call of `trim_done`.
_TRIMS_PER_CALL: Final = 500
#: A function's arguments for lane limits that are unset.
_UNSET: Final = (
    ("interval", -1),
    ("max_in_flight", 0),
    ("interval_from", -1),
    ("capacity", -1),
    ("burst", 0),
    ("weight", 0),
)
#: A function's argument for the start of an interval.
_INTERVAL_STARTS: Final = {"take": 0, "ack": 1}


def on_loss(port: RedisPort[F], callback: Callable[[Loss | None], object] | None) -> None:
    """Call `callback` when this session loses a task of the tube."""
    port.connection.store.losses.set(port.shared.key, port, callback)


def is_empty(port: RedisPort[F]) -> Flow[bool]:
    """Return True if no task is ready, delayed or taken."""
    return (yield from count_unfinished(port)) == 0


def count_unfinished(port: RedisPort[F]) -> Flow[int]:
    """Return the number of ready, delayed and taken tasks."""
    total, _, buried, *_ = list_of((yield from port.run_script("statistics")))
    return number_of(total) - number_of(buried)


def release_all(port: RedisPort[F]) -> None:
    """Release all taken tasks."""
    return port.call("release_all", _NOTHING)


def truncate(port: RedisPort[F]) -> None:
    """Remove all tasks."""
    return port.call("truncate", _NOTHING)


def forget_key(port: RedisPort[F], key: object) -> bool:
    """Forget a remembered key; return whether it was remembered."""
    return port.call("forget_key", (_is_one, (encode_text(text("key", key)),), None), changes=False)


def block(port: RedisPort[F], lane: object, seconds: object, extend: object, reason: str | None) -> None:
    """Stop a lane for `seconds`: its tasks cannot be taken."""
    name, span, extends = lane_of(port._driver, lane), micros("seconds", seconds), flag("extend", extend)
    why = encode_text(check_reason(reason) or "")
    return port.call(
        "limit_lane", (_ignore, (encode_text(name), span, "", "", "", "1" if extends else "", "", why), None)
    )


def configure(port: RedisPort[F], lane: object, limits: Options) -> None:
    """Set limits of one lane."""
    return port.change(_set_limits(port, lane_of(port._driver, lane), limits))


def _set_limits(port: RedisPort[F], name: str, limits: Options) -> Flow[None]:
    changes = check_lane_limits(limits, (yield from port.version()).options.get("order"))
    pairs = ((changes.get(limit, ""), unset) for limit, unset in _UNSET)
    limit_words: list[Any] = [
        unset if wanted is None else _INTERVAL_STARTS.get(wanted, wanted) for wanted, unset in pairs
    ]
    *values, capacity, burst, weight = limit_words
    words: tuple[Word, ...] = (encode_text(name), "", *values, "", capacity, "", burst, weight)
    yield from port.run_script("limit_lane", words)


def alter(port: RedisPort[F], changes: Options) -> None:
    """Change the options of the tube."""
    return port.change(set_options(port, port._driver.check_alter(changes)))


def require_option(port: RedisPort[F], option: str) -> Flow[None]:
    """Set an option to 0 if the tube lacks it."""
    if option not in (yield from port.version()).options:
        yield from set_options(port, {}, option)


def set_options(port: RedisPort[F], changes: Options, *required: str) -> Flow[None]:
    """Change the options of the tube; `changes` are checked. `required`: options to set to 0 if the tube lacks them."""

    def words(version: OptionsVersion) -> tuple[Word, ...]:
        wanted = apply_changes({**dict.fromkeys(required, 0), **version.options}, changes)
        counts = "1" if "lane_capacity" in wanted and "lane_capacity" not in version.options else ""
        before, ahead = ((each.get("burst", 1) - 1) * each.get("rate", 0) for each in (version.options, wanted))
        limits = encode_lane_options(wanted), counts, ahead, ahead - before
        return uuid4().hex, describe_options(wanted), wanted.get("capacity", 0), *limits

    yield from port.run_script("alter", words)
    yield from port.connection.enter(port)  # Afterwards `tube.options` is current.
    if changes.get("keep_done_max"):
        while number_of((yield from port.run_script("trim_done", (_TRIMS_PER_CALL,)))):
            pass
    # This call wakes waiters if the new options make tasks or room available.
    yield from port.run_script("tick")


def pause(port: RedisPort[F], seconds: Seconds | None, extend: bool) -> None:
    """Stop takes for a while; None: without an end, 0: end the pause. `extend`: keep a pause that ends later."""
    span, extends = None if seconds is None else micros("seconds", seconds), flag("extend", extend)

    def watch(ends: Reply) -> None:
        if span is not None:
            port.shared.watch(number_of(ends))

    if span == 0 and not extends:
        return port.call("resume", _NOTHING)
    return port.call("pause", (watch, ("" if span is None else span, "1" if extends else ""), None))


def drop(port: RedisPort[F], force: bool) -> Flow[None]:
    """Remove the tube."""
    flag("force", force)
    shared = port.shared
    busy = yield from port.run_script(
        "drop", ("1" if force else "", port.connection.store.process, shared.queue.count())
    )
    if type(busy) is list:
        raise TubeBusy(name=shared.name, taken=busy[0], waiting=busy[1])
    shared.handle_drop()
    yield from port.connection.forget_name(shared.name)


def listen(port: RedisPort[F], callback: object, wrap: Wrap | None = None) -> Flow[Listener | None]:
    """Set or remove this connection's listener; `wrap` turns the user's callback into the API's listener."""
    listener = check_listener(callback, wrap)
    if port.closed_error is not None:
        raise port.closed_error()
    if listener is not None:
        yield from port.shared.subscription.open(port)
    before, port.listener = port.listener, listener
    port.shared.subscription.update_listener(port)
    return before


def _ignore(reply: Reply) -> None:
    """Ignore a reply."""


def _is_one(reply: Reply) -> bool:
    """Return True if the reply is 1."""
    return number_of(reply) == 1


_NOTHING: Final[Request[None]] = (_ignore, (), None)
