"""Reads what a script may run, and in which order: its commands, calls, ways that part and meet, and slow parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

_COMMAND: Final = r"\b(?P<how>p?call|many|all_of)\('(?P<command>[A-Z]+)'(?P<nothing>, (?:M|S|KEYS\[1\]), ''\))?"
_TOKEN: Final = re.compile(rf"{_COMMAND}|'(?:[^'\\]|\\.)*'|(?<![.\w])(?P<word>[A-Za-z_]\w*)")
_READS: Final = frozenset(
    {"EXISTS", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HRANDFIELD", "HSCAN", "HVALS", "LINDEX", "LLEN"}
    | {"LPOS", "LRANGE", "PTTL", "SCAN", "SCARD", "SISMEMBER", "SMEMBERS", "SRANDMEMBER", "SSCAN", "TIME", "TYPE"}
    | {"ZCARD", "ZCOUNT", "ZLEXCOUNT", "ZMSCORE", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE", "ZSCAN", "ZSCORE"}
)


class Node(NamedTuple):
    """A command, or one of what holds commands.

    A `choice` runs one of its blocks, a `loop` its block any number of times. A function that has no name is `apart`:
    it runs perhaps, and its end ends nothing else. A `use` is the call of a function, a `return` the end of one.
    """

    kind: Literal["command", "use", "return", "choice", "loop", "apart", "slow"]
    #: The command; the function; when slow lines run.
    word: str = ""
    #: Of a command, that it runs whenever its line does; of a choice, that one of its blocks does.
    sure: bool = False
    #: Of a command, that it may write something.
    writes: bool = False
    blocks: tuple[Block, ...] = ()
    #: The line of a slow part.
    line: int = 0


Block: TypeAlias = "list[Node]"


def commands(text: str) -> frozenset[str]:
    """All commands that a script may run."""
    return frozenset(found["command"] for found in re.finditer(_COMMAND, text))


class ScriptText:
    """What a script runs before `--#gate`, after it, and in its functions."""

    def __init__(self, lines: list[str]) -> None:
        self.functions: Final[dict[str, Block]] = {}
        self._tokens: Final = list(_tokens(lines))
        # A function may be called in the text of another one that stands before it.
        self._names: Final = {word.removeprefix("def ") for word, _ in self._tokens if word.startswith("def ")}
        self._at = 0
        self.head: Final = self._closed("--#gate")
        self.script: Final = self._block(("",))

    def _block(self, ends: tuple[str, ...]) -> Block:
        """What comes until one of these words, which is left to be read."""
        block: Block = []
        while self._tokens[self._at][0] not in ends:
            word, found = self._tokens[self._at]
            self._at += 1
            if found is not None and found.kind == "slow":
                block.append(found._replace(blocks=(self._closed("--#fast"),)))
            elif found is not None:
                block.append(found)
            elif word in ("for", "while"):
                block += self._closed("do")
                block.append(Node("loop", blocks=(self._closed(),)))
            elif word == "repeat":
                block.append(Node("loop", blocks=(self._block(("until",)),)))
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
                    self.functions[name[4:]] = body
                else:
                    block.append(Node("apart", blocks=(body,)))
            elif word in ("return", "error"):
                block += self._block((*ends, "\n"))
                block.append(Node("return"))
            elif word.startswith("alias "):
                _, name, other = word.split()
                if other in self.functions:
                    self.functions[name] = self.functions[other]
            elif word in self._names or word in self.functions:
                block.append(Node("use", word))
        return block

    def _closed(self, end: str = "end") -> Block:
        block = self._block((end,))
        self._at += 1
        return block

    def _choice(self) -> Node:
        blocks: list[Block] = []
        whole = False
        while True:
            word, _ = self._tokens[self._at]
            self._at += 1
            if word == "end":
                return Node("choice", sure=whole, blocks=tuple(blocks))
            whole = word == "else"
            blocks.append(self._block(("elseif", "else", "end")))


def _tokens(lines: list[str]) -> Iterator[tuple[str, Node | None]]:
    """The words of a script that say what may run, each with what it stands for; a line's end is one too."""
    for number, line in enumerate(lines):
        if line.startswith("--#slow"):
            yield "--#slow", Node("slow", line.removeprefix("--#slow").strip(), line=number)
            continue
        if line.startswith("--#"):
            yield line, None
            continue
        if alias := re.fullmatch(r"local (\w+) = (\w+)", line):
            yield f"alias {alias[1]} {alias[2]}", None
            yield "\n", None
            continue
        definition = re.match(r"local function (\w+)", line)
        sure = True
        for found in _TOKEN.finditer(line):
            word, name = found["word"], found["command"]
            if name and found["how"] != "pcall":
                yield name, Node("command", name, sure, writes=name not in _READS and not found["nothing"])
            elif word == "function":
                yield word, None
                if definition:
                    yield f"def {definition[1]}", None
            elif word and not (definition and word == definition[1]):
                sure = sure and word not in ("and", "or", "elseif")
                yield word, None
        yield "\n", None
    yield "", None
