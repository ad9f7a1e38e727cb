"""The options of the data source, with their checks. Spark passes strings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import tubes
from tubes.backend.url import redact_url
from tubes.drivers.options import MAX_COUNT, OF_TASKS
from tubes.drivers.registry import Registry
from tubes.errors import InvalidOption, TubeNotFound
from tubes.spark.address import OPTIONS as OF_ADDRESS
from tubes.spark.address import Address
from tubes.spark.workers import shared_queue
from tubes.values.codecs import find as find_codec

if TYPE_CHECKING:
    from tubes.drivers.driver import Driver
    from tubes.sync import Queue, Tube
    from tubes.values.codecs import Codec

#: The default of `lease`: seconds for which a stream keeps its tasks after its reader is gone.
LEASE: Final = 60.0
#: A stream that nobody continues is forgotten after a week: its tasks must be free long before.
_LONGEST: Final = 3 * 24 * 3600
#: Options that Spark itself adds to a query.
_SPARKS: Final = frozenset({"path", "checkpointlocation", "queryname"})
_NONE: Final[Mapping[str, str]] = {}
#: By the name that users write: the field, or the option of put, and how it is checked.
_Known = dict[str, tuple[str, Callable[[str, str], object]]]
_STATES: Final = {"ready": "r", "taken": "t", "buried": "!", "delayed": "~", "done": "-"}
#: The states of tasks that are not done.
_LIVING: Final = frozenset(_STATES.values()) - {"-"}


@dataclass(frozen=True)
class Settings:
    """The options of one read or write, checked. Seconds are seconds."""

    address: Address
    tube: str
    codec: str = "json"
    data_format: str = "value"
    #: What becomes of rows that cannot be put, or read.
    bad_rows: str = "fail"
    #: Of reads.
    states: frozenset[str] = _LIVING
    ids: range = range(1 << 48)
    lane: str | None = None
    num_partitions: int | None = None
    #: Of done tasks: those that ended at this moment or later, in µs since 1970; None: all, but in a stream none.
    starting_time: int | None = None
    #: Of streams.
    max_tasks: int | None = None
    max_bytes: int | None = None
    min_tasks: int | None = None
    max_delay: float = 900.0
    lease: float = LEASE
    consumer: str | None = None
    #: Whether a lease that was lost has used up an attempt.
    count_retakes: bool = False
    #: Of writes.
    delivery: str | None = None
    write_id: str | None = None
    batch_size: int = 1000
    timeout: float = 60.0
    driver: str | None = None
    #: Options of put for all tasks, unless a column has them.
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def is_by_id(self) -> bool:
        """Whether a read need not look at a task to know that it wants it."""
        return self.states >= _LIVING and self.lane is None

    def connect(self, *, lease: float = 30.0) -> Queue:
        """A connection with this lease."""
        return tubes.connect(self.address.locate(), codec=self.codec, session_ttl=lease)

    def share(self) -> AbstractContextManager[Queue]:
        """A connection of this process, which stays for whoever needs one next."""
        return shared_queue(self.address.locate(), self.codec)

    def find(self, queue: Queue) -> Tube:
        """The tube; a write with `driver` creates it if it does not exist."""
        if self.driver is not None and self.tube not in queue.tubes():
            return queue.create_tube(self.tube, self.driver, if_not_exists=True)
        return self._existing(queue)

    def find_driver(self, queue: Queue) -> Driver:
        """The driver of the tube, or of the one that `find` would create."""
        if self.driver is not None and self.tube not in queue.tubes():
            return Registry().find(self.driver)
        driver: Driver = self._existing(queue).driver
        if self.driver not in (None, driver.name):
            rule = f"is not the driver of the existing tube {self.tube!r}: {driver.name!r}"
            raise InvalidOption(option="driver", value=self.driver, rule=rule)
        return driver

    def _existing(self, queue: Queue) -> Tube:
        try:
            return queue.tube(self.tube)
        except TubeNotFound as error:
            error.add_note('From Spark: a write with .option("driver", "fifo"), or with another driver, creates it.')
            raise

    def find_codec(self) -> Codec:
        """The codec of the data."""
        return find_codec(self.codec)


def read_settings(options: Mapping[str, str], kept: Mapping[str, str] = _NONE) -> Settings:
    """Check the options of a batch read; `kept`: those of its table, of which it uses what is for reads."""
    settings = _settings(options, kept, _COMMON | _READ)
    since = {name.lower(): value for name, value in options.items()}.get("startingtime")
    if since is not None and "-" not in settings.states:
        raise InvalidOption(
            option="startingTime", value=since, rule="is about done tasks in batch reads: add state done"
        )
    return settings


def stream_settings(options: Mapping[str, str], kept: Mapping[str, str] = _NONE) -> Settings:
    """Check the options of a stream's source; `kept`: those of its table."""
    return _settings(options, kept, _COMMON | _STREAM)


def write_settings(options: Mapping[str, str], kept: Mapping[str, str] = _NONE, *, streams: bool) -> Settings:
    """Check the options of a write; `kept`: those of its table; `streams`: those of a stream's sink."""
    known = _COMMON | _WRITE
    return _settings(options, kept, known if streams else known | _BATCH_WRITE)


def check_values(options: Mapping[str, str]) -> Settings:
    """Check the value of each option, whether it is for reads or for writes."""
    anybodys: _Known = {"badRows": ("bad_rows", _one_of("fail", "bury", "null"))}
    return _settings(options, _NONE, _COMMON | _READ | _STREAM | _WRITE | _BATCH_WRITE | anybodys)


def _settings(options: Mapping[str, str], kept: Mapping[str, str], known: _Known) -> Settings:
    by_key = {name.lower(): (name, field, check) for name, (field, check) in known.items()}
    found: dict[str, Any] = {}
    address: dict[str, Any] = {}
    defaults: dict[str, object] = {}
    own = {key: value for key, value in kept.items() if key in by_key}
    for key, value in {**own, **options}.items():
        if key.lower() in _SPARKS:
            continue
        if key.lower() not in by_key:
            raise _unknown(key, {key: name for key, (name, _, _) in by_key.items()})
        name, about, check = by_key[key.lower()]
        (defaults if about in _OF_PUT else address if about in OF_ADDRESS else found)[about] = check(name, value)
    for needed in ("url", "tube"):
        if needed not in {**address, **found}:
            rule = f'is required: .option("{needed}", …)'
            if not options:
                rule += (
                    "; Spark loses the options of a table that has columns of its own, or comes from AS SELECT or "
                    "saveAsTable: use CREATE TABLE … USING tubes OPTIONS (…), and INSERT INTO"
                )
            raise InvalidOption(option=needed, value=None, rule=rule)
    if defaults:
        found["defaults"] = defaults
    if "write_id" in found and found.get("delivery") == "at-least-once":
        rule = "is for writes with delivery exactly-once: leave it out, or delivery at-least-once"
        raise InvalidOption(option="writeId", value=found["write_id"], rule=rule)
    if found.get("codec", "json") != "json" and found.get("data_format") == "json":
        raise InvalidOption(option="dataFormat", value="json", rule="needs codec json")
    return Settings(address=Address(**address), **found)


def _unknown(key: str, known: Mapping[str, str]) -> InvalidOption:
    """The error for an option that is none here, without its value: that may be a URL with a password."""
    names = {name.lower(): name for name in _COMMON | _READ | _STREAM | _WRITE | _BATCH_WRITE}
    rule = f"known options are {', '.join(sorted(known.values()))}"
    near = get_close_matches(key.lower(), known, 1)
    if key.lower() in names:
        rule = f"is an option of other reads or writes: {rule}"
    elif near:
        rule = f"is unknown here: did you mean {known[near[0]]}? {rule}"
    else:
        rule = f"is unknown here: {rule}"
    return InvalidOption(option="option", value=names.get(key.lower(), key), rule=rule)


# -- what a value may be -----------------------------------------------------------------------------------------------


def _text(name: str, value: str) -> str:
    if not value:
        raise InvalidOption(option=name, value=value, rule="must not be empty")
    return value


def _any(_: str, value: str) -> str:
    return value


def _url(name: str, value: str) -> str:
    if value.lower().startswith("memory:"):
        rule = "is in one process, and Spark's executors are other processes: use redis://… or another URL of a server"
        raise InvalidOption(option=name, value=redact_url(value), rule=rule)
    return _text(name, value)


def _one_of(*words: str) -> Callable[[str, str], str]:
    def check(name: str, value: str) -> str:
        if value not in words:
            raise InvalidOption(option=name, value=value, rule=f"must be one of {', '.join(words)}")
        return value

    return check


def _yes(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidOption(option=name, value=value, rule="must be true or false")
    return value.lower() == "true"


def _states_of(name: str, value: str) -> frozenset[str]:
    found: set[str] = set()
    for word in value.split(","):
        state = _STATES.get(word.strip().lower(), word.strip())
        if state not in _STATES.values():
            rule = f"must be one of {', '.join(_STATES)}, or several of them, separated by commas"
            raise InvalidOption(option=name, value=value, rule=rule)
        found.add(state)
    return frozenset(found)


def _ids_of(name: str, value: str) -> range:
    found = re.fullmatch(r"([0-9]{1,18})(-([0-9]{1,18})?)?", value.strip())
    if found is None or (found[3] and int(found[3]) < int(found[1])):
        raise InvalidOption(option=name, value=value, rule="must be an id, as 7, or a range of them, as 0-99 or 100-")
    first = int(found[1])
    if found[2] == "-":
        return range(first, Settings.ids.stop)
    return range(first, int(found[3] or first) + 1)


def _moment(name: str, value: str) -> int:
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        rule = "must be a date or a time in ISO 8601, as 2026-11-23 or 2026-11-23T12:30+01:00; without a zone it is UTC"
        raise InvalidOption(option=name, value=value, rule=rule) from None
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return max(since // timedelta(microseconds=1), 0)


def _whole(name: str, value: str) -> int:
    if re.fullmatch(r"\s*-?[0-9]{1,20}\s*", value) is None:
        raise InvalidOption(option=name, value=value, rule="must be a whole number")
    return int(value)


def _count(name: str, value: str) -> int:
    number = _whole(name, value)
    if not 1 <= number <= MAX_COUNT:
        raise InvalidOption(option=name, value=value, rule=f"must be from 1 to {MAX_COUNT}")
    return number


def _sized(name: str, value: str, units: Mapping[str, float], rule: str) -> float:
    found = re.fullmatch(r"\s*((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", value.lower())
    if found is None or found[2] not in units:
        raise InvalidOption(option=name, value=value, rule=rule)
    return float(found[1]) * units[found[2]]


def _seconds(name: str, value: str) -> float:
    rule = "must be a time: seconds, or a number with a unit, as 500ms, 30s, 15m, 1h, 3d"
    seconds = _sized(name, value, {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 24 * 3600}, rule)
    OF_TASKS["ttl"](name, seconds)
    return seconds


def _span(name: str, value: str) -> float:
    seconds = _seconds(name, value)
    if not seconds:
        raise InvalidOption(option=name, value=value, rule="must be a time above 0")
    return seconds


def _lease(name: str, value: str) -> float:
    seconds = _seconds(name, value)
    if not 1 <= seconds <= _LONGEST:
        raise InvalidOption(option=name, value=value, rule="must be from 1 second to 3 days, as 60, 15m, 1d")
    return seconds


def _bytes(name: str, value: str) -> int:
    rule = "must be a size above 0: bytes, or a number with a unit, as 512k, 64m, 1g (or kb, mb, gb)"
    units = {letter + b: 1 << by for letter, by in (("k", 10), ("m", 20), ("g", 30)) for b in ("", "b")}
    size = _sized(name, value, {"": 1, "b": 1, **units}, rule)
    if not 0 < size <= MAX_COUNT:
        raise InvalidOption(option=name, value=value, rule=rule)
    return max(1, int(size))


def _of_put(option: str, convert: Callable[[str, str], object]) -> Callable[[str, str], object]:
    """A default for an option of put, which `Driver.check_put` checks."""

    def check(name: str, value: str) -> object:
        converted = convert(name, value)
        OF_TASKS[option](name, converted)
        return converted

    return check


_COMMON: Final[_Known] = {
    **{name: (about, _text) for about, name in OF_ADDRESS.items()},
    "url": ("url", _url),
    "tube": ("tube", _text),
    "codec": ("codec", _one_of("json", "raw", "msgpack")),
    "dataFormat": ("data_format", _one_of("value", "json")),
}
_READ: Final[_Known] = {
    "badRows": ("bad_rows", _one_of("fail", "null")),
    "state": ("states", _states_of),
    "ids": ("ids", _ids_of),
    "lane": ("lane", _text),
    "numPartitions": ("num_partitions", _count),
    "startingTime": ("starting_time", _moment),
}
_STREAM: Final[_Known] = {
    "badRows": ("bad_rows", _one_of("fail", "bury")),
    "maxTasksPerTrigger": ("max_tasks", _count),
    "maxBytesPerTrigger": ("max_bytes", _bytes),
    "minTasksPerTrigger": ("min_tasks", _count),
    "maxTriggerDelay": ("max_delay", _span),
    "lease": ("lease", _lease),
    "consumer": ("consumer", _text),
    "countRetakes": ("count_retakes", _yes),
    "numPartitions": ("num_partitions", _count),
    "startingTime": ("starting_time", _moment),
}
_WRITE: Final[_Known] = {
    "delivery": ("delivery", _one_of("at-least-once", "exactly-once")),
    "badRows": ("bad_rows", _one_of("fail", "bury")),
    "batchSize": ("batch_size", _count),
    "timeout": ("timeout", _seconds),
    "driver": ("driver", _text),
    "utube": ("utube", _of_put("utube", _any)),
    "pri": ("pri", _of_put("pri", _whole)),
    "ttl": ("ttl", _of_put("ttl", _seconds)),
    "ttr": ("ttr", _of_put("ttr", _seconds)),
    "delay": ("delay", _of_put("delay", _seconds)),
    "maxAttempts": ("max_attempts", _of_put("max_attempts", _whole)),
    "keyTtl": ("key_ttl", _of_put("key_ttl", _seconds)),
    "onDuplicate": ("on_duplicate", _one_of("keep", "replace")),
}
#: The options of put among them.
_OF_PUT: Final = OF_TASKS.keys() - {"timeout", "at"}
_BATCH_WRITE: Final[_Known] = {"writeId": ("write_id", _text)}
