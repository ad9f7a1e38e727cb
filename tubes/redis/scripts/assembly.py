"""Assemble the script of a method, a driver and the settings of a tube from the files of `drivers/lua`.

How a script is assembled: it contains only the lines that its method, driver and tube need, because a server runs short
scripts faster. (1) `lines.py` reads the file of the method, without comments. (2) `expansion.py` expands the
directives: includes, conditions on knobs, and moves of tasks. (3) `library.py` adds the definitions of
`drivers/lua/lib` that the lines name, each once. (4) `head.lua` goes first; for a check of `repair`, `check.lua`. (5)
`META.field` is a field of the meta hash: the script reads all fields that it names with one HMGET. (6) Words in
capitals become constants of the driver and the tube.

The scripts in `PLAIN` do not depend on a driver: they skip steps 3 to 5. The text of a script is cached with its SHA-1,
which EVALSHA sends. `with_source` finds the file and the line for an error of a server.
"""

from __future__ import annotations

import re
from functools import cache, partial
from hashlib import sha1
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tubes.drivers.backoff import RetryDelays
from tubes.drivers.options import LONGEST, MAX_SECONDS, SECOND, integer
from tubes.drivers.timers import NEVER
from tubes.redis.scripts.expansion import expand
from tubes.redis.scripts.library import add_definitions
from tubes.redis.scripts.lines import GENERATED, Line, read, replace_words
from tubes.redis.scripts.parts import PARTS
from tubes.redis.scripts.replies import ErrorReply, reply_types_of
from tubes.redis.scripts.rights import as_lua, commands_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tubes.drivers.driver import Driver

#: Scripts without the state machine: the same for all drivers.
PLAIN: Final = frozenset(
    {"open", "heartbeat", "session", "wake", "wake_at_due", "upload_words", "extent", "task_headers", "scan_ids"}
    | {"tube_names", "describe", "tube_drivers"}
    | {"write_stage", "write_keep", "write_seal", "write_done", "write_others", "write_clean", "stream_skip"}
    | {"check_meta", "overview", "stream_slots", "rate", "damage"}
)
#: Fields of the meta hash whose names are arguments of the call.
_ARGUMENTS: Final = {"session": "ARGV[2]", "stored_reply": "ARGV[3]"}
#: Fields that a script writes at its end if it changes them.
_COUNTERS: Final = ("next", "takes", "acks")
#: The score of a taken task: the number of its session times this, plus the number of its take.
TAKES: Final = 1 << 26
#: The maximum of the attempts counter.
MOST_ATTEMPTS: Final = (1 << 20) - 1
#: Microseconds for which a process stays registered as waiting. It registers again before they end.
WATCHED: Final = 10 * SECOND
#: Milliseconds after which an unused stream expires: a week.
IDLE: Final = 7 * 24 * 3600 * 1000
#: Size limit of a reply in bytes of tasks. The next call returns the others.
BYTES: Final = 2_000_000
#: Maximum tasks per script if lanes are throttled: each costs ten times as much as usual.
TAKES_WITH_LANES: Final = 100


#: The constants of all scripts.
_CONSTANTS: Final = {
    "TAKES": str(TAKES),
    "MOST_ATTEMPTS": str(MOST_ATTEMPTS),
    "IDLE": str(IDLE),
    "BYTES": str(BYTES),
    "MOST": str(TAKES_WITH_LANES),
    "LONGEST": str(LONGEST),
    "WATCHED": f"(ARGV[5] == '' and now + {WATCHED} or 1e18)",
    "PARTS": f"'{' '.join(PARTS)}'",
    **as_lua(),
}
#: Scripts that can read throttled lanes, in every tube with lanes.
_READS_THROTTLED: Final = re.compile("pace|lanes|restart_cooldowns|check_.*")
#: Scripts that put.
_PUTS: Final = frozenset({"put", "put_many", "put_keyed", "put_limited", "again"})
#: Functions that assemble each script again, by SHA-1.
_ASSEMBLERS: Final[dict[bytes, Callable[[], list[Line]]]] = {}


class Script(NamedTuple):
    """The text of a script, and the SHA-1 by which a server that has loaded it runs it."""

    text: bytes
    sha: bytes
    #: The possible types of its reply.
    reply_types: frozenset[type]
    #: The commands that it may run.
    commands: frozenset[str] = frozenset()


class TubeSettings(NamedTuple):
    """The options of a tube that its scripts depend on."""

    #: The delays of its backoff in microseconds, their jitter and its seed.
    backoff: tuple[tuple[int, ...], float, int] | None = None
    #: Milliseconds without use after which the tube expires; None: never.
    idle: int | None = None
    #: True if the number of its tasks is limited.
    bounded: bool = False
    #: True if the tube was altered: then callers send the version of the options that they know.
    altered: bool = False
    #: True if its lanes are or were throttled.
    paced: bool = False
    #: Microseconds that buried tasks live, or `NEVER` if without end; None: their ttl continues.
    buried_ttl: int | None = None
    #: True if done tasks may be kept; and the maximum of kept tasks, 0: any number.
    keeps: bool = False
    keeps_most: int = 0
    #: The capacity of a lane; 0: any number; None: lanes never had a capacity.
    lane_capacity: int | None = None
    #: Microseconds from one token of its rate to the next, and its burst; 0: it has no rate.
    rate: tuple[int, int] = (0, 1)

    @classmethod
    def of(cls, options: Mapping[str, Any], *, is_altered: bool = False, is_paced: bool = False) -> TubeSettings:
        """Read the settings from checked options. Check again that they are numbers: they become part of a script."""
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
            (integer("rate", options.get("rate", 0)), integer("burst", options.get("burst", 1))),
        )


_DEFAULTS: Final = TubeSettings()


@cache
def script(method: str, driver: Driver | None = None, settings: TubeSettings = _DEFAULTS) -> Script:
    """Return the script of a method for a driver and a tube with these settings; `driver`: None for `PLAIN` scripts."""
    text = "\n".join(line.text.strip() for line in assembled(method, driver, settings))
    made = _make_script(text, method)
    _ASSEMBLERS[made.sha] = partial(assembled, method, driver, settings)
    return made


@cache
def relaying(relay: Script, put: Script) -> Script:
    """Return the script that moves tasks to another tube: the removal, with the put script inlined as a function."""
    return _make_script(f"local function put_all(KEYS, ARGV)\n{put.text.decode()}\nend\n{relay.text.decode()}", "relay")


@cache
def trial(rank_lua: str) -> Script:
    """Return a script that ranks some task, to check that the expression runs."""
    return _make_script(f"local id, pri, created = 1, 1, 1 return tostring(({rank_lua}) + 0)", "trial")


def _make_script(text: str, method: str) -> Script:
    raw = text.encode()
    return Script(raw, sha1(raw, usedforsecurity=False).hexdigest().encode(), reply_types_of(method), commands_in(text))


def assembled(method: str, driver: Driver | None = None, settings: TubeSettings = _DEFAULTS) -> list[Line]:
    """Return the lines of a script."""
    body = read(f"verbs/{method}")
    if driver is None or method in PLAIN:
        return _code(replace_words(expand(body, frozenset()), _CONSTANTS))
    # A file that several scripts include may test the name of the script.
    knobs = knobs_of(driver, settings) | {method.upper()}
    if "PACED" in knobs or _READS_THROTTLED.fullmatch(method):
        knobs |= {"PACES"}
    head = expand(read("steps/check" if method.startswith("check_") else "steps/head"), knobs)
    lines = _with_meta([*head, *add_definitions(expand(body, knobs), knobs)])
    return _code(
        replace_words(
            lines, _CONSTANTS | _constants_of(driver, settings) | {"PUTS": "true" if method in _PUTS else "false"}
        )
    )


def _code(lines: list[Line]) -> list[Line]:
    """Return the lines without the directives for `library.py`."""
    return [line for line in lines if not line.text.lstrip().startswith("--#")]


def knobs_of(driver: Driver, settings: TubeSettings = _DEFAULTS) -> frozenset[str]:
    """Return the knobs of a driver and a tube: the conditions that `--#if` can test."""
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
        "RATED": settings.rate[0] > 0,
        "LANE_ROOM": settings.lane_capacity is not None and lane,
    }
    return frozenset(name for name, has in knobs.items() if has)


def _constants_of(driver: Driver, settings: TubeSettings) -> dict[str, str]:
    """Return the constants that depend on the driver and the tube."""
    newest = driver.signs[1] < 0
    delays, jitter, seed = settings.backoff or ((), 0, 0)
    return {
        "SOME": "50" if driver.lane is not None else "200",
        "NEWEST_FIRST": "true" if newest else "false",
        "GREATEST_FIRST": "true" if driver.signs[0] < 0 else "false",
        "POP": "'RPOP'" if newest else "'LPOP'",
        "UNPOP": "'RPUSH'" if newest else "'LPUSH'",
        "HEAD": "-1" if newest else "0",
        "READY": "':ready'" if driver.lane is None else "':offers'",
        "ENDED_BY_TTL": "false" if driver.ttl_spares_taken else "(dead and dead <= tonumber(first[2]))",
        "RESTS": "{" + ", ".join(map(str, delays)) + "}",
        "REST_JITTER": repr(jitter),
        "REST_SEED": str(seed),
        "UNUSED": str(settings.idle),
        "BURIED_FOR": "false" if settings.buried_ttl == NEVER else str(settings.buried_ttl),
        "KEPT_MOST": str(settings.keeps_most),
        "LANE_CAPACITY": str(settings.lane_capacity),
        "TOKEN": str(settings.rate[0]),
        "BURST": str(settings.rate[1]),
        "RANK_LUA": f"({driver.rank_lua})",
    }


def _with_meta(lines: list[Line]) -> list[Line]:
    """Expand META: read the fields of the meta hash that the script names, and write the counters that it changes."""
    text = "\n".join(line.text for line in lines)
    counted = "".join(f", '{field}', META.{field} or 0" for field in _COUNTERS if f"META.{field} =" in text)
    fields = list(dict.fromkeys(re.findall(r"META\.(\w+)", text.replace(", COUNTED", counted))))
    names = ", ".join(_ARGUMENTS.get(field, f"'{field}'") for field in fields)

    def read_fields(text: str) -> str:
        text = text.replace(", COUNTED", counted)
        text = re.sub(r"META\.(\w+)", lambda found: f"meta[{fields.index(found[1]) + 1}]", text)
        return re.sub(r"\bMETA\b", f"call('HMGET', M, {names})", text)

    uses_meta = re.compile("META|COUNTED")
    return [Line(read_fields(line.text), line.source) if uses_meta.search(line.text) else line for line in lines]


def with_source(error: ErrorReply) -> str:
    """Return the text of a server's error, with the file and the line of the Lua code that raised it, if known."""
    made, line = _ASSEMBLERS.get(error.sha), re.search(r"\buser_script:(\d+)", str(error))
    source = made()[int(line[1]) - 1].source if made and line else GENERATED
    return str(error) if source == GENERATED else f"{error} (drivers/lua/{source})"
