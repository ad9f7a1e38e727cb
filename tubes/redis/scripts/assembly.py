"""The scripts of a driver: the files of `drivers/lua`, put together for one verb.

A script has no more in it than its verb and its driver need: `expansion.py` leaves out what they do not need,
`library.py` adds the definitions that they name, and `gate.py` the checks of the caller's rights. META.field is a field
of the meta hash: a script reads all fields that it names at once. Words in capitals are constants of the driver and the
tube.
"""

from __future__ import annotations

import re
from functools import cache, partial
from hashlib import sha1
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tubes.drivers.backoff import RetryDelays
from tubes.drivers.options import LONGEST, MAX_SECONDS, SECOND, integer
from tubes.drivers.timers import NEVER
from tubes.redis.scripts.expansion import expanded
from tubes.redis.scripts.gate import WORDS, gated
from tubes.redis.scripts.library import with_library
from tubes.redis.scripts.lines import MADE, Line, read, replaced
from tubes.redis.scripts.parts import PARTS
from tubes.redis.scripts.replies import ErrorReply, answers_of
from tubes.redis.scripts.rights import EVERYBODY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tubes.drivers.driver import Driver

#: Verbs that need no machine: the same for all drivers.
PLAIN: Final = frozenset(
    {"open", "beat", "session", "mark", "ring", "names", "there", "living", "stage", "extent", "heads", "ids"}
    | {"write_stage", "write_keep", "write_seal", "write_done", "write_others", "write_clean", "stream_skip"}
    | {"check_meta", "overview", "stream_slots", "rate"}
)
#: Fields of the meta hash whose names come with the call.
_GIVEN: Final = {"session": "ARGV[2]", "answer": "ARGV[3]"}
#: Those that a verb writes down at its end, if it has changed them.
_COUNTERS: Final = ("next", "takes", "acks")
#: The score of a taken task is the number of its session times this, plus the number of its take.
TAKES: Final = 1 << 26
#: More attempts are not counted.
MOST_ATTEMPTS: Final = (1 << 20) - 1
#: For so many microseconds it counts that a process says that its callers wait: it says so more often.
WATCHED: Final = 10 * SECOND
#: Milliseconds after which a stream is forgotten that nobody goes on with: a week.
IDLE: Final = 7 * 24 * 3600 * 1000
#: With so many bytes of tasks an answer is long enough: the others come with the next call.
BYTES: Final = 2_000_000
#: So many tasks one script takes where lanes are throttled: they cost ten times as much as others.
TAKES_WITH_LANES: Final = 100


#: What stands for words in capitals in any script.
_WORDS: Final = {
    "TAKES": str(TAKES),
    "MOST_ATTEMPTS": str(MOST_ATTEMPTS),
    "IDLE": str(IDLE),
    "BYTES": str(BYTES),
    "MOST": str(TAKES_WITH_LANES),
    "LONGEST": str(LONGEST),
    "WATCHED": f"(ARGV[5] == '' and now + {WATCHED} or 1e18)",
    "PARTS": f"'{' '.join(PARTS)}'",
    "EVERYBODY": f"{{ {', '.join(f'{name} = {WORDS[name]}' for name in EVERYBODY)} }}",
}
#: Verbs that know what lanes that are throttled look like, in any tube with lanes.
_OF_PACES: Final = re.compile("pace|utubes|restart_rests|check_.*")
#: Verbs that put.
_PUTS: Final = frozenset({"put", "put_many", "put_keyed", "put_limited", "again"})
_GATE: Final = Line("--#gate", "--#gate")
#: How each script was put together, by its sha.
_MADE: Final[dict[bytes, Callable[[], list[Line]]]] = {}


class Script(NamedTuple):
    """A script, and the name by which a server that has it knows it."""

    text: bytes
    sha: bytes
    #: The kinds of replies to it.
    answers: frozenset[type]


class TubeSettings(NamedTuple):
    """What the scripts of a tube have to know of its options."""

    #: The delays of its backoff, their jitter and its seed.
    backoff: tuple[tuple[int, ...], float, int] | None = None
    #: After how many milliseconds without use it goes by itself; None: never.
    idle: int | None = None
    #: Whether it takes no more than so many tasks.
    bounded: bool = False
    #: Whether it was altered: then callers say which edition of its options they know.
    altered: bool = False
    #: Whether its lanes are throttled, or were once.
    paced: bool = False
    #: For how many microseconds buried tasks live, or `NEVER` to end; None: their ttl goes on.
    buried_ttl: int | None = None
    #: Whether done tasks may be kept, and how many at most; 0: any number.
    keeps: bool = False
    keeps_most: int = 0
    #: How many tasks have room in a lane; 0: any number; None: lanes never had a capacity.
    lane_capacity: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], *, is_altered: bool = False, is_paced: bool = False) -> TubeSettings:
        """By checked options. They become a part of the scripts, so they are checked again to be numbers only."""
        backoff, idle, buried_ttl = options.get("backoff"), options.get("idle"), options.get("buried_ttl")
        fields = backoff.fields if isinstance(backoff, RetryDelays) else backoff
        return cls(
            None if fields is None else RetryDelays.from_fields(fields).fields,
            None if idle is None else integer("idle", idle, MAX_SECONDS * 1000, least=1),
            bool(options.get("capacity")) or "lane_capacity" in options,
            is_altered,
            is_paced,
            None if buried_ttl is None else integer("buried_ttl", buried_ttl, NEVER),
            "keep_done" in options,
            integer("keep_done_max", options.get("keep_done_max", 0)),
            integer("lane_capacity", options["lane_capacity"]) if "lane_capacity" in options else None,
        )


_PLAINEST: Final = TubeSettings()


@cache
def script(verb: str, driver: Driver | None = None, settings: TubeSettings = _PLAINEST) -> Script:
    """The script of a verb, for a driver unless it needs none, and a tube with such settings."""
    text = "\n".join(line.text.strip() for line in assembled(verb, driver, settings))
    made = _finished(text, verb)
    _MADE[made.sha] = partial(assembled, verb, driver, settings)
    return made


@cache
def relaying(relay: Script, put: Script) -> Script:
    """The script that moves tasks to another tube: what removes them, with what puts them there as a function."""
    return _finished(f"local function put_all(KEYS, ARGV)\n{put.text.decode()}\nend\n{relay.text.decode()}", "relay")


@cache
def trial(rank_lua: str) -> Script:
    """A script that ranks some task, to see whether the expression runs at all."""
    return _finished(f"local id, pri, created = 1, 1, 1 return tostring(({rank_lua}) + 0)", "trial")


def _finished(text: str, verb: str) -> Script:
    raw = text.encode()
    return Script(raw, sha1(raw, usedforsecurity=False).hexdigest().encode(), answers_of(verb))


def assembled(verb: str, driver: Driver | None = None, settings: TubeSettings = _PLAINEST) -> list[Line]:
    """The lines of a script."""
    body = read(f"verbs/{verb}")
    if driver is None or verb in PLAIN:
        lines = expanded(body, frozenset())
        return gated(replaced(lines if any(line.text == "--#gate" for line in lines) else [_GATE, *lines], _WORDS))
    # A file that several verbs include may ask for one of them.
    knobs = knobs_of(driver, settings) | {verb.upper()}
    if "PACED" in knobs or _OF_PACES.fullmatch(verb):
        knobs |= {"PACES"}
    head = expanded(read("check" if verb.startswith("check_") else "head"), knobs)
    lines = _with_meta([*head, *with_library([_GATE, *expanded(body, knobs)], knobs)])
    return gated(replaced(lines, _WORDS | _words_of(driver, settings) | {"PUTS": "true" if verb in _PUTS else "false"}))


def knobs_of(driver: Driver, settings: TubeSettings = _PLAINEST) -> frozenset[str]:
    """What a file may ask for about a driver, and a tube of it."""
    lane = driver.lane is not None
    timed = not driver.options.isdisjoint({"ttl", "ttr", "delay"})
    knobs = {
        "LANE": lane,
        "PRI": "pri" in driver.options,
        "TIMED": timed,
        "PLAIN": not lane and not timed,
        "RANK": driver.rank is not None,
        "ORDER_PRI": driver.signs[0] != 0,
        "LIST": not lane and driver.rank is None and not driver.signs[0],
        "ENDS_TAKEN": not driver.ttl_spares_taken,
        "BACKOFF": settings.backoff is not None,
        "BRIEF": settings.idle is not None,
        "ROOM": settings.bounded,
        "ALTERED": settings.altered,
        "PACED": settings.paced and lane,
        "BURIED_TTL": settings.buried_ttl is not None,
        "KEEPS": settings.keeps,
        "KEEPS_SOME": settings.keeps_most > 0,
        "LANE_ROOM": settings.lane_capacity is not None and lane,
    }
    return frozenset(name for name, has in knobs.items() if has)


def _words_of(driver: Driver, settings: TubeSettings) -> dict[str, str]:
    """What stands for the words in capitals that depend on the driver and the tube."""
    newest = driver.signs[1] < 0
    delays, jitter, seed = settings.backoff or ((), 0, 0)
    return {
        "SOME": "50" if driver.lane is not None else "200",
        "NEWEST_FIRST": "true" if newest else "false",
        "GREATEST_FIRST": "true" if driver.signs[0] < 0 else "false",
        "POP": "'RPOP'" if newest else "'LPOP'",
        "UNPOP": "'RPUSH'" if newest else "'LPUSH'",
        "HEAD": "-1" if newest else "0",
        "ENDED_BY_TTL": "false" if driver.ttl_spares_taken else "(dead and dead <= tonumber(first[2]))",
        "RESTS": "{" + ", ".join(map(str, delays)) + "}",
        "REST_JITTER": repr(jitter),
        "REST_SEED": str(seed),
        "UNUSED": str(settings.idle),
        "BURIED_FOR": "false" if settings.buried_ttl == NEVER else str(settings.buried_ttl),
        "KEPT_MOST": str(settings.keeps_most),
        "LANE_CAPACITY": str(settings.lane_capacity),
        "RANK_LUA": f"({driver.rank_lua})",
    }


def _with_meta(lines: list[Line]) -> list[Line]:
    """Read the fields of the meta hash that the script names, and write those that it counts."""
    text = "\n".join(line.text for line in lines)
    counted = "".join(f", '{field}', META.{field} or 0" for field in _COUNTERS if f"META.{field} =" in text)
    fields = list(dict.fromkeys(re.findall(r"META\.(\w+)", text.replace(", COUNTED", counted))))
    names = ", ".join(_GIVEN.get(field, f"'{field}'") for field in fields)

    def read_fields(text: str) -> str:
        text = text.replace(", COUNTED", counted)
        text = re.sub(r"META\.(\w+)", lambda found: f"meta[{fields.index(found[1]) + 1}]", text)
        return re.sub(r"\bMETA\b", f"call('HMGET', M, {names})", text)

    asking = re.compile("META|COUNTED")
    return [Line(read_fields(line.text), line.source) if asking.search(line.text) else line for line in lines]


def with_source(error: ErrorReply) -> str:
    """What a server's error says, with the file and the line of the Lua that has raised it, if any has."""
    made, line = _MADE.get(error.sha), re.search(r"\buser_script:(\d+)", str(error))
    source = made()[int(line[1]) - 1].source if made and line else MADE
    return str(error) if source == MADE else f"{error} (drivers/lua/{source})"
