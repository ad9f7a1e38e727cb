"""Convert tasks and tubes to rows of the database, and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from tubes.drivers.backoff import RetryDelays
from tubes.drivers.done import Done
from tubes.drivers.driver import Driver
from tubes.drivers.entry import Entry, Extras, FullEntry, Hold
from tubes.drivers.moves import State
from tubes.drivers.options import INTERVAL_FROM
from tubes.drivers.rate_limits import TURN, Start
from tubes.drivers.timers import NEVER
from tubes.errors import DriverNotFound, Facts, TubesError, excerpt

if TYPE_CHECKING:
    from tubes.drivers.rate_limits import RateLimit
    from tubes.drivers.registry import Registry
    from tubes.durable.engine import JournaledEngine

#: The key of a task is the number of its tube, followed by this many bits of its id.
ID_BITS: Final = 40
_MASK: Final = (1 << ID_BITS) - 1
#: States by their codes in rows: SQLite stores the values 0 and 1 without a byte of data.
_STATES: Final[tuple[State, ...]] = (State.READY, State.TAKEN, State.BURIED, State.DELAYED)
CODES: Final = {state: code for code, state in enumerate(_STATES)}
#: The code of a removed task, whose row stays until the end of the epoch.
REMOVED: Final = len(_STATES)

#: The columns of plain tasks, and all columns.
SHORT: Final = "key, data, created, state, attempts, moved"
FULL: Final = f"{SHORT}, pri, lane, ttl, ttr, until, dead, more"

Row = tuple[Any, ...]

_NUMBER: Final = "typeof({0})='integer' AND {0} BETWEEN 0 AND 1<<53"
# A time may be negative after `DurableStore` has shifted times because the clock was set back.
_MOMENT: Final = "typeof({0})='integer' AND abs({0})<1<<53"
_PERHAPS: Final = "typeof({0}) IN ('{1}','null')"
#: By column of a task: the condition for a valid value, and the default that `repair` uses.
RULES: Final[dict[str, tuple[str, str]]] = {
    "data": (f"typeof(data) IN ('blob','text') OR state={REMOVED}", "NULL"),
    "state": (f"{_NUMBER.format('state')} AND (state<{REMOVED} OR state={REMOVED} AND data IS NULL)", "0"),
    **{name: (_NUMBER.format(name), "0") for name in ("attempts", "moved")},
    "created": (_MOMENT.format("created"), "0"),
    **{name: (_PERHAPS.format(name, "integer"), "NULL") for name in ("pri", "ttl", "ttr")},
    **{name: (f"{name} IS NULL OR {name}={NEVER} OR ({_MOMENT.format(name)})", "NULL") for name in ("until", "dead")},
    "lane": (_PERHAPS.format("lane", "blob"), "NULL"),
    "more": (_PERHAPS.format("more", "text"), "NULL"),
}
#: The condition for damaged rows.
DAMAGED: Final = " OR ".join(f"NOT ({rule})" for rule, _ in RULES.values())
#: Exceptions that invalid texts raise.
UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError)


def ids_of(number: int) -> tuple[int, int]:
    """Return the first and the last possible key of a task in the tube `number`."""
    return number << ID_BITS, (number + 1 << ID_BITS) - 1


def checksum(key: int, data: object) -> int | None:
    """Return the CRC-32 of a task's data, starting from its id; None without data."""
    raw = data.encode() if isinstance(data, str) else data
    return crc32(raw, key & _MASK) if isinstance(raw, bytes) else None


def full_row(base: int, entry: Entry, moved: int, *, has_times: bool) -> Row:
    """Return the row of a task with all columns."""
    lane = None if entry.utube is None else encode_name(entry.utube)
    times = (entry.ttl, entry.ttr, entry.until, entry.dead) if has_times else (None, None, NEVER, NEVER)
    extras = None if entry.extras is None else format_extras(entry.extras)
    state = CODES[entry.state]  # type: ignore[index]
    short = base | entry.id, entry.data, entry.created, state, entry.attempts, moved
    return (*short, entry.pri, lane, *times, extras)


def format_extras(extras: Extras) -> str:
    """Return rare attributes of a task as JSON, without default values."""
    defaults = Extras._field_defaults
    return json.dumps({name: value for name, value in extras._asdict().items() if value != defaults[name]})


def encode_name(name: str) -> bytes:
    """Encode the name of a lane: it may contain surrogates, which SQLite does not accept in text."""
    return name.encode("utf-8", "surrogatepass")


def decode_name(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def parse_extras(text: str) -> Extras:
    extras = Extras(**json.loads(text))
    if extras.key_ttl.__class__ is not int or extras.max_attempts.__class__ is not int:
        raise TypeError(text)
    return extras


def read_entries(engine: JournaledEngine, rows: Iterable[Row], hold: Hold, known: Mapping[int, Entry]) -> None:
    """Add the tasks of full rows, in the order of their ids, to an engine. The caller rebuilds the indexes.

    `hold`: the new hold of taken tasks. `known`: entries to reuse.
    """
    slim = not (engine.has_times or engine._ranks or engine.driver.lane)
    kind: type[Entry] = Entry if slim else FullEntry
    tasks, has_times, ranks = engine.tasks, engine.has_times, engine._ranks
    mask = (1 << ID_BITS) - 1
    known_extras: dict[str, Extras] = {}
    taken, states = CODES[State.TAKEN], dict(enumerate(_STATES))
    row: object
    for row in rows:
        key, data, created, state, attempts, moved, pri, lane, ttl, ttr, until, dead, text, crc = row
        if state == REMOVED and data is None:
            continue
        if crc != crc32(data, key & mask):
            raise ValueError(f"the checksum of task {key & mask} is wrong")
        if not (created.__class__ is attempts.__class__ is moved.__class__ is int):
            raise _not_integers(f"task {key & mask}", {"created": created, "attempts": attempts, "moved": moved})
        id = key & mask
        entry = known.get(id) or kind()
        entry.id = entry.rank = id
        entry.data = data
        entry.created = created
        entry.attempts = attempts
        entry.take = 0
        entry.index = entry.hold = None
        entry.state = states[state]
        if state == taken:
            entry.hold = hold
        if text is None:
            entry.extras = None
        else:
            entry.extras = extras = known_extras.get(text) or parse_extras(text)
            if extras.key is None:
                known_extras[text] = extras
            elif extras.key_ttl:
                engine.keys_outlive_tasks = True
        if not slim:
            for number in (pri, ttl, ttr, until, dead):
                if number is not None and number.__class__ is not int:
                    columns = {"pri": pri, "ttl": ttl, "ttr": ttr, "until": until, "dead": dead}
                    raise _not_integers(f"task {id}", {name: x for name, x in columns.items() if x is not None})
            entry.pri = pri or 0
            entry.line, entry.lane = 0, None
            entry.utube = None if lane is None else decode_name(lane)
            if has_times:
                entry.ttl, entry.ttr, entry.due, entry.queued = ttl, ttr, NEVER, NEVER
                entry.until = NEVER if until is None else until
                entry.dead = NEVER if dead is None else dead
                if ttl is not None or ttr is not None or entry.until != NEVER:
                    engine.has_deadlines = True
            if ranks:
                engine._rank(entry)
        tasks[id] = entry


def _not_integers(task: str, columns: Mapping[str, object]) -> TypeError:
    wrong = ", ".join(f"{name}={excerpt(value)}" for name, value in columns.items() if value.__class__ is not int)
    return TypeError(f"columns of {task} must be integers, got {wrong}")


def done_row(base: int, done: Done) -> Row:
    names = ("created", "attempts", "pri", "utube", "ttl", "ttr", "dead", "ended", "why")
    facts: dict[str, object] = {name: getattr(done, name) for name in names}
    facts["extras"] = None if done.extras is None else done.extras._asdict()
    return base | done.id, done.data, done.result, done.until, json.dumps(facts)


def read_done(row: Row) -> Done:
    key, data, result, until, text = row
    done = Done()
    facts = json.loads(text)
    facts["extras"] = None if facts["extras"] is None else Extras(**facts["extras"])
    facts |= {"id": key & ((1 << ID_BITS) - 1), "data": data, "result": result, "until": until}
    numbers = {name: facts[name] for name in ("created", "attempts", "ended", "until", "dead")}
    if not all(number.__class__ is int for number in numbers.values()):
        raise _not_integers(f"done task {facts['id']}", numbers)
    for name, value in facts.items():
        setattr(done, name, value)
    return done


def shift_done(base: int, done: Done, span: int) -> Row:
    """Make all times of a done task `span` microseconds earlier; return its row."""
    for name in ("created", "ended", "until", "dead"):
        moment = getattr(done, name)
        setattr(done, name, moment if moment == NEVER else moment - span)
    return done_row(base, done)


def driver_text(driver: Driver) -> str:
    """Return the attributes of a driver as JSON; of its `rank` hook only whether it has one."""
    return json.dumps(
        {
            "name": driver.name,
            "options": sorted(driver.options),
            "order": driver.order,
            "lane": driver.lane,
            "ttl_spares_taken": driver.ttl_spares_taken,
            "ranked": driver.rank is not None,
        }
    )


def read_driver(text: str, registry: Registry) -> Driver:
    """Return the driver of a tube: the registered one if its attributes are equal, else a new one."""
    facts = json.loads(text)
    known: Driver | None = None
    try:
        known = registry.find(facts["name"])
        if json.loads(driver_text(known)) == facts:
            return known
    except DriverNotFound:
        pass
    if facts.pop("ranked"):
        problem = "is not registered" if known is None else "differs from the registered one"
        raise DriverNotFound(name=facts["name"], problem=problem)
    try:
        return Driver(**facts)
    except TubesError as error:
        raise ValueError(str(error)) from error


def options_text(options: Mapping[str, object]) -> str:
    """Return the checked options of a tube as JSON."""
    return json.dumps(
        {name: value.fields if isinstance(value, RetryDelays) else value for name, value in options.items()}
    )


def read_options(text: str) -> dict[str, object]:
    """Parse the options of a tube, as `Driver.check_tube` returns them."""
    found: dict[str, object] = json.loads(text)
    if "backoff" in found:
        found["backoff"] = RetryDelays.from_fields(found["backoff"])
    return found


def facts_text(engine: JournaledEngine, now: int) -> str:
    """Return the facts of a tube as JSON: its state except tasks, options, keys and lanes."""
    deferred = engine.deferred.count_uses(engine.dirty)
    uses = {
        f"{name} {'' if was is None else was.letter}": step.uses - deferred[step]
        for name, rows in engine._steps.items()
        for was, step in rows.items()
        if step.uses > deferred[step]
    }
    number = engine.lanes.rates.last_number if engine.driver.lane else 0
    return json.dumps(
        {
            "born": engine.born,
            "next_id": engine.next_id,
            "next_take": engine.next_take,
            "uses": uses,
            "pause": engine.pause.until,
            "scheduled": engine.bucket.scheduled,
            "rows": engine.count_rows(),
            "number": number,
            "now": now,
        }
    )


def read_facts(text: str) -> Facts:
    facts: Facts = json.loads(text)
    uses = facts["uses"].values()
    numbers = [facts[name] for name in ("born", "next_id", "next_take", "rows", "number", "now")]
    pause = facts["pause"]
    if not all(
        number.__class__ is int for number in (*numbers, *uses, facts["scheduled"], 0 if pause is None else pause)
    ):
        raise TypeError(text)
    return facts


def read_uses(engine: JournaledEngine, uses: Mapping[str, int]) -> None:
    for name, rows in engine._steps.items():
        for was, step in rows.items():
            step.uses = uses.get(f"{name} {'' if was is None else was.letter}", 0)


def rate_text(rate: RateLimit) -> str:
    """Return the state of a lane, except its tasks, as JSON."""
    interval, most, interval_from, capacity, burst, weight = rate.own_limits
    limits: dict[str, object] = {"interval": interval, "most": most, "from": interval_from}
    if capacity is not None:
        limits["capacity"] = capacity
    if burst is not None:
        limits["burst"] = burst
    if weight is not None:
        limits["weight"] = weight
    if rate.reason is not None:
        limits["reason"] = rate.reason
    return json.dumps({"blocked": rate.blocked, **limits, "starts": rate.starts})


def check_rate(text: str) -> None:
    """Raise an exception of `UNREADABLE` for an invalid text of a rate limit."""
    facts = json.loads(text)
    last, before = (Start(*start) for start in facts["starts"])
    limits = (facts["interval"], facts["most"], *(facts.get(limit) for limit in ("capacity", "burst", "weight")))
    numbers = (facts["blocked"], *(limit or 0 for limit in limits), *last[:3], *before[:3])
    places = (place.__class__ in (int, float) and place * TURN % 1 == 0 for place in (last.number, before.number))
    if not all(number.__class__ is int for number in numbers) or not all(places):
        raise TypeError(text)
    if facts["from"] is not None:
        INTERVAL_FROM("from", facts["from"])
    if not isinstance(facts.get("reason", ""), str):
        raise TypeError(text)


def read_rate(rate: RateLimit, text: str) -> None:
    check_rate(text)
    facts = json.loads(text)
    rate.blocked, rate.reason = facts["blocked"], facts.get("reason")
    rate.interval, rate.max_in_flight, rate.interval_from = facts["interval"], facts["most"], facts["from"]
    rate.capacity, rate.own_burst, rate.weight = facts.get("capacity"), facts.get("burst"), facts.get("weight")
    last, before = (Start(*start) for start in facts["starts"])
    rate.starts = last, before


def shift_rate(text: str, span: int) -> str:
    """Make all times of a lane `span` microseconds earlier."""
    check_rate(text)
    facts = json.loads(text)
    starts = [[at - span, *rest] for at, *rest in facts["starts"]]
    return json.dumps({**facts, "blocked": max(facts["blocked"] - span, 0), "starts": starts})


def shift_facts(text: str, span: int) -> str:
    """Make all times in the facts of a tube `span` microseconds earlier."""
    facts = read_facts(text)
    pause, scheduled = facts["pause"], facts["scheduled"]
    moments = {
        "now": facts["now"] - span,
        "pause": pause if pause in (None, NEVER) else pause - span,
        "scheduled": scheduled if scheduled == -NEVER else scheduled - span,
    }
    return json.dumps({**facts, **moments})
