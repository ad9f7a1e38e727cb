"""What a script checks before it writes: that its caller may run what comes then, so that a refusal changes nothing.

A server refuses a command where its caller lacks the right to it, in the middle of a script too; what was written
before stays. So a script asks first (`redis.acl_check_cmd`, from Redis 7 on), for no more than it needs, since it asks
at every call: a command that is refused before anything is written does no harm.

    --#gate           where a script asks for what runs always
    --#slow           lines that seldom run ask where they begin; where something may be written by then, at the gate
    --#slow if COND   they ask at the gate, if COND, which says whether they are going to run
    --#slow all       they ask for whatever the script has
    --#slow ask NAME  they ask for what a function needs that is called later
    --#slow asked     somebody has asked for them
    --#fast           the end of such lines
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from tubes.redis.scripts.lines import MADE, Line

_READS: Final = frozenset(
    {"EXISTS", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HRANDFIELD", "HSCAN", "HVALS", "LINDEX", "LLEN"}
    | {"LPOS", "LRANGE", "PTTL", "SCAN", "SCARD", "SISMEMBER", "SMEMBERS", "SRANDMEMBER", "SSCAN", "TIME", "TYPE"}
    | {"ZCARD", "ZCOUNT", "ZLEXCOUNT", "ZMSCORE", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE", "ZSCAN", "ZSCORE"}
)
# Servers before Redis 7 cannot be asked: there a text, which counts as yes, stands for the answer.
_ASK: Final = "local acl = redis.acl_check_cmd or tostring"
#: How many words a command has at least besides its name, the key first. Redis after 8.6 says no where there are fewer;
#: others need none, and are quicker without. (Where the number of keys is a word, as in EVAL, those read too far.)
WORDS: Final = {
    name: count
    for count, names in {
        1: "DEL EXISTS HGETALL HKEYS HLEN HRANDFIELD HVALS LLEN LPOP PTTL RPOP SCAN SCARD SMEMBERS SRANDMEMBER TYPE "
        "UNLINK ZCARD ZPOPMIN",
        2: "HDEL HEXISTS HGET HMGET HSCAN LINDEX LPOS LPUSH PEXPIRE RPUSH SADD SISMEMBER SREM SSCAN ZMSCORE ZREM "
        "ZSCAN ZSCORE",
        3: "HINCRBY HSET LRANGE LREM LSET ZADD ZCOUNT ZLEXCOUNT ZRANGE ZRANGEBYLEX ZRANGEBYSCORE",
        0: "TIME",
    }.items()
    for name in names.split()
}
_COMMAND: Final = r"\b(?P<how>p?call|many|all_of)\('(?P<command>[A-Z]+)'(?P<nothing>, (?:M|S|KEYS\[1\]), ''\))?"
_TOKEN: Final = re.compile(rf"{_COMMAND}|'(?:[^'\\]|\\.)*'|(?<![.\w])(?P<word>[A-Za-z_]\w*)")


class _Command(NamedTuple):
    """A command that is run; `sure`: whenever its line is; `writes`: perhaps something."""

    name: str
    sure: bool
    writes: bool


class _Use(NamedTuple):
    """A function of the script is called."""

    name: str


class _Return(NamedTuple):
    """The end of a function, or of the script."""


class _Choice(NamedTuple):
    """One of these is run, or none unless `whole`."""

    branches: list[_Block]
    whole: bool


class _Loop(NamedTuple):
    """Run any number of times."""

    block: _Block


class _Apart(NamedTuple):
    """A function without a name: run perhaps, and its end ends nothing else."""

    block: _Block


@dataclass(eq=False)
class _Slow:
    """Lines that seldom run: when, and at which line they begin."""

    when: str
    line: int
    block: _Block


_Block: TypeAlias = "list[_Command | _Use | _Return | _Choice | _Loop | _Apart | _Slow]"


class _State(NamedTuple):
    """What is known at one place: whether something may be written, by fast lines or slow ones; which commands ran."""

    written: bool
    slowly: bool
    ran: frozenset[str]


def commands(text: str) -> frozenset[str]:
    """All commands that a script may run."""
    return frozenset(found["command"] for found in re.finditer(_COMMAND, text))


def gated(lines: list[Line]) -> list[Line]:
    """The lines with what they ask in place of their directives."""
    gate = _Gate([line.text.strip() if line.source != MADE else "" for line in lines])
    made = [Line(_ASK, MADE)] if gate.asks else []
    for number, line in enumerate(lines):
        directive = line.text.strip()
        if directive == "--#gate":
            made += (Line(text, MADE) for text in gate.first)
        elif directive.startswith("--#slow"):
            made += (Line(text, MADE) for text in gate.inner.get(number, []))
        elif directive != "--#fast":
            made.append(line)
    return made


def _asking(names: Iterable[str], condition: str = "", how: str = "return") -> list[str]:
    """The lines that ask for commands; `how` the script ends: functions cannot return for it."""
    wanted = sorted(names)
    if not wanted:
        return []
    words = {name: ", ".join((f"'{name}'", "KEYS[1]", "''", "''")[: WORDS[name] + 1]) for name in wanted}
    lacks = " or ".join(f"not (acl('{name}') or acl({words[name]})) and '{name}'" for name in wanted)
    refusal = f"{how} (redis.error_reply('NOPERM the user has no right to run ' .. lacks))"
    begin = f"if {condition} then" if condition else "do"
    return [begin, f"local lacks = {lacks}", f"if lacks then {refusal} end", "end"]


class _Gate:
    """What a script asks, and where."""

    def __init__(self, lines: list[str]) -> None:
        self._functions: Final[dict[str, _Block]] = {}
        self._tokens: Final = list(_tokens(lines))
        # A function may be called in the text of another one that stands before it.
        self._names: Final = {word.removeprefix("def ") for word, _ in self._tokens if word.startswith("def ")}
        self._at = 0
        head = self._block(("--#gate",))
        self._at += 1
        script = self._block(("",))
        self._needed: set[str] = set()
        self._conditional: Final[dict[str, set[str]]] = {}
        self._parts: Final[dict[int, set[str]]] = {}
        # Slow lines where something may be written by then, one of the times that they run.
        self._late: Final[set[int]] = set()
        begun = self._run(head, _State(written=False, slowly=False, ran=frozenset()), [])
        assert begun is not None
        self._ran: Final = begun.ran
        # All that the fast lines run.
        self._fast: Final = self._all(script, conditional=False, plain=False)
        self._gather(script)
        self._run(script, begun, [])
        for line in self._late & self._parts.keys():
            self._needed |= self._parts.pop(line)
        everything = self._all(script)
        #: The lines at the gate.
        self.first = _asking(self._needed)
        for condition, names in self._conditional.items():
            self.first += _asking(names - self._needed, condition)
        #: The lines where slow lines begin, by their number.
        self.inner: Final = {
            number: _asking((names or everything) - self._needed, how="error") for number, names in self._parts.items()
        }
        self.asks: Final = bool(self.first) or any(self.inner.values())

    # -- reading -------------------------------------------------------------------------------------------------------

    def _next(self) -> tuple[str, _Command | _Slow | None]:
        self._at += 1
        return self._tokens[self._at - 1]

    def _block(self, ends: tuple[str, ...]) -> _Block:
        """What comes until one of these words, which is left to be read."""
        block: _Block = []
        while self._tokens[self._at][0] not in ends:
            word, found = self._next()
            if isinstance(found, _Slow):
                found.block += self._block(("--#fast",))
                self._at += 1
                block.append(found)
            elif found is not None:
                block.append(found)
            elif word in ("for", "while"):
                block += self._block(("do",))
                self._at += 1
                block.append(_Loop(self._closed()))
            elif word == "repeat":
                block.append(_Loop(self._block(("until",))))
            elif word == "do":
                block += self._closed()
            elif word == "if":
                block += self._block(("then",))
                block.append(self._choice())
            elif word == "function":
                name, _ = self._tokens[self._at]
                # A function without a name has its parameters in a line that goes on.
                named = name.startswith("def ")
                self._at += named
                body = self._closed()
                if named:
                    self._functions[name[4:]] = body
                else:
                    block.append(_Apart(body))
            elif word == "return" or word == "error":
                block += self._block((*ends, "\n"))
                block.append(_Return())
            elif word.startswith("alias "):
                _, name, other = word.split()
                if other in self._functions:
                    self._functions[name] = self._functions[other]
            elif word in self._names or word in self._functions:
                block.append(_Use(word))
        return block

    def _closed(self) -> _Block:
        block = self._block(("end",))
        self._at += 1
        return block

    def _choice(self) -> _Choice:
        branches: list[_Block] = []
        whole = False
        while True:
            word, _ = self._next()
            if word == "end":
                return _Choice(branches, whole)
            whole = word == "else"
            branches.append(self._block(("elseif", "else", "end")))

    # -- what may happen -----------------------------------------------------------------------------------------------

    def _all(self, block: _Block, *, conditional: bool = True, plain: bool = True) -> set[str]:
        """All commands of a block; without slow parts of either kind, if it says so."""
        found: set[str] = set()
        for node in self._flat(block, conditional=conditional, plain=plain):
            if isinstance(node, _Command):
                found.add(node.name)
        return found - self._ran

    def _flat(self, block: _Block, *, conditional: bool = True, plain: bool = True) -> Iterator[_Command | _Slow]:
        for node in block:
            if isinstance(node, _Command):
                yield node
                continue
            if isinstance(node, _Slow):
                yield node
                if not (conditional if node.when.startswith("if") else plain):
                    continue
            for inner in self._inside(node):
                yield from self._flat(inner, conditional=conditional, plain=plain)

    def _inside(self, node: _Use | _Return | _Choice | _Loop | _Apart | _Slow) -> list[_Block]:
        if isinstance(node, _Use):
            return [self._functions[node.name]]
        if isinstance(node, _Choice):
            return node.branches
        return [] if isinstance(node, _Return) else [node.block]

    def _writes(self, block: _Block) -> bool:
        return any(isinstance(node, _Command) and node.writes for node in self._flat(block, conditional=False))

    def _gather(self, script: _Block) -> None:
        """What is asked for at the gate under a condition."""
        for node in self._flat(script):
            if isinstance(node, _Slow) and node.when.startswith("if"):
                names = self._conditional.setdefault(node.when[3:], set())
                names |= self._all(node.block, conditional=False)
                if self._writes(node.block):
                    names |= self._fast

    def _run(self, block: _Block, state: _State | None, ends: list[_State]) -> _State | None:
        """What is known after a block; None: nothing comes after it. `ends`: what was known where it was left."""
        for node in block:
            if state is None:
                return None
            if isinstance(node, _Command):
                state = self._command(node, state)
            elif isinstance(node, _Return):
                ends.append(state)
                return None
            elif isinstance(node, _Slow):
                state = self._slow(node, state)
            elif isinstance(node, _Loop):
                # What stands at its end comes before its beginning.
                again = _merged([state, self._run(node.block, state, ends)])
                state = _merged([state, self._run(node.block, again, ends)])
            elif isinstance(node, _Choice):
                after = [self._run(branch, state, ends) for branch in node.branches]
                state = _merged(after if node.whole else [state, *after])
            else:
                own: list[_State] = []
                (body,) = self._inside(node)
                after = [self._run(body, state, own)]
                state = _merged([*after, *own] if isinstance(node, _Use) else [state, *after, *own])
        return state

    def _command(self, command: _Command, state: _State) -> _State:
        if state.written and command.name not in state.ran:
            self._needed.add(command.name)
        ran = state.ran | {command.name} if command.sure else state.ran
        return _State(state.written or command.writes, state.slowly, ran)

    def _slow(self, part: _Slow, state: _State) -> _State:
        if part.when == "all":
            # Nothing: everything.
            self._parts[part.line] = set()
        elif not part.when or part.when.startswith("ask "):
            block: _Block = [_Use(part.when[4:])] if part.when else part.block
            names = self._all(block, conditional=False)
            if state.written or state.slowly:
                self._needed |= names - state.ran
                self._late.add(part.line)
            elif self._writes(block):
                self._parts[part.line] = names | self._fast
                return state._replace(slowly=not part.when)
        return state


def _merged(states: list[_State | None]) -> _State | None:
    """What is known where ways meet."""
    known = [state for state in states if state is not None]
    if not known:
        return None
    ran = known[0].ran.intersection(*(state.ran for state in known[1:]))
    return _State(any(state.written for state in known), any(state.slowly for state in known), ran)


def _tokens(lines: list[str]) -> Iterator[tuple[str, _Command | _Slow | None]]:
    """The words of a script that say what may run, each with what it stands for; a line's end is one too."""
    for number, line in enumerate(lines):
        if line.startswith("--#"):
            slow = line.startswith("--#slow")
            yield ("--#slow", _Slow(line.removeprefix("--#slow").strip(), number, [])) if slow else (line, None)
            continue
        if alias := re.fullmatch(r"local (\w+) = (\w+)", line):
            yield f"alias {alias[1]} {alias[2]}", None
            yield "\n", None
            continue
        definition = re.match(r"local function (\w+)", line)
        sure = True
        for found in _TOKEN.finditer(line):
            word = found["word"]
            if found["command"]:
                name = found["command"]
                writes = name not in _READS and not found["nothing"]
                if found["how"] != "pcall":
                    yield name, _Command(name, sure, writes)
            elif word in ("and", "or", "elseif"):
                sure = False
                yield word, None
            elif word == "function":
                yield word, None
                if definition:
                    yield f"def {definition[1]}", None
            elif word and not (definition and word == definition[1]):
                yield word, None
        yield "\n", None
    yield "", None
