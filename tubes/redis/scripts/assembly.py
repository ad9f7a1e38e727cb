"""Lua for a driver: the files of `drivers/lua`, put together for one verb.

A script has no more in it than its verb and its driver need, since what it defines it defines anew at every call. The
files are Lua with directives:

    --#if KNOB|KNOB   lines for drivers that have one of these knobs; --#elif, --#else, --#end
    --#include name   the lines of another file
    --#move why was   a move by the table, from the state `was`; without it from whatever state the task is in
    --#moves why was  the same for all `tasks` at once, where there are no lanes and nobody listens
    --#done answer    the end of a verb that did something, and the answer to keep
    --#slow           until --#fast: lines that seldom run; what only they need is defined there; more in gate.py

`lib/` has the functions: a script gets those that it names. META.field is a field of the meta hash: the script reads
all fields that it names at once. Words in capitals are constants of the driver.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tubes.drivers.backoff import Rests
from tubes.drivers.moves import MOVES, Move, State
from tubes.drivers.options import LONGEST, MAX_SECONDS, SECOND, whole
from tubes.redis.scripts.gate import WORDS, gated
from tubes.redis.scripts.parts import PARTS
from tubes.redis.scripts.replies import answers_of
from tubes.redis.scripts.rights import EVERYBODY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tubes.drivers.driver import Driver

_LUA: Final = files("tubes.drivers") / "lua"
_PARTS: Final = f"'{' '.join(PARTS)}'"
#: The parts of the library, in the order in which they build on each other.
_LIBRARY: Final = (
    *("task", "many", "chance", "keys", "order", "paces", "failures", "respawn", "held", "ends", "holds", "checks"),
)
#: Verbs that need no machine.
_PLAIN: Final = frozenset(
    {"open", "beat", "session", "mark", "ring", "names", "there", "living", "stage", "extent", "ids", "overview"}
    | {"write_stage", "write_keep", "write_seal", "write_done", "write_others", "write_clean", "stream_skip"}
    | {"check_meta"}
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
#: So many tasks one script takes where there are lanes: they cost ten times as much as others.
TAKES_WITH_LANES: Final = 100


class Script(NamedTuple):
    """A script, and the name by which a server that has it knows it."""

    text: bytes
    sha: bytes
    #: The kinds of replies to it.
    answers: frozenset[type]


class TubeSettings(NamedTuple):
    """What the scripts of a tube have to know of its options: they never change while it lives."""

    #: The delays of its backoff, their jitter and its seed.
    rests: tuple[tuple[int, ...], float, int] | None = None
    #: After how many milliseconds without use it goes by itself; None: never.
    idle: int | None = None
    #: Whether it takes no more than so many tasks.
    bounded: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TubeSettings:
        """The options as the server keeps them. They become a part of the scripts: hence none but numbers."""
        rests, idle = options.get("backoff"), options.get("idle")
        return cls(
            None if rests is None else Rests.kept(rests).fields,
            None if idle is None else whole("idle", idle, MAX_SECONDS * 1000, least=1),
            bool(options.get("capacity")),
        )


_PLAINEST: Final = TubeSettings()


@cache
def script(verb: str, driver: Driver | None = None, settings: TubeSettings = _PLAINEST) -> Script:
    """The script of a verb, for a driver unless it needs none, and a tube with such settings."""
    lines = _plain(verb) if driver is None or verb in _PLAIN else _Assembly(verb, driver, settings).lines
    raw = "\n".join(gated(lines)).encode()
    return Script(raw, sha1(raw, usedforsecurity=False).hexdigest().encode(), answers_of(verb))


@cache
def trial(rank_lua: str) -> Script:
    """A script that ranks some task, to see whether the expression runs at all."""
    raw = f"local id, pri, created = 1, 1, 1 return tostring(({rank_lua}) + 0)".encode()
    return Script(raw, sha1(raw, usedforsecurity=False).hexdigest().encode(), answers_of("trial"))


@cache
def _read(name: str) -> str:
    return (_LUA / f"{name}.lua").read_text()


def _plain(verb: str) -> list[str]:
    """A verb that needs no machine, with what it includes."""
    text = re.sub(r"--#include (\w+)", lambda found: _read(found[1]), _read(f"verbs/{verb}"))
    everybody = ", ".join(f"{name} = {WORDS[name]}" for name in EVERYBODY)
    lines = _code(text.replace("EVERYBODY", f"{{ {everybody} }}").replace("PARTS", _PARTS))
    return lines if "--#gate" in lines else ["--#gate", *lines]


def _code(text: str) -> list[str]:
    """The lines without comments and blanks."""
    lines = (re.sub(r"(^|\s)--(?!#).*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


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
        "BACKOFF": settings.rests is not None,
        "BRIEF": settings.idle is not None,
        "ROOM": settings.bounded,
    }
    return frozenset(name for name, has in knobs.items() if has)


class _Assembly:
    """One script in the making."""

    def __init__(self, verb: str, driver: Driver, settings: TubeSettings) -> None:
        self._verb: Final = verb
        self._driver: Final = driver
        self._settings: Final = settings
        self._knobs: Final = knobs_of(driver, settings)
        # The definitions of the library, by the first name that they define, in their order; and which one has a name.
        self._library: Final[dict[str, list[str]]] = {}
        self._chunk_of: Final[dict[str, str]] = {}
        self._read_library()
        body = self._expand(_read(f"verbs/{verb}"))
        head = self._expand(_read("check" if verb.startswith("check_") else "head"))
        text = "\n".join(_code("\n".join([*head, *self._define(["--#gate", *body], frozenset())])))
        self.lines: Final = self._constants(_with_meta(text)).splitlines()

    def _expand(self, text: str, knobs: frozenset[str] = frozenset()) -> list[str]:
        """The lines that this driver needs, with what they include; slow parts stay marked."""
        knobs |= self._knobs
        lines: list[str] = []
        # For each open `--#if`: whether its lines count, and whether one of its branches did.
        branches: list[tuple[bool, bool]] = []
        for line in text.splitlines():
            if not line.strip().startswith("--#"):
                if all(counts for counts, _ in branches):
                    lines.append(line)
                continue
            directive, *words = line.strip().removeprefix("--#").split()
            holds = bool(words) and not knobs.isdisjoint(words[0].split("|"))
            if directive == "if":
                branches.append((holds, holds))
            elif directive == "elif":
                _, chosen = branches.pop()
                branches.append((holds and not chosen, holds or chosen))
            elif directive == "else":
                _, chosen = branches.pop()
                branches.append((not chosen, True))
            elif directive == "end":
                branches.pop()
            elif not all(counts for counts, _ in branches):
                continue
            elif directive == "include":
                lines += self._expand(_read(words[0]), knobs)
            elif directive == "move":
                lines += self._move(*words)
            elif directive == "moves":
                why, was = words
                lines += self._one_move(why, was, _rows(why)[was], "moves")
            elif directive == "done":
                answer = " ".join(words)
                lines += [line.replace("ANSWER", answer) for line in self._expand(_read("done"), knobs)]
            else:
                lines.append(line.strip())
        return lines

    def _move(self, why: str, was: str | None = None) -> list[str]:
        """A move by the table."""
        rows = _rows(why)
        if was is not None:
            return self._one_move(why, was, rows[was])
        if len(rows) == 1:
            ((only, move),) = rows.items()
            return self._one_move(why, only, move)
        lines: list[str] = []
        for state, move in rows.items():
            lines += [f"{'elseif' if lines else 'if'} task.state == '{state}' then", *self._one_move(why, state, move)]
        return [*lines, "else", f"error('no {why} from ' .. task.state)", "end"]

    def _one_move(self, why: str, was: str, move: Move, text: str = "move") -> list[str]:
        """The text of move.lua, or moves.lua, for one row."""
        name = "NEW" if was == "new" else State(was).name
        knobs = {f"WAS_{name}", f"TO_{move.to.name}"}
        if why.startswith("update"):
            knobs.add("UPDATES")
        lines = self._expand(_read(text), frozenset(knobs))
        count = _count(move, f"{move.by}" if text == "move" else f"{move.by} * #ids")
        words = {"TO": f"'{move.to}'", "WAS": f"'{was}'", "EVENT": f"'{move.event}'", "COUNT": count}
        return [re.sub(r"\b(TO|WAS|EVENT|COUNT)\b", lambda found: words[found[0]], line) for line in lines]

    def _read_library(self) -> None:
        name = ""
        for part in _LIBRARY:
            for line in self._expand(_read(f"lib/{part}")):
                if found := re.match(r"local (?:function )?(\w+(?:, \w+)*)", line):
                    names = found[1].split(", ")
                    name = names[0]
                    self._library[name] = []
                    self._chunk_of.update(dict.fromkeys(names, name))
                if line.strip() and not (line.startswith("-- ") or line == "--"):
                    self._library[name].append(line)

    def _define(self, lines: list[str], known: frozenset[str]) -> list[str]:
        """The lines after the definitions that they need; slow parts define theirs where they begin."""
        needed = self._needed(_fast(lines), known)
        defined = [line for name, chunk in self._library.items() if name in needed for line in chunk]
        return self._fill([*defined, *lines], known | needed)

    def _fill(self, lines: list[str], known: frozenset[str]) -> list[str]:
        """Define what slow parts need in them."""
        filled: list[str] = []
        slow: list[str] = []
        depth = 0
        for line in lines:
            if line.startswith("--#slow"):
                depth += 1
                if depth == 1:
                    filled.append(line)
                    continue
            elif line == "--#fast":
                depth -= 1
                if not depth:
                    filled += [*self._define(slow, known), line]
                    slow = []
                    continue
            (slow if depth else filled).append(line)
        assert not depth, "a --#slow has no --#fast"
        return filled

    def _needed(self, lines: list[str], known: frozenset[str]) -> frozenset[str]:
        """The definitions of the library whose names these lines use, and what those use, and so on."""
        found: set[str] = set()
        unseen = lines
        while unseen:
            # What stands in quotes names keys and fields.
            code = re.sub(r"'[^']*'", "", "\n".join(_code("\n".join(unseen))))
            new = {self._chunk_of[word] for word in re.findall(r"\w+", code) if word in self._chunk_of} - found - known
            found |= new
            unseen = [line for name in new for line in _fast(self._library[name])]
        return frozenset(found)

    def _constants(self, text: str) -> str:
        newest = self._driver.signs[1] < 0
        delays, jitter, seed = self._settings.rests or ((), 0, 0)
        words = {
            "TAKES": str(TAKES),
            "MOST_ATTEMPTS": str(MOST_ATTEMPTS),
            "IDLE": str(IDLE),
            "BYTES": str(BYTES),
            "MOST": str(TAKES_WITH_LANES),
            "SOME": "50" if self._driver.lane is not None else "200",
            "LONGEST": str(LONGEST),
            "WATCHED": f"(ARGV[5] == '' and now + {WATCHED} or 1e18)",
            "NEWEST_FIRST": "true" if newest else "false",
            "GREATEST_FIRST": "true" if self._driver.signs[0] < 0 else "false",
            "POP": "'RPOP'" if newest else "'LPOP'",
            "UNPOP": "'RPUSH'" if newest else "'LPUSH'",
            "HEAD": "-1" if newest else "0",
            "PUTS": "true" if self._verb in ("put", "put_many", "put_keyed") else "false",
            "ENDED_BY_TTL": "false" if self._driver.ttl_spares_taken else "(dead and dead <= tonumber(first[2]))",
            "RESTS": "{" + ", ".join(map(str, delays)) + "}",
            "REST_JITTER": repr(jitter),
            "REST_SEED": str(seed),
            "UNUSED": str(self._settings.idle),
            "PARTS": _PARTS,
            "RANK_LUA": f"({self._driver.rank_lua})",
        }
        return re.sub(rf"\b({'|'.join(words)})\b", lambda found: words[found[0]], text)


def _fast(lines: list[str]) -> list[str]:
    """Those that are in no slow part."""
    fast: list[str] = []
    depth = 0
    for line in lines:
        if line.startswith("--#slow"):
            depth += 1
        elif line == "--#fast":
            depth -= 1
        elif not depth:
            fast.append(line)
    return fast


def _rows(why: str) -> dict[str, Move]:
    """The rows of the table for this reason, by the state from which they lead; `new`: from none."""
    return {state.value if state else "new": move for state, move in MOVES[why].items()}


def _count(move: Move, by: str) -> str:
    """How a move is counted."""
    counted: list[str] = []
    for call in move.counts:
        if call in ("take", "ack"):
            counted.append(f"META.{call}s = (META.{call}s or 0) + {by}")
        elif call != "put" or move.by < 0:
            counted.append(f"call('HINCRBY', M, 'calls:{call}', {by})")
    return " ".join(counted)


def _with_meta(text: str) -> str:
    """Read the fields of the meta hash that the script names, and write those that it counts."""
    counted = [f", '{field}', META.{field} or 0" for field in _COUNTERS if f"META.{field} =" in text]
    text = text.replace(", COUNTED", "".join(counted))
    fields = list(dict.fromkeys(re.findall(r"META\.(\w+)", text)))
    names = ", ".join(_GIVEN.get(field, f"'{field}'") for field in fields)
    text = re.sub(r"META\.(\w+)", lambda found: f"meta[{fields.index(found[1]) + 1}]", text)
    return re.sub(r"\bMETA\b", f"call('HMGET', M, {names})", text)
