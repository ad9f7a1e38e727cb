"""An overview of all tubes of a server, read by a function that opens no session."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from tubes.drivers.options import SECOND
from tubes.drivers.tube_options import as_arguments
from tubes.errors import DriverNotFound, Facts, Unreadable
from tubes.redis import validation
from tubes.redis.library.replies import bytes_of, list_of, number_of
from tubes.redis.options_version import OptionsVersion, TubeSession
from tubes.redis.port.reads import statistics_of
from tubes.redis.transport.script_call import Flow, ScriptCall
from tubes.redis.transport.wire import ErrorReply, Reply
from tubes.values.overview import Overview

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tubes.redis.sessions.store import RedisStore
T = TypeVar("T")
#: Tubes per call of `overview`.
_TUBES_PER_CALL: Final = 200
#: Names per call of `tube_drivers`.
_NAMES_PER_CALL: Final = 1000
#: The maximum number of calls of a function that has to do other work first.
_MAX_CALLS: Final = 100
#: Why a tube of a dead node is left out.
_NO_REPLY: Final = "its node does not reply"


def overview(store: RedisStore, names: list[str], *, ages: bool) -> Flow[tuple[dict[str, Overview], dict[str, object]]]:
    """Return the existing tubes among `names`, and the unreadable ones with their errors.

    `ages`: also read the age of the oldest ready task, which costs one more call per tube with a ready task.
    """
    found: dict[str, Overview] = {}
    unreadable: dict[str, object] = {}
    for batch in batches_of(names, 1 if store.server.moving else _TUBES_PER_CALL):
        keys = [store.key(name) for name in batch]
        reply = yield from store.ask_node("overview", keys[0], store.now(), *keys)
        if reply is None:
            unreadable[batch[0]] = _NO_REPLY
            continue
        now, *rows = list_of(reply)
        for name, row in zip(batch, rows, strict=True):
            if row is None:
                continue
            try:
                found[name] = yield from _seen(store, name, number_of(now), list_of(row), ages=ages)
            except Unreadable as error:
                unreadable[name] = error
    return found, unreadable


def _seen(store: RedisStore, name: str, now: int, row: list[Reply], *, ages: bool) -> Flow[Overview]:
    if len(row) == 1:  # The function's reason for not reading the tube.
        raise Unreadable(what=f"tube {name!r}", why=bytes_of(row[0]).decode(errors="replace"))
    driver, options, counted, *numbers, due = row
    kind = validation.driver_name(name, driver)
    arguments: Facts | None = None
    with suppress(Unreadable):  # An overview of counts does not need the options.
        arguments = as_arguments(validation.stored_options(name, options))
    with validation.reading(f"tube {name!r}"):
        statistics = statistics_of(counted, store.count_waiting(name, list_of(counted)[4]), now)
    sessions, lanes, throttled = map(number_of, numbers)
    lag = 0.0 if due is None else max(0.0, (now - float(bytes_of(due))) / SECOND)
    age: float | None = None
    if ages and (statistics.tasks["ready"] or lag):
        age = yield from _oldest_age(store, name, driver, options)
    return Overview(kind, statistics, now / SECOND, sessions, arguments, lanes, throttled, lag, age)


def existing_names(store: RedisStore, names: list[str]) -> Flow[tuple[list[str], dict[str, object]]]:
    """Return the names of existing tubes, and the names that hold something else with the errors."""
    found: list[str] = []
    unreadable: dict[str, object] = {}
    for batch in batches_of(names, 1 if store.server.moving else _NAMES_PER_CALL):
        keys = [store.key(name) for name in batch]
        reply = yield from store.ask_node("tube_drivers", keys[0], *keys)
        if reply is None:
            unreadable[batch[0]] = _NO_REPLY
            continue
        for name, driver in zip(batch, list_of(reply), strict=True):
            try:
                if driver is not None and validation.driver_name(name, driver):
                    found.append(name)
            except Unreadable as error:
                unreadable[name] = error
    return found, unreadable


def batches_of(words: list[T], size: int = 1000) -> Iterable[list[T]]:
    """Return these words in lists of at most this size."""
    return (words[start : start + size] for start in range(0, len(words), size))


def _oldest_age(store: RedisStore, name: str, driver: object, options: object) -> Flow[float | None]:
    """Return the age of a tube's oldest ready task; None without one, or if this process lacks the tube's driver."""
    try:
        tube_driver = store.driver_of(name, driver)
        # A function that changes nothing for a session accepts any field of the meta hash as its token: `born` always
        # exists.
        checked = validation.options(name, options, tube_driver)
        placeholder = TubeSession(0, "born", "0", OptionsVersion(tube_driver, checked, store.server_micros))
    except DriverNotFound:
        return None
    start: int | str = ""
    for _ in range(_MAX_CALLS):
        age_script = placeholder.version.function("age")
        reply: Reply = yield ScriptCall(age_script, store.key(name), (start,), placeholder, store.now())
        if isinstance(reply, ErrorReply):
            if reply.code in ("TUBEGONE", "SESSIONGONE"):
                return None
            raise validation.refusal(f"tube {name!r}", reply, store.url)
        if not isinstance(reply, int):
            return None if reply is None else number_of(reply) / SECOND
        start = reply
    return None
