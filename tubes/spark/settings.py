"""Parse and check the options of the data source, which Spark passes as strings."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Final

import tubes
from tubes.backend.url import read, redact_url
from tubes.drivers.options import MAX_COUNT, OF_TASKS
from tubes.drivers.registry import Registry
from tubes.errors import Facts, InvalidOption, TubeNotFound
from tubes.partitions.layout import local_range
from tubes.partitions.port import find_tube
from tubes.spark.address import OPTIONS as ADDRESS_OPTIONS
from tubes.spark.address import Address
from tubes.spark.server.bulk_write import Writer
from tubes.spark.workers import shared_queue

if TYPE_CHECKING:
    from tubes.drivers.driver import Driver
    from tubes.sync import Queue, Tube

#: Default of `lease`: seconds for which a stream keeps its tasks after its reader has ended. A busy machine needs more
#: than a minute to start Spark again.
LEASE: Final = 300.0
#: Maximum of `lease`. The server forgets an unused stream after a week, and its tasks must be free long before.
_MAX_LEASE: Final = 3 * 24 * 3600
#: Options that Spark itself adds to a query.
_SPARK_OPTIONS: Final = frozenset({"path", "checkpointlocation", "queryname"})
_NO_OPTIONS: Final[Mapping[str, str]] = {}
#: Option name, as users write it -> its field or option of put, and the function that parses and checks it.
_Known = dict[str, tuple[str, Callable[[str, str], object]]]
#: The hidden tube that records writes to several tubes.
_WRITES: Final = "tubes.writes"
#: Seconds after which it expires without use: ten years, since writes do not count as use.
_WRITES_IDLE: Final = 10 * 365 * 24 * 3600.0
_WILDCARDS: Final = frozenset("*?[")
#: A name of a tube, with wildcards.
_PATTERN: Final = re.compile(r"[A-Za-z0-9_\-.:+/;$()*?\[\]!]+")
_STATES: Final = {"ready": "r", "taken": "t", "buried": "!", "delayed": "~", "done": "-"}
#: The states of tasks that are not done.
_LIVING: Final = frozenset(_STATES.values()) - {"-"}


@dataclass(frozen=True)
class Settings:
    """The checked options of one read or write. Times are in seconds."""

    address: Address
    #: The tube; "" if `tubes` names several.
    tube: str = ""
    #: Names and patterns of several tubes.
    tubes: tuple[str, ...] = ()
    codec: str = "json"
    data_format: str = "value"
    #: How to handle rows that cannot be put or read: fail, bury or null.
    bad_rows: str = "fail"
    #: For reads.
    states: frozenset[str] = _LIVING
    ids: range = range(1 << 48)
    lane: str | None = None
    num_partitions: int | None = None
    #: Select done tasks that ended at this time or later, in µs since 1970. None: a batch reads all done tasks, and a
    #: stream reads none of them.
    starting_time: int | None = None
    #: For streams.
    max_tasks: int | None = None
    max_bytes: int | None = None
    min_tasks: int | None = None
    max_delay: float = 900.0
    lease: float = LEASE
    consumer: str | None = None
    #: True if losing the lease of a task counts as an attempt.
    count_retakes: bool = False
    #: For writes.
    delivery: str | None = None
    write_id: str | None = None
    batch_size: int = 1000
    timeout: float = 60.0
    driver: str | None = None
    #: Default options of put, which columns override.
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def is_by_id(self) -> bool:
        """True if a read filters tasks only by id, not by state or lane."""
        return self.states >= _LIVING and self.lane is None

    def connect(self, *, lease: float = 30.0) -> Queue:
        return tubes.connect(self.address.locate(), codec=self.codec, session_ttl=lease)

    def share(self) -> AbstractContextManager[Queue]:
        return shared_queue(self.address.locate(), self.codec)

    def of(self, tube: str) -> Settings:
        """Return the settings for one tube of several, or for one partition."""
        if tube == self.tube:
            return self
        number = tube.partition("#")[2]
        ids = local_range(self.ids, int(number), Settings.ids.stop) if number else self.ids
        return replace(self, tube=tube, tubes=(), ids=ids)

    def matches(self, tube: str) -> bool:
        """Return True if the option `tubes` selects this tube."""
        return any(fnmatchcase(tube, pattern) for pattern in self.tubes)

    def existing(self, queue: Queue, plain: Container[str] = ()) -> list[str]:
        """Return the tubes that exist among those of this read or write, in order. Only patterns need a list of tubes.

        Each partition of a tube counts as a tube of its own, such as `crawl#2`. `plain`: tubes without partitions.
        """
        listed = filter(self.matches, queue.tubes()) if len(self.named) < len(self.tubes) else ()
        found: list[str] = []
        for name in sorted(self.named.union(listed)):
            with suppress(TubeNotFound):
                parts = None if name in plain and name not in self.named else queue.tube(name).partitions
                found += [name] if parts is None else [f"{name}#{number}" for number in range(parts)]
        return found

    def is_several(self, queue: Queue) -> bool:
        """Return True if this is a read or write of several tubes, or of a tube with partitions."""
        return bool(self.tubes) or bool(self.find(queue).partitions)

    def writer(self, queue: Queue) -> Writer:
        """Return the writer that records all-or-nothing writes: in the tube, or for several tubes in a hidden one."""
        if not self.is_several(queue):
            return Writer(self.find(queue))
        tube = queue.admin._hidden_tube(_WRITES, _WRITES_IDLE, kept=True)
        return Writer(tube, partial(find_tube, queue))

    def names(self, queue: Queue, plain: Container[str] = ()) -> list[str]:
        """Return the tubes to read: see `existing`. Raises `TubeNotFound` for a named tube that does not exist."""
        names = self.existing(queue, plain)
        for named in self.named.difference(name.partition("#")[0] for name in names):
            self.of(named)._find_existing(queue)
        return names

    @property
    def named(self) -> frozenset[str]:
        """The tube, or the names in `tubes` that are no patterns."""
        return frozenset(name for name in self.tubes or (self.tube,) if not _WILDCARDS & set(name))

    def find(self, queue: Queue) -> Tube:
        """Return the tube. A write with `driver` creates it if it does not exist, and refuses one of another driver."""
        if self.driver is not None and self.tube not in queue.tubes():
            return queue.create_tube(self.tube, self.driver, if_not_exists=True)
        return self._find_existing(queue)

    def find_drivers(self, queue: Queue) -> list[Driver]:
        """Return the drivers that each put must suit: that of the tube, or of the tubes that the write creates.

        Of several tubes each may have another driver, so each row is checked with that of its tube.
        """
        if self.tubes:
            return [] if self.driver is None else [Registry().find(self.driver)]
        try:
            return [self._find_existing(queue).driver]
        except TubeNotFound:
            if self.driver is None:
                raise
            return [Registry().find(self.driver)]

    def _find_existing(self, queue: Queue) -> Tube:
        try:
            tube = find_tube(queue, self.tube) if "#" in self.tube else queue.tube(self.tube)
        except TubeNotFound as error:
            error.add_note('From Spark: a write with .option("driver", "fifo"), or with another driver, creates it.')
            raise
        if self.driver not in (None, tube.driver.name):
            rule = f"must be the driver of the existing tube {self.tube!r}, which is {tube.driver.name!r}"
            raise InvalidOption(option="driver", value=self.driver, rule=rule)
        return tube


def read_settings(options: Mapping[str, str], kept: Mapping[str, str] = _NO_OPTIONS) -> Settings:
    """Check the options of a batch read. `kept`: the options of its table; those for writes are ignored."""
    settings = _settings(options, kept, _COMMON | _READ)
    since = {name.lower(): value for name, value in options.items()}.get("startingtime")
    if since is not None and "-" not in settings.states:
        raise InvalidOption(
            option="startingTime", value=since, rule="selects done tasks, so the option state must contain done"
        )
    return settings


def stream_settings(options: Mapping[str, str], kept: Mapping[str, str] = _NO_OPTIONS) -> Settings:
    """Check the options of a stream source. `kept`: the options of its table."""
    return _settings(options, kept, _COMMON | _STREAM)


def write_settings(options: Mapping[str, str], kept: Mapping[str, str] = _NO_OPTIONS, *, streams: bool) -> Settings:
    """Check the options of a write. `kept`: the options of its table; `streams`: it is the sink of a stream."""
    known = _COMMON | _WRITE
    return _settings(options, kept, known if streams else known | _BATCH_WRITE)


def check_values(options: Mapping[str, str]) -> Settings:
    """Check the value of each option, for reads as well as writes."""
    shared: _Known = {"badRows": ("bad_rows", _accept_one_of("fail", "bury", "null"))}
    return _settings(options, _NO_OPTIONS, _COMMON | _READ | _STREAM | _WRITE | _BATCH_WRITE | shared)


def _settings(options: Mapping[str, str], kept: Mapping[str, str], known: _Known) -> Settings:
    by_key = {name.lower(): (name, field, check) for name, (field, check) in known.items()}
    found: Facts = {}
    address: Facts = {}
    defaults: dict[str, object] = {}
    usable = {key: value for key, value in kept.items() if key in by_key}
    for key, value in {**usable, **options}.items():
        if key.lower() in _SPARK_OPTIONS:
            continue
        if key.lower() not in by_key:
            raise _make_unknown_error(key, {key: name for key, (name, _, _) in by_key.items()})
        name, target, check = by_key[key.lower()]
        group = defaults if target in _PUT_OPTIONS else address if target in ADDRESS_OPTIONS else found
        group[target] = check(name, value)
    if "tube" in found and "tubes" in found:
        raise InvalidOption(option="tubes", value=",".join(found["tubes"]), rule="cannot be used with the option tube")
    for needed in ("url", "tube"):
        if not {needed, f"{needed}s"} & {*address, *found}:
            rule = f'is required: .option("{needed}", …)'
            if not options:
                rule += (
                    "; Spark loses the options of a table that declares columns, or is created by AS SELECT or "
                    "saveAsTable: use CREATE TABLE … USING tubes OPTIONS (…), and INSERT INTO"
                )
            raise InvalidOption(option=needed, value=None, rule=rule)
    if defaults:
        found["defaults"] = defaults
    if "write_id" in found and found.get("delivery") == "at-least-once":
        rule = "works only with delivery exactly-once: omit writeId, or set delivery to exactly-once"
        raise InvalidOption(option="writeId", value=found["write_id"], rule=rule)
    if found.get("codec", "json") != "json" and found.get("data_format") == "json":
        raise InvalidOption(option="dataFormat", value="json", rule="needs codec json")
    return Settings(address=Address(**address), **found)


def _make_unknown_error(key: str, known: Mapping[str, str]) -> InvalidOption:
    """Build the error for an unknown option. It omits the value, which may be a URL with a password."""
    names = {name.lower(): name for name in _COMMON | _READ | _STREAM | _WRITE | _BATCH_WRITE}
    rule = f"known options are {', '.join(sorted(known.values()))}"
    matches = get_close_matches(key.lower(), known, 1)
    if key.lower() in names:
        rule = f"does not apply to this read or write: {rule}"
    elif matches:
        rule = f"is unknown here: did you mean {known[matches[0]]}? {rule}"
    else:
        rule = f"is unknown here: {rule}"
    return InvalidOption(option="option", value=names.get(key.lower(), key), rule=rule)


# -- parsers of values -------------------------------------------------------------------------------------------------


def _text(name: str, value: str) -> str:
    if not value:
        raise InvalidOption(option=name, value=value, rule="must not be empty")
    return value


def _names(name: str, value: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in value.split(","))
    if not all(map(_PATTERN.fullmatch, words)):
        rule = (
            "must be names or patterns of tubes, separated by commas, such as crawl.*,mail: * stands for any text, "
            "? for one character, [ab] for a or b; a regular expression is not a pattern"
        )
        raise InvalidOption(option=name, value=value, rule=rule)
    return words


def _url(name: str, value: str) -> str:
    if value.lower().startswith(("memory:", "file:")):
        rule = "cannot be shared by Spark's driver and executors: use a server, such as redis://host"
        raise InvalidOption(option=name, value=redact_url(value), rule=rule)
    read(_text(name, value), servers_only=True)
    return value


def _accept_one_of(*words: str) -> Callable[[str, str], str]:
    def check(name: str, value: str) -> str:
        if value not in words:
            raise InvalidOption(option=name, value=value, rule=f"must be one of {', '.join(words)}")
        return value

    return check


def _boolean(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidOption(option=name, value=value, rule="must be true or false")
    return value.lower() == "true"


def _parse_states(name: str, value: str) -> frozenset[str]:
    found: set[str] = set()
    for word in value.split(","):
        state = _STATES.get(word.strip().lower(), word.strip())
        if state not in _STATES.values():
            rule = f"must be one of {', '.join(_STATES)}, or several of them, separated by commas"
            raise InvalidOption(option=name, value=value, rule=rule)
        found.add(state)
    return frozenset(found)


def _parse_ids(name: str, value: str) -> range:
    found = re.fullmatch(r"([0-9]{1,18})(-([0-9]{1,18})?)?", value.strip())
    if found is None or (found[3] and int(found[3]) < int(found[1])):
        raise InvalidOption(option=name, value=value, rule="must be an id or a range of ids, such as 7, 0-99 or 100-")
    first = int(found[1])
    if found[2] == "-":
        return range(first, Settings.ids.stop)
    return range(first, int(found[3] or first) + 1)


def _moment(name: str, value: str) -> int:
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        rule = (
            "must be an ISO 8601 date or time, such as 2026-11-23 or 2026-11-23T12:30+01:00; without a zone it is UTC"
        )
        raise InvalidOption(option=name, value=value, rule=rule) from None
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return max(since // timedelta(microseconds=1), 0)


def _check_whole_number(name: str, value: str) -> int:
    if re.fullmatch(r"\s*-?[0-9]{1,20}\s*", value) is None:
        raise InvalidOption(option=name, value=value, rule="must be a whole number")
    return int(value)


def _count(name: str, value: str) -> int:
    number = _check_whole_number(name, value)
    if not 1 <= number <= MAX_COUNT:
        raise InvalidOption(option=name, value=value, rule=f"must be from 1 to {MAX_COUNT}")
    return number


def _parse_quantity(name: str, value: str, units: Mapping[str, float], rule: str) -> float:
    found = re.fullmatch(r"\s*((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", value.lower())
    if found is None or found[2] not in units:
        raise InvalidOption(option=name, value=value, rule=rule)
    return float(found[1]) * units[found[2]]


def _seconds(name: str, value: str) -> float:
    rule = "must be a number of seconds, at least 0, or a number with a unit, such as 500ms, 30s, 15m, 1h or 3d"
    seconds = _parse_quantity(name, value, {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 24 * 3600}, rule)
    OF_TASKS["ttl"](name, seconds)
    return seconds


def _positive_seconds(name: str, value: str) -> float:
    seconds = _seconds(name, value)
    if not seconds:
        raise InvalidOption(option=name, value=value, rule="must be greater than 0")
    return seconds


def _lease(name: str, value: str) -> float:
    seconds = _seconds(name, value)
    if not 1 <= seconds <= _MAX_LEASE:
        raise InvalidOption(option=name, value=value, rule="must be from 1 second to 3 days, such as 60, 15m or 1d")
    return seconds


def _bytes(name: str, value: str) -> int:
    rule = "must be a size greater than 0: bytes, or a number with a unit, such as 512k, 64m or 1g (or kb, mb, gb)"
    units = {letter + b: 1 << bits for letter, bits in (("k", 10), ("m", 20), ("g", 30)) for b in ("", "b")}
    size = _parse_quantity(name, value, {"": 1, "b": 1, **units}, rule)
    if not 0 < size <= MAX_COUNT:
        raise InvalidOption(option=name, value=value, rule=rule)
    return max(1, int(size))


def _put_option(option: str, convert: Callable[[str, str], object]) -> Callable[[str, str], object]:
    """Return a parser for the default of an option of put. `Driver.check_put` checks the default again."""

    def check(name: str, value: str) -> object:
        converted = convert(name, value)
        OF_TASKS[option](name, converted)
        return converted

    return check


_COMMON: Final[_Known] = {
    **{name: (target, _text) for target, name in ADDRESS_OPTIONS.items()},
    "url": ("url", _url),
    "tube": ("tube", _text),
    "tubes": ("tubes", _names),
    "codec": ("codec", _accept_one_of("json", "raw", "msgpack")),
    "dataFormat": ("data_format", _accept_one_of("value", "json")),
}
_READ: Final[_Known] = {
    "badRows": ("bad_rows", _accept_one_of("fail", "null")),
    "state": ("states", _parse_states),
    "ids": ("ids", _parse_ids),
    "lane": ("lane", _text),
    "numPartitions": ("num_partitions", _count),
    "startingTime": ("starting_time", _moment),
}
_STREAM: Final[_Known] = {
    "badRows": ("bad_rows", _accept_one_of("fail", "bury")),
    "maxTasksPerTrigger": ("max_tasks", _count),
    "maxBytesPerTrigger": ("max_bytes", _bytes),
    "minTasksPerTrigger": ("min_tasks", _count),
    "maxTriggerDelay": ("max_delay", _positive_seconds),
    "lease": ("lease", _lease),
    "consumer": ("consumer", _text),
    "countRetakes": ("count_retakes", _boolean),
    "numPartitions": ("num_partitions", _count),
    "startingTime": ("starting_time", _moment),
}
_WRITE: Final[_Known] = {
    "delivery": ("delivery", _accept_one_of("at-least-once", "exactly-once")),
    "badRows": ("bad_rows", _accept_one_of("fail", "bury")),
    "batchSize": ("batch_size", _count),
    "timeout": ("timeout", _seconds),
    "driver": ("driver", _text),
    "utube": ("utube", _put_option("utube", lambda _, value: value)),
    "pri": ("pri", _put_option("pri", _check_whole_number)),
    "ttl": ("ttl", _put_option("ttl", _seconds)),
    "ttr": ("ttr", _put_option("ttr", _seconds)),
    "delay": ("delay", _put_option("delay", _seconds)),
    "maxAttempts": ("max_attempts", _put_option("max_attempts", _check_whole_number)),
    "keyTtl": ("key_ttl", _put_option("key_ttl", _seconds)),
    "onDuplicate": ("on_duplicate", _accept_one_of("keep", "replace", "update")),
}
#: The options of put in `_WRITE`.
_PUT_OPTIONS: Final = OF_TASKS.keys() - {"timeout", "at"}
_BATCH_WRITE: Final[_Known] = {"writeId": ("write_id", _text)}
