"""What a script checks before it writes: that its caller may run what comes then, so that a refusal changes nothing.

A server refuses a command where its caller lacks the right to it, in the middle of a script too; what was written
before stays. So a script asks first (`redis.acl_check_cmd`, from Redis 7 on), for no more than it needs, since it asks
at every call: what comes before the first command that writes, and that command itself, are refused without harm.

    --#gate           where a script asks for what comes after the first line that may write
    --#slow           lines that seldom run ask where they begin; where something may be written by then, at the gate
    --#slow if COND   they ask at the gate, if COND, which says whether they are going to run
    --#slow all       they ask for whatever the script has
    --#slow ask NAME  they ask for what a function needs that is called later
    --#slow asked     somebody has asked for them
    --#fast           the end of such lines

What comes after what is read off the text: a line counts as later than those above it, wherever the ways between them
lead, and a function where it is called.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Final

from tubes.redis.scripts.lines import MADE, Line

# Servers before Redis 7 cannot be asked: there a text, which counts as yes, stands for the answer.
_ASK: Final = "local acl = redis.acl_check_cmd or tostring"
#: How many words a command has at least besides its name, the key first. Redis after 8.6 says no where there are fewer;
#: others need none, and are quicker without. (Where the number of keys is a word, as in EVAL, those read too far.)
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
#: Those of them that write.
_WRITES: Final = re.compile(
    "DEL|HDEL|HINCRBY|HSET|LPOP|LPUSH|LREM|LSET|PEXPIRE|RPOP|RPUSH|SADD|SREM|UNLINK|ZADD|ZPOPMIN|ZREM"
)
_COMMAND: Final = re.compile(r"\b(p?)(?:call|many|all_of)\('([A-Z]+)'(, (?:M|S|KEYS\[1\]), ''\))?")
_WORD: Final = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_BLOCK: Final = {"if": 1, "do": 1, "function": 1, "repeat": 1, "end": -1, "until": -1}
#: Kinds of slow parts: those that ask for themselves, those that nobody asks for outside of them, all.
_PLAIN: Final = ("",)
_WITHIN: Final = ("", "asked")
_ANY: Final = ("", "asked", "all", "if")
#: How a line begins whose command runs whenever the line does.
_SURELY: Final = re.compile(r"\s*(?:local \w+ = )?call\(")
#: How lines begin that come again.
_LOOP: Final = re.compile(r"\s*(for|while|repeat)\b")


def commands(text: str) -> frozenset[str]:
    """All commands that a script may run."""
    return frozenset(found[2] for found in _COMMAND.finditer(text))


def gated(lines: list[Line]) -> list[Line]:
    """The lines with what they ask in place of their directives."""
    gate = _Gate(lines)
    made = [Line(_ASK, MADE)] if any(gate.asked.values()) else []
    for number, line in enumerate(lines):
        made += gate.asked.get(number, ())
        if not line.text.strip().startswith(("--#gate", "--#slow", "--#fast")):
            made.append(line)
    return made


def _asking(names: Iterable[str], condition: str = "", how: str = "return") -> list[Line]:
    """The lines that ask for commands; `how` the script ends: functions cannot return for it."""
    wanted = sorted(names)
    if not wanted:
        return []
    words = {name: ", ".join((f"'{name}'", "KEYS[1]", "''", "''")[: WORDS[name] + 1]) for name in wanted}
    lacks = " or ".join(f"not (acl('{name}') or acl({words[name]})) and '{name}'" for name in wanted)
    refusal = f"{how} (redis.error_reply('NOPERM the user has no permission to run ' .. lacks))"
    begin = f"if {condition} then" if condition else "do"
    made = [begin, f"local lacks = {lacks}", f"if lacks then {refusal} end", "end"]
    return [Line(text, MADE) for text in made]


class _Gate:
    """What a script asks, by the numbers of the directives in whose place it does."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines: Final = lines
        #: Where slow parts end, by where they begin; the lines of functions, by their names.
        self._parts: Final[dict[int, int]] = {}
        self._functions: Final[dict[str, range]] = {}
        self._read()
        # What stands in a function counts where that is called.
        self._apart: Final = {number for those in self._functions.values() for number in those}
        self.asked: Final[dict[int, list[Line]]] = {}
        self._ask(next(number for number, line in enumerate(lines) if line.text.strip() == "--#gate"))

    def _read(self) -> None:
        begun: list[int] = []
        defined: list[tuple[str, int]] = []
        for number, (text, source) in enumerate(self._lines):
            file = source.partition(":")[0]
            if text.strip().startswith("--#slow"):
                begun.append(number)
            elif text.strip() == "--#fast":
                self._parts[begun.pop()] = number
            elif found := re.match(r"(?:local )?function (\w+)\(", text):
                defined.append((found[1], number))
            elif text == "end" and defined and self._lines[defined[-1][1]].source.partition(":")[0] == file:
                name, start = defined.pop()
                self._functions[name] = range(start, number + 1)
            elif source.startswith("lib/") and (found := re.match(r"local (\w+) = \w+$", text)):
                self._functions[found[1]] = range(number, number + 1)

    def _ask(self, gate: int) -> None:
        head = [self._lines[number].text for number in range(gate) if number not in self._apart]
        body = range(gate, len(self._lines))
        ran = {found[1] for text in head if (found := re.match(r"local \w+ = call\('(\w+)'", text))}
        wrote, always = self._first_write(body)
        needed = self._names(range(wrote + 1, len(self._lines)), _PLAIN)
        first = [name for name, _ in self._runs(range(wrote, wrote + 1), _PLAIN)]
        # The first command that writes is refused without harm.
        free = first[:1] if _COMMAND.search(self._lines[wrote].text) or len(set(first)) == 1 else []
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
            names = self._names(span, _WITHIN)
            writes = any(writes for _, writes in self._runs(span, _WITHIN))
            if kind.startswith("if "):
                conditional.setdefault(kind[3:], set()).update(names | (before if writes else set()))
                continue
            inner[number] = names
            if kind and not gate < number < wrote:
                needed |= names
            if writes and gate < number < wrote and number not in self._apart:
                inner[number] |= before
                if not self._lines[end - 1].text.strip().startswith("return"):  # What comes then is late.
                    behind = range(end, wrote)
                    needed |= self._names(behind, _PLAIN) - self._names(behind)
        self.asked[gate] = _asking(needed - ran)
        for condition, names in conditional.items():
            self.asked[gate] += _asking(names - needed - ran, condition)
        for number, names in inner.items():
            self.asked[number] = _asking(names - needed - ran, how="error")

    def _kind(self, number: int) -> str:
        """When a slow part runs, as its directive says."""
        return self._lines[number].text.strip().removeprefix("--#slow").strip()

    def _first_write(self, body: range) -> tuple[int, bool]:
        """The first line that may write, and whether it always runs; of a loop around it the loop's first line."""
        depth, until = 0, -1
        loops: list[tuple[int, int]] = []
        for number in body:
            text = self._lines[number].text
            until = max(until, self._parts.get(number, -1))
            if number > until and number not in self._apart:
                if any(writes for _, writes in self._runs(range(number, number + 1), _PLAIN)):
                    return (loops[0][0], False) if loops else (number, depth == 0 and bool(_SURELY.match(text)))
                if _LOOP.match(text):
                    loops.append((number, depth))
            if "--#" not in text:
                depth += _depth_of(text)
                loops = [loop for loop in loops if loop[1] < depth]
        return len(self._lines) - 1, False

    def _names(self, span: range, those: Collection[str] = ()) -> set[str]:
        """The commands of lines, as `_runs` finds them."""
        return {name for name, _ in self._runs(span, those)}

    def _runs(
        self, span: range, those: Collection[str] = (), seen: frozenset[str] | None = None
    ) -> Iterator[tuple[str, bool]]:
        """The commands of lines and of the functions that they call, and whether each may write something.

        `those`: with those of slow parts of these kinds.
        """
        called: set[str] = set()
        inside = span.start in self._apart
        until = -1
        for number in span:
            text, source = self._lines[number]
            if number in self._parts and number > until and self._kind(number).partition(" ")[0] not in those:
                until = self._parts[number]
            if number <= until or source == MADE or (number in self._apart and not inside):
                continue
            yield from _commands_in(text)
            called |= _words_in(text)
        known = seen or frozenset()
        for name in called & self._functions.keys() - known:
            yield from self._runs(self._functions[name], those, known | {name})


# Scripts have most of their lines in common.


@cache
def _commands_in(text: str) -> tuple[tuple[str, bool], ...]:
    """The commands that a line runs, and whether each may write something."""
    found = _COMMAND.findall(text)
    return tuple((name, bool(_WRITES.fullmatch(name)) and not nothing) for how, name, nothing in found if not how)


@cache
def _words_in(text: str) -> frozenset[str]:
    """The words of a line, without what stands in quotes: that names keys and fields."""
    return frozenset(_WORD.findall(_bare(text)))


@cache
def _depth_of(text: str) -> int:
    """How many blocks a line begins, less those that it ends."""
    return sum(_BLOCK.get(word, 0) for word in _WORD.findall(_bare(text)))


def _bare(text: str) -> str:
    return re.sub(r"'[^']*'", "", text)
