"""Every script that a server may get: each name in it is one that it defines, or one that the server gives it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import pytest

from tubes import Driver
from tubes.drivers import Ranked, fifo, fifottl, utube, utubettl
from tubes.redis.scripts.assembly import _PLAIN, TubeSettings, script
from tubes.redis.scripts.lines import LUA
from tubes.redis.scripts.replies import ANY

GIVEN = {
    *(b"redis", b"KEYS", b"ARGV", b"struct", b"cmsgpack", b"cjson", b"string", b"table", b"math"),
    *(b"tonumber", b"tostring", b"ipairs", b"pairs", b"unpack", b"error", b"pcall", b"type"),
}
GETGLOBAL, SETGLOBAL = 5, 7
RESTS = TubeSettings(((500_000,), 0.1, 7))
VERBS = sorted(path.name.removesuffix(".lua") for path in (LUA / "verbs").iterdir())


def newest(task: Ranked) -> float:
    return -task.id


DRIVERS = {
    "fifo": (fifo.Fifo, TubeSettings()),
    "bounded": (fifo.Fifo, TubeSettings(bounded=True)),
    "lifo": (Driver("lifo", order="-id"), TubeSettings()),
    "fifottl": (fifottl.FifoTtl, TubeSettings()),
    "fifottl with a backoff": (fifottl.FifoTtl, RESTS),
    "utube": (utube.Utube, TubeSettings()),
    "utubettl": (utubettl.UtubeTtl, TubeSettings()),
    "utubettl with a backoff": (utubettl.UtubeTtl, RESTS),
    "rank": (Driver("rank", options={"pri", "ttl"}, rank=newest, rank_lua="-id"), TubeSettings()),
    "lanes by rank": (
        Driver("lanes-by-rank", options={"lane"}, lane="lane", rank=newest, rank_lua="-id"),
        TubeSettings(),
    ),
}


class Reader:
    """Reads what Lua 5.1 has compiled: the names of the globals that a function and those in it use."""

    def __init__(self, compiled: bytes) -> None:
        self.compiled = compiled
        self.at = 12  # After the header.

    def number(self, size: int) -> int:
        self.at += size
        return int.from_bytes(self.compiled[self.at - size : self.at], "little")

    def text(self) -> bytes:
        size = self.number(8)
        self.at += size
        return self.compiled[self.at - size : self.at - 1] if size else b""

    def constant(self) -> bytes | None:
        kind = self.number(1)
        if kind == 4:
            return self.text()
        self.at += {0: 0, 1: 1, 3: 8}[kind]
        return None

    def globals(self) -> Iterator[bytes]:
        self.text()
        self.at += 12  # Its lines and sizes.
        instructions = [self.number(4) for _ in range(self.number(4))]
        constants = [self.constant() for _ in range(self.number(4))]
        for instruction in instructions:
            if instruction & 63 in (GETGLOBAL, SETGLOBAL):
                name = constants[instruction >> 14]
                assert name is not None
                yield name
        for _ in range(self.number(4)):
            yield from self.globals()
        self.at += 4 * self.number(4)  # The lines of its instructions.
        for _ in range(self.number(4)):  # Its locals, and where they begin and end.
            self.text()
            self.at += 8
        for _ in range(self.number(4)):
            self.text()


class Lua(NamedTuple):
    compile: Any

    def globals(self, text: bytes) -> set[bytes]:
        compiled: bytes = self.compile(text)
        return set(Reader(compiled).globals())


@pytest.fixture(scope="module")
def lua() -> Lua:
    lua51: Any = import_module("lupa.lua51")  # It has no types.
    runtime = lua51.LuaRuntime(encoding=None)
    return Lua(runtime.eval(b"function(text) return string.dump(assert(loadstring(text))) end"))


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_script_may_answer_is_known(verb: str) -> None:
    assert script(verb, fifottl.FifoTtl).answers != ANY


def test_globals_are_found_wherever_they_are_used(lua: Lua) -> None:
    text = b"local a = b; local function f() c = a; return function() return d.e(a) end end; return f"
    assert lua.globals(text) == {b"b", b"c", b"d"}


@pytest.mark.parametrize("name", DRIVERS)
def test_a_script_defines_what_it_names(lua: Lua, name: str) -> None:
    driver, settings = DRIVERS[name]
    unknown = {
        verb: names
        for verb in VERBS
        if (verb in _PLAIN or driver.lane or verb not in ("pace", "settle", "utubes", "check_lanes"))
        and (names := lua.globals(script(verb, driver, settings).text) - GIVEN)
    }
    assert unknown == {}


@pytest.mark.parametrize("name", DRIVERS)
def test_a_script_has_each_function_once(name: str) -> None:
    driver, settings = DRIVERS[name]
    for verb in VERBS:
        if driver.lane or verb not in ("pace", "settle", "utubes", "check_lanes"):
            defined = Counter(re.findall(rb"^local function (\w+)", script(verb, driver, settings).text, re.MULTILINE))
            assert [found for found, times in defined.items() if times > 1] == [], verb
