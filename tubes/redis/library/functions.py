"""The functions of the library, as `drivers/lua/functions.lua` lists them: their replies and their traits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from types import NoneType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from tubes.redis.library.replies import ErrorReply

if TYPE_CHECKING:
    from tubes.drivers.driver import Driver

_ROW: Final = re.compile(r"^  \{ '(\w+)', ([\w.]+), '([\w ]*)', '([\w ]*)', '[\w ]*' \},$", re.MULTILINE)
_KINDS: Final = {"none": NoneType, "number": int, "bytes": bytes, "list": list}


class Function(NamedTuple):
    """A function of the library."""

    name: str
    #: The possible types of its reply.
    reply_types: frozenset[type]
    traits: frozenset[str]

    @property
    def commands(self) -> frozenset[str]:
        """The commands that it may run, in addition to those of every call."""
        return commands_of(self.name)

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags with which a server registers it."""
        if "reads" in self.traits:
            return ("no-writes", "allow-oom")
        return () if "adds" in self.traits else ("allow-oom",)


@cache
def _manifest() -> str:
    return (files("tubes.drivers") / "lua" / "functions.lua").read_text()


def _read() -> dict[str, Function]:
    return {
        name: Function(
            name, frozenset({ErrorReply, *map(_KINDS.__getitem__, kinds.split())}), frozenset(traits.split())
        )
        for name, _, kinds, traits in _ROW.findall(_manifest())
    }


FUNCTIONS: Final = _read()
#: The commands that are checked when a tube is opened, by their least number of arguments.
COMMANDS: Final = {name: int(count) for name, count in re.findall(r"\b([A-Z]+) = (\d)", _manifest())}
#: Those among them that every session needs.
NEEDED: Final = frozenset(re.findall(r"\b([A-Z]+) = true", _manifest()))

#: The version of the layout of all keys. The meta hash names it, and a tube with another one is refused.
LAYOUT: Final = 2
#: The score of a taken task: the number of its session times this, plus the number of its take.
TAKES: Final = 1 << 26
#: The maximum of the attempts counter.
MOST_ATTEMPTS: Final = (1 << 20) - 1
#: Microseconds for which a process stays registered as waiting. It registers again before they end.
WATCHED: Final = 10_000_000
#: Milliseconds after which an unused stream expires: a week.
IDLE: Final = 7 * 24 * 3600 * 1000
#: Size limit of a reply in bytes of tasks. The next call returns the others.
BYTES: Final = 2_000_000
#: Maximum tasks per call if lanes are throttled: each costs ten times as much as usual.
TAKES_WITH_LANES: Final = 100


def order_of(driver: Driver) -> Literal["list", "set", "lanes"]:
    """Return how a server keeps the ready tasks of a driver in order, as in `Plan.of`."""
    if driver.lane is not None:
        return "lanes"
    return "list" if driver.rank is None and not driver.signs[0] else "set"


def is_timed(driver: Driver) -> bool:
    """Return True if tasks may become due, as in `Plan.of`."""
    return not driver.options.isdisjoint({"ttl", "ttr", "delay"})


# -- rights ------------------------------------------------------------------------------------------------------------

_DEFINITION: Final = re.compile(r"(?ms)^(?:local )?function ([\w.]+)(.*?)^end$|^(\w+\.\w+) = ([^\n]*)")
_COMMAND: Final = re.compile(r"\b(?:p?call|Lists\.\w+)\((.*?),")
_NAME: Final = re.compile(r"require\('(\w+)'\)\.(\w+)|(?:order|index)\.(\w+)|\b([A-Z]\w+)\.(\w+)|\b(\w+)\b")
_ORDERS: Final = ("List", "Set", "Order")
_POPS: Final = ("pop", "pop_some", "unpop", "has_ready")


@cache
def _definitions() -> dict[str, str]:
    """Return the text of each Lua function of all files, by its name: `Engine.put`, or `engine.move` if it is local."""
    found: dict[str, str] = {}
    for file in (files("tubes.drivers") / "lua").iterdir():
        if not file.name.endswith(".lua"):
            continue
        text = re.sub(r"--.*", "", file.read_text())
        for name, body, alias, value in _DEFINITION.findall(text):
            full_name = alias or (name if "." in name else f"{file.name.removesuffix('.lua')}.{name}")
            found[full_name] = body or value.partition("\n")[0]
    return found


def _used_in(name: str) -> Iterator[str]:
    """Yield the names of the functions that a function may call."""
    module = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.partition(".")[0]).lower()
    module = {"list": "ready", "set": "ready", "order": "lanes"}.get(module, module)
    for required, its, ordered, owner, member, local in _NAME.findall(_definitions()[name]):
        if required == "functions":  # A relay calls `put_keyed`, whose rights its caller checks.
            continue
        if required:
            yield "".join(part.title() for part in required.split("_")) + f".{its}"
        elif owner:
            yield f"{owner}.{member}"
        elif ordered:
            yield from (f"{order}.{ordered}" for order in _ORDERS)
            if ordered in _POPS:
                yield "ready.add_pops"
        else:
            yield f"{module}.{local}"


@cache
def commands_of(name: str) -> frozenset[str]:
    """Return the commands that a function may run with any arguments: those in its text and in all that it calls."""
    act = next(act for row, act, *_ in _ROW.findall(_manifest()) if row == name)
    seen, waiting, commands = {act}, [act], set[str]()
    while waiting:
        current = waiting.pop()
        if current not in _definitions():
            continue
        for words in _COMMAND.findall(_definitions()[current]):
            commands.update(re.findall(r"'([A-Z]+)'", words))
        new = {*_used_in(current)} - seen
        seen |= new
        waiting += new
    return frozenset(commands)
