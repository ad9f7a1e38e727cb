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

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tubes.redis.scripts.flow import Block, Node, ScriptText
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
        2: "HDEL HEXISTS HGET HMGET HSCAN LINDEX LPOS LPUSH PEXPIRE RPUSH SADD SISMEMBER SREM SSCAN ZMSCORE ZREM "
        "ZSCAN ZSCORE",
        3: "HINCRBY HSET LRANGE LREM LSET ZADD ZCOUNT ZLEXCOUNT ZRANGE ZRANGEBYLEX ZRANGEBYSCORE",
        0: "TIME",
    }.items()
    for name in names.split()
}


class _State(NamedTuple):
    """What is known at one place: whether something may be written, by fast lines or slow ones; which commands ran."""

    written: bool
    slowly: bool
    ran: frozenset[str]


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
        flow = ScriptText(lines)
        self._functions: Final = flow.functions
        self._needed: set[str] = set()
        self._conditional: Final[dict[str, set[str]]] = {}
        self._parts: Final[dict[int, set[str]]] = {}
        # Slow lines where something may be written by then, one of the times that they run.
        self._late: Final[set[int]] = set()
        begun = self._run(flow.head, _State(written=False, slowly=False, ran=frozenset()), [])
        assert begun is not None
        self._ran: Final = begun.ran
        # All that the fast lines run.
        self._fast: Final = self._all(flow.script, conditional=False, plain=False)
        self._gather(flow.script)
        self._run(flow.script, begun, [])
        for line in self._late & self._parts.keys():
            self._needed |= self._parts.pop(line)
        everything = self._all(flow.script)
        #: The lines at the gate.
        self.first = _asking(self._needed)
        for condition, names in self._conditional.items():
            self.first += _asking(names - self._needed, condition)
        #: The lines where slow lines begin, by their number.
        self.inner: Final = {
            number: _asking((names or everything) - self._needed, how="error") for number, names in self._parts.items()
        }
        self.asks: Final = bool(self.first) or any(self.inner.values())

    def _all(self, block: Block, *, conditional: bool = True, plain: bool = True) -> set[str]:
        """All commands of a block; without slow parts of either kind, if it says so."""
        nodes = self._flat(block, conditional=conditional, plain=plain)
        return {node.word for node in nodes if node.kind == "command"} - self._ran

    def _flat(self, block: Block, *, conditional: bool = True, plain: bool = True) -> Iterator[Node]:
        """All commands and slow parts of a block."""
        for node in block:
            if node.kind in ("command", "slow"):
                yield node
            if node.kind != "slow" or (conditional if node.word.startswith("if") else plain):
                for inner in (self._functions[node.word],) if node.kind == "use" else node.blocks:
                    yield from self._flat(inner, conditional=conditional, plain=plain)

    def _writes(self, block: Block) -> bool:
        return any(node.writes for node in self._flat(block, conditional=False))

    def _gather(self, script: Block) -> None:
        """What is asked for at the gate under a condition."""
        for node in self._flat(script):
            if node.kind == "slow" and node.word.startswith("if"):
                names = self._conditional.setdefault(node.word[3:], set())
                names |= self._all(node.blocks[0], conditional=False)
                if self._writes(node.blocks[0]):
                    names |= self._fast

    def _run(self, block: Block, state: _State | None, ends: list[_State]) -> _State | None:
        """What is known after a block; None: nothing comes after it. `ends`: what was known where it was left."""
        for node in block:
            if state is None:
                return None
            own: list[_State] = []
            if node.kind == "command":
                state = self._command(node, state)
            elif node.kind == "return":
                ends.append(state)
                return None
            elif node.kind == "slow":
                state = self._slow(node, state)
            elif node.kind == "loop":
                # What stands at its end comes before its beginning.
                again = _merged([state, self._run(node.blocks[0], state, ends)])
                state = _merged([state, self._run(node.blocks[0], again, ends)])
            elif node.kind == "choice":
                after = [self._run(branch, state, ends) for branch in node.blocks]
                state = _merged(after if node.sure else [state, *after])
            elif node.kind == "use":
                state = _merged([self._run(self._functions[node.word], state, own), *own])
            else:
                state = _merged([state, self._run(node.blocks[0], state, own), *own])
        return state

    def _command(self, command: Node, state: _State) -> _State:
        if state.written and command.word not in state.ran:
            self._needed.add(command.word)
        ran = state.ran | {command.word} if command.sure else state.ran
        return _State(state.written or command.writes, state.slowly, ran)

    def _slow(self, part: Node, state: _State) -> _State:
        if part.word == "all":
            # Nothing: everything.
            self._parts[part.line] = set()
        elif not part.word or part.word.startswith("ask "):
            block = [Node("use", part.word[4:])] if part.word else part.blocks[0]
            names = self._all(block, conditional=False)
            if state.written or state.slowly:
                self._needed |= names - state.ran
                self._late.add(part.line)
            elif self._writes(block):
                self._parts[part.line] = names | self._fast
                return state._replace(slowly=not part.word)
        return state


def _merged(states: list[_State | None]) -> _State | None:
    """What is known where ways meet."""
    known = [state for state in states if state is not None]
    if not known:
        return None
    ran = known[0].ran.intersection(*(state.ran for state in known[1:]))
    return _State(any(state.written for state in known), any(state.slowly for state in known), ran)
