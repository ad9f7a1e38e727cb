"""Check the data that a server stores about tubes, which any client with access may have written.

All data is checked here before it becomes part of a call, a key or a result. Bad data raises `Unreadable`, or is left
out of lists.
"""

from __future__ import annotations

import json
import logging
import re
import struct
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tubes.drivers.backoff import RetryDelays
from tubes.drivers.driver import Driver, is_name, is_tube_name
from tubes.drivers.options import MAX_SECONDS, SECOND, integer, micros
from tubes.drivers.timers import NEVER
from tubes.drivers.tube_options import OF_TUBES
from tubes.errors import DriverNotFound, Facts, InvalidOption, TubesError, Unreadable
from tubes.redis.library.replies import bytes_of
from tubes.redis.library.text import with_source
from tubes.redis.transport.wire import ErrorReply, error_of

if TYPE_CHECKING:
    from tubes.drivers.registry import Registry
    from tubes.values.task import Origin

_log = logging.getLogger("tubes.unreadable")

_DRIVER: Final = frozenset({"name", "options", "order", "lane", "ttl_spares_taken", "rank_lua"})
_VERSION: Final = re.compile(rb"[0-9a-f]{0,32}")
_TOKEN: Final = re.compile(rb"s([0-9]{1,9})\.([0-9]{1,20})\.([0-9a-f]{1,32})")
#: Errors of code that reads bad data.
WRONG: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, struct.error)
#: Errors of a function that failed halfway, except for missing permissions.
_SCRIPT_FAILURE: Final = re.compile(
    r"WRONGTYPE |ERR (?!Unknown Redis command|ACL failure|The user executing the script can't)"
    r".*(user_script|user_function|Error running script)"
)
#: The maximum numbers of names in a warning, and of remembered names.
_LISTED, _REMEMBERED = 5, 10_000


@contextmanager
def reading(what: str) -> Generator[None]:
    """Raise `Unreadable` about `what` if the block cannot read its data."""
    try:
        yield
    except (*WRONG, InvalidOption) as error:
        raise unreadable(what, error) from error


def unreadable(what: str, error: Exception) -> Unreadable:
    """Return the error for unreadable data, made from the error of its reader."""
    return Unreadable(what=what, why=error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}")


def refusal(what: str, reply: ErrorReply, url: str) -> TubesError:
    """Return the exception for an error reply: a function that reads bad data fails halfway."""
    return Unreadable(what=what, why=with_source(reply)) if _SCRIPT_FAILURE.match(str(reply)) else error_of(reply, url)


def _fields(stored: object) -> Facts:
    if not stored:
        raise ValueError("it is missing")
    fields: Any = json.loads(bytes_of(stored))
    if not isinstance(fields, dict):
        raise TypeError(f"{fields!r} is not a JSON object")
    return fields  # pyright: ignore[reportUnknownVariableType]


def driver(tube: str, stored: object, registry: Registry) -> Driver:
    """Return the registered driver if it equals the tube's description, else a driver made from the description."""
    with reading(f"tube {tube!r}: its driver"):
        about = _fields(stored)
        if about.keys() != _DRIVER:
            raise ValueError(f"its fields are {', '.join(map(repr, about))}")
        try:
            known = registry.find(about["name"])
            if describe(known) == stored:
                return known
        except DriverNotFound:
            known = None
        if about["rank_lua"] is not None:
            problem = "is not registered" if known is None else "differs from the registered one"
            raise DriverNotFound(name=about["name"], problem=problem)
        return Driver(
            about["name"],
            options=about["options"],
            order=about["order"],
            lane=about["lane"],
            ttl_spares_taken=about["ttl_spares_taken"],
        )


def driver_name(tube: str, stored: object) -> str:
    """Return the name of a tube's driver, which may be unknown here."""
    with reading(f"tube {tube!r}: its driver"):
        name: object = _fields(stored)["name"]
        if not isinstance(name, str) or not is_name(name):
            raise ValueError(f"{name!r} is not a name")
        return name


def options(tube: str, stored: object, driver: Driver) -> Facts:
    """Return the options of a tube, as `Driver.check_tube` returns them."""
    found = stored_options(tube, stored)
    with reading(f"tube {tube!r}: its options"):
        for option in found:
            if option != "idle" and driver.check_of(option) is None:
                raise ValueError(f"driver {driver.name!r} has no option {option!r}")
    return found


def stored_options(tube: str, stored: object) -> Facts:
    """Return the options of a tube whose driver may be unknown here."""
    with reading(f"tube {tube!r}: its options"):
        found = _fields(stored)
        for option, value in found.items():
            check = OF_TUBES.get(option)
            if option == "idle":
                integer(option, value, MAX_SECONDS * 1000, least=1)
            elif option == "backoff":
                found[option] = RetryDelays.from_fields(value)
            elif option == "buried_ttl":
                integer(option, value, NEVER)
            elif check is micros or option == "rate":
                integer(option, value, MAX_SECONDS * SECOND)
            elif check is None:
                raise ValueError(f"{option!r} is not a tube option")
            else:
                check(option, value)
        return found


def token(tube: str, stored: bytes) -> str:
    """Return a valid session token, which is a field of the meta hash."""
    with reading(f"tube {tube!r}: one of its sessions"):
        if not _TOKEN.fullmatch(stored):
            raise ValueError(f"{stored!r} is not a session")
        found: str = stored.decode()
        return found


def version(tube: str, stored: object) -> str:
    """Return the name of the version of a tube's options; '' if the tube was never altered."""
    with reading(f"tube {tube!r}: the version of its options"):
        if not _VERSION.fullmatch(found := bytes_of(stored)):
            raise ValueError(f"{stored!r} is not a version")
        return found.decode()


def names(raws: Iterable[bytes]) -> tuple[list[str], list[bytes]]:
    """Split stored names into valid names of tubes or their partitions, sorted, and others."""
    known: list[str] = []
    invalid: list[bytes] = []
    for raw in raws:
        name = raw.decode(errors="replace")
        if is_tube_name(name.partition("#")[0]):
            known.append(name)
        else:
            invalid.append(raw)
    return sorted(known), invalid


def describe(driver: Driver) -> bytes:
    """Return the stored description of a driver."""
    about = {
        "name": driver.name,
        "options": sorted(driver.options),
        "order": driver.order,
        "lane": driver.lane,
        "ttl_spares_taken": driver.ttl_spares_taken,
        "rank_lua": driver.rank_lua,
    }
    return json.dumps(about, sort_keys=True, separators=(",", ":")).encode()


def describe_options(options: Mapping[str, object]) -> bytes:
    """Return the stored form of a tube's options."""
    return json.dumps(dict(options), sort_keys=True, separators=(",", ":"), default=_to_fields).encode()


def encode_lane_options(options: Mapping[str, Any]) -> str:
    """Return a tube's options for lanes (order and limits) as rate_limits.lua reads them; '' for the defaults."""
    is_round_robin, most = options.get("order") == "round_robin", options.get("max_in_flight", 1)
    interval, jitter = options.get("interval", 0), options.get("jitter", 0)
    from_end = options.get("interval_from") == "ack"
    if not (is_round_robin or most > 1 or interval > 0 or jitter > 0 or from_end):
        return ""
    burst = f" {options['lane_burst']:.0f}" if "lane_burst" in options else ""
    return f"{interval:.0f} {jitter:.17g} {most:.0f} {is_round_robin:d} {from_end:d}{burst}"


def _to_fields(value: object) -> object:
    assert isinstance(value, RetryDelays)
    return value.fields


def leave_out_task(tube: Origin, id: int, error: Exception) -> None:
    """Log an unreadable task that is left out of a list."""
    _log.warning("skipped: %s", unreadable(f"task {id} of tube {tube.name!r}", error))


class InvalidNames:
    """Names that are left out of lists; each is logged once."""

    def __init__(self) -> None:
        self._known: Final[set[int]] = set()
        self._lock: Final = threading.Lock()

    def leave_out(self, place: str, reasons: Mapping[str, object] | Mapping[bytes, object]) -> None:
        """Log names that are left out, with the reasons."""
        with self._lock:
            new = [(name, reason) for name, reason in reasons.items() if hash(name) not in self._known]
            if len(self._known) + len(new) > _REMEMBERED:
                self._known.clear()
            self._known.update(hash(name) for name, _ in new[:_REMEMBERED])
        if new:
            words = ", ".join(f"{_shorten(repr(name))} ({_shorten(str(reason))})" for name, reason in new[:_LISTED])
            more = f" and {len(new) - _LISTED} more" if len(new) > _LISTED else ""
            _log.warning("left out of %s: %s%s", place, words, more)


def _shorten(words: str) -> str:
    return words if len(words) <= 200 else words[:200] + "..."
