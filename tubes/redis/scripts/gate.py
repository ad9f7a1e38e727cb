"""Add checks of the caller's rights to a script, before its first write, so that a refused script changes nothing.

How the checks work: a server refuses a command that its user may not run, even in the middle of a script, and earlier
writes of the script stay. So a script checks its later commands first, with `redis.acl_check_cmd` (Redis 7 and newer).
The check runs on every call, so it names as few commands as possible: commands before the first write, and the first
write itself, need no check, because refusing them changes nothing. Lines that seldom run ("slow parts") check their
commands themselves.

    --#gate           the place of the main check: of all commands after the first line that may write
    --#slow           lines that seldom run, which check at their beginning; if a write may come before, at the gate
    --#slow if COND   check at the gate if COND, which is true if the lines are going to run
    --#slow all       check all commands of the script
    --#slow ask NAME  check the commands of a function that is called later
    --#slow asked     other lines have checked
    --#fast           the end of a slow part

The order of commands is the order of the text: a line counts as later than all lines above it, even if they are in
other branches. A function counts at its calls.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Final

from tubes.redis.scripts.lines import GENERATED, Line

# Servers before Redis 7 have no check: there `tostring` replaces it, whose result counts as true.
_ASK: Final = "local acl = redis.acl_check_cmd or tostring"
#: The minimum number of arguments of each command, the key first. Redis after 8.6 returns false for fewer. Other
#: servers need none and are faster without. (If the number of keys is an argument, as in EVAL, they read too far.)
WORDS: Final = {
    name: count
    for count, names in {
        1: "DEL EXISTS HGETALL HKEYS HLEN HRANDFIELD HVALS LLEN LPOP PTTL RPOP SCAN SCARD SMEMBERS SRANDMEMBER TYPE "
        "UNLINK ZCARD ZPOPMIN",
        2: "HDEL HEXISTS HGET HMGET HSCAN HSTRLEN LINDEX LPOS LPUSH PEXPIRE RPUSH SADD SISMEMBER SREM SSCAN ZMSCORE "
        "ZREM ZSCAN ZSCORE",
        3: "HINCRBY HSET LRANGE LREM LSET ZADD ZCOUNT ZLEXCOUNT ZRANGE ZRANGEBYLEX ZRANGEBYSCORE",
        0: "TIME",
    }.items()
    for name in names.split()
}
#: Commands that write.
_WRITES: Final = re.compile(
    "DEL|HDEL|HINCRBY|HSET|LPOP|LPUSH|LREM|LSET|PEXPIRE|RPOP|RPUSH|SADD|SREM|UNLINK|ZADD|ZPOPMIN|ZREM"
)
_COMMAND: Final = re.compile(r"\b(p?)(?:call|many|all_of)\('([A-Z]+)'(, (?:M|S|KEYS\[1\]), ''\))?")
_WORD: Final = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_BLOCK: Final = {"if": 1, "do": 1, "function": 1, "repeat": 1, "end": -1, "until": -1}
#: Kinds of slow parts: parts that check for themselves; parts without a check outside of them; all.
_PLAIN: Final = ("",)
_INNER: Final = ("", "asked")
_ANY: Final = ("", "asked", "all", "if")
#: The beginning of a line that always runs its command.
_ALWAYS: Final = re.compile(r"\s*(?:local \w+ = )?call\(")
#: The beginning of a loop.
_LOOP: Final = re.compile(r"\s*(for|while|repeat)\b")


def commands(text: str) -> frozenset[str]:
    """Return all commands that a script may run."""
    return frozenset(found[2] for found in _COMMAND.finditer(text))


def add_checks(lines: list[Line]) -> list[Line]:
    """Return the lines with checks in place of the directives."""
    gate = _Gate(lines)
    made = [Line(_ASK, GENERATED)] if any(gate.checks.values()) else []
    for number, line in enumerate(lines):
        made += gate.checks.get(number, ())
        if not line.text.strip().startswith(("--#gate", "--#slow", "--#fast")):
            made.append(line)
    return made


def _check_lines(names: Iterable[str], condition: str = "", how: str = "return") -> list[Line]:
    """Return the lines that check commands. `how`: `return` or, in a function, `error` ends a refused script."""
    wanted = sorted(names)
    if not wanted:
        return []
    words = {name: ", ".join((f"'{name}'", "KEYS[1]", "''", "''")[: WORDS[name] + 1]) for name in wanted}
    lacks = " or ".join(f"not (acl('{name}') or acl({words[name]})) and '{name}'" for name in wanted)
    refusal = f"{how} (redis.error_reply('NOPERM the user has no permission to run ' .. lacks))"
    begin = f"if {condition} then" if condition else "do"
    made = [begin, f"local lacks = {lacks}", f"if lacks then {refusal} end", "end"]
    return [Line(text, GENERATED) for text in made]


class _Gate:
    """The checks of a script, by the line numbers of the directives that they replace."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines: Final = lines
        #: The last line of each slow part by its first line; the lines of each function by its name.
        self._parts: Final[dict[int, int]] = {}
        self._functions: Final[dict[str, range]] = {}
        self._read()
        # Lines of functions, which count at the calls.
        self._in_functions: Final = {number for span in self._functions.values() for number in span}
        self.checks: Final[dict[int, list[Line]]] = {}
        self._place_checks(next(number for number, line in enumerate(lines) if line.text.strip() == "--#gate"))

    def _read(self) -> None:
        starts: list[int] = []
        defined: list[tuple[str, int]] = []
        for number, (text, source) in enumerate(self._lines):
            file = source.partition(":")[0]
            if text.strip().startswith("--#slow"):
                starts.append(number)
            elif text.strip() == "--#fast":
                self._parts[starts.pop()] = number
            elif found := re.match(r"(?:local )?function (\w+)\(", text):
                defined.append((found[1], number))
            elif text == "end" and defined and self._lines[defined[-1][1]].source.partition(":")[0] == file:
                name, start = defined.pop()
                self._functions[name] = range(start, number + 1)
            elif source.startswith("lib/") and (found := re.match(r"local (\w+) = \w+$", text)):
                self._functions[found[1]] = range(number, number + 1)

    def _place_checks(self, gate: int) -> None:
        head = [self._lines[number].text for number in range(gate) if number not in self._in_functions]
        body = range(gate, len(self._lines))
        ran = {found[1] for text in head if (found := re.match(r"local \w+ = call\('(\w+)'", text))}
        write, always = self._first_write(body)
        needed = self._names(range(write + 1, len(self._lines)), _PLAIN)
        first = [name for name, _ in self._find_commands(range(write, write + 1), _PLAIN)]
        # The first write needs no check.
        free = first[:1] if _COMMAND.search(self._lines[write].text) or len(set(first)) == 1 else []
        needed |= set(first[len(free) :])
        if always:
            needed -= set(free)
        before = self._names(body) - needed
        conditional: dict[str, set[str]] = {}
        inner: dict[int, set[str]] = {}
        until = -1
        for number, end in sorted(self._parts.items()):
            kind = self._kind(number)
            if number < until or kind == "asked":
                continue
            until = end
            if kind == "all":
                inner[number] = self._names(range(len(self._lines)), _ANY)
                continue
            span = self._functions[kind[4:]] if kind.startswith("ask ") else range(number + 1, end)
            names = self._names(span, _INNER)
            writes = any(writes for _, writes in self._find_commands(span, _INNER))
            if kind.startswith("if "):
                conditional.setdefault(kind[3:], set()).update(names | (before if writes else set()))
                continue
            inner[number] = names
            if kind and not gate < number < write:
                needed |= names
            if writes and gate < number < write and number not in self._in_functions:
                inner[number] |= before
                # Lines after the part follow its writes, unless it returns.
                if not self._lines[end - 1].text.strip().startswith("return"):
                    later = range(end, write)
                    needed |= self._names(later, _PLAIN) - self._names(later)
        self.checks[gate] = _check_lines(needed - ran)
        for condition, names in conditional.items():
            self.checks[gate] += _check_lines(names - needed - ran, condition)
        for number, names in inner.items():
            self.checks[number] = _check_lines(names - needed - ran, how="error")

    def _kind(self, number: int) -> str:
        """Return the words of the directive of a slow part."""
        return self._lines[number].text.strip().removeprefix("--#slow").strip()

    def _first_write(self, body: range) -> tuple[int, bool]:
        """Find the first line that may write, or the start of the loop around it; and True if it always runs."""
        depth, until = 0, -1
        loops: list[tuple[int, int]] = []
        for number in body:
            text = self._lines[number].text
            until = max(until, self._parts.get(number, -1))
            if number > until and number not in self._in_functions:
                if any(writes for _, writes in self._find_commands(range(number, number + 1), _PLAIN)):
                    return (loops[0][0], False) if loops else (number, depth == 0 and bool(_ALWAYS.match(text)))
                if _LOOP.match(text):
                    loops.append((number, depth))
            if "--#" not in text:
                depth += _depth_of(text)
                loops = [loop for loop in loops if loop[1] < depth]
        return len(self._lines) - 1, False

    def _names(self, span: range, kinds: Collection[str] = ()) -> set[str]:
        """Return the commands of lines, as `_find_commands` finds them."""
        return {name for name, _ in self._find_commands(span, kinds)}

    def _find_commands(
        self, span: range, kinds: Collection[str] = (), seen: frozenset[str] | None = None
    ) -> Iterator[tuple[str, bool]]:
        """Yield the commands of lines and of the functions that they call, each with True if it may write.

        `kinds`: the kinds of slow parts to include.
        """
        called: set[str] = set()
        inside = span.start in self._in_functions
        until = -1
        for number in span:
            text, source = self._lines[number]
            if number in self._parts and number > until and self._kind(number).partition(" ")[0] not in kinds:
                until = self._parts[number]
            if number <= until or source == GENERATED or (number in self._in_functions and not inside):
                continue
            yield from _commands_in(text)
            called |= _words_in(text)
        known = seen or frozenset()
        for name in called & self._functions.keys() - known:
            yield from self._find_commands(self._functions[name], kinds, known | {name})


# Scripts have most of their lines in common.


@cache
def _commands_in(text: str) -> tuple[tuple[str, bool], ...]:
    """Return the commands that a line runs, each with True if it may write."""
    found = _COMMAND.findall(text)
    return tuple((name, bool(_WRITES.fullmatch(name)) and not nothing) for how, name, nothing in found if not how)


@cache
def _words_in(text: str) -> frozenset[str]:
    """Return the words of a line without its quoted strings, which name keys and fields."""
    return frozenset(_WORD.findall(_bare(text)))


@cache
def _depth_of(text: str) -> int:
    """Return the number of blocks that a line begins, minus the number of blocks that it ends."""
    return sum(_BLOCK.get(word, 0) for word in _WORD.findall(_bare(text)))


def _bare(text: str) -> str:
    return re.sub(r"'[^']*'", "", text)
