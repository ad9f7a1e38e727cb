"""The Lua library: it compiles, a server registers all its functions, and errors name their source."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.resources import files
from typing import Any

import pytest
import redis

import tubes
from tests.support.internals import port_of
from tubes.drivers.moves import MOVES
from tubes.drivers.options import LONGEST
from tubes.redis.library import functions, text
from tubes.redis.library.functions import FUNCTIONS
from tubes.testing import LocalServer

LUA = files("tubes.drivers") / "lua"


@pytest.fixture
def runtime() -> Any:
    """Return a Lua interpreter with the names of a server."""
    lua51: Any = import_module("lupa.lua51")  # The module has no type hints.
    found = lua51.LuaRuntime(encoding=None)
    found.execute(b"redis = { call = function() end } struct = {} cjson = {} cmsgpack = {}")
    return found


def constants(name: str) -> str:
    """Return the text of a Lua file."""
    return (LUA / f"{name}.lua").read_text()


@pytest.mark.parametrize("made", [text.library, text.script])
def test_library_compiles(runtime: Any, made: Any) -> None:
    source = made().partition(b"\n")[2]
    assert runtime.eval(b"function(text) return select(2, loadstring(text)) end")(source) is None


def test_each_file_is_a_module_of_the_library() -> None:
    assert sorted(text.MODULES) == sorted(file.name.removesuffix(".lua") for file in LUA.iterdir())


def test_server_registers_all_functions(valkey: LocalServer) -> None:
    with valkey.client() as client:
        client.execute_command("FUNCTION", "LOAD", "REPLACE", text.library())
        reply = client.execute_command("FUNCTION", "LIST", "LIBRARYNAME", f"tubes_{text.version()}")
    listed = set(re.findall(rf"tubes_{text.version()}_\w+", str(reply)))
    assert listed == {text.function_name(each) for each in FUNCTIONS}


def test_moves_are_those_of_the_engine(runtime: Any) -> None:
    runtime.execute(text._body().encode() + b"\nlibrary = nil")
    source = constants("engine")
    table = source[source.index("local function row(") : source.index("Engine.MOVES = MOVES")]
    runtime.execute(f"{table} found = MOVES".encode().replace(b"local MOVES", b"MOVES"))
    found = {
        name.decode(): {
            state.decode(): (
                row[b"to"].decode(),
                row[b"event"].decode(),
                tuple(count.decode() for count in row[b"counts"].values()),
                row[b"by"],
            )
            for state, row in rows.items()
        }
        for name, rows in runtime.eval(b"found").items()
    }
    expected = {
        name: {
            "new" if state is None else state.letter: (move.to.letter, move.event, move.counts, move.by)
            for state, move in rows.items()
        }
        for name, rows in MOVES.items()
    }
    assert found == expected


def test_constants_are_those_of_python() -> None:
    source = constants("call")
    for name in ("TAKES", "MOST_ATTEMPTS", "WATCHED", "BYTES", "LONGEST"):
        found = re.search(rf"\b{name} = (\d+)", source)
        assert found is not None
        assert int(found[1]) == (LONGEST if name == "LONGEST" else getattr(functions, name))


def test_unknown_words_are_no_part_of_a_rank() -> None:
    plan = constants("plan")
    allowed = re.findall(r"\['?([\w.]+)'?\] = true|\b(\w+) = true", plan[: plan.index("-- Return the first word")])
    assert {first or second for first, second in allowed} >= {"id", "pri", "created", "and", "math.floor"}


@pytest.mark.parametrize("scripts", [False, True])
def test_error_names_the_file_and_the_line(valkey: LocalServer, scripts: bool) -> None:
    with valkey.client() as client, tubes.connect(valkey.url) as queue:
        client.flushall()
        tube = queue.create_tube("t")
        client.hset("tubes:{t}", "next", "x")
        session = port_of(tube).session
        words = [
            "tubes:{t}",
            session.number,
            session.token,
            f"a{session.token}.x.0",
            "1" * 16,
            "",
            b"\0",
            b"data",
            "",
            "",
        ]
        call = ["EVAL", text.script(), 1, *words, "put"] if scripts else ["FCALL", text.function_name("put"), 1, *words]
        with pytest.raises(redis.ResponseError) as caught:
            client.execute_command(*call)
    source = re.search(r"drivers/lua/engine\.lua:(\d+)", text.with_source(caught.value))
    assert source is not None
    assert "error('the next id is '" in constants("engine").splitlines()[int(source[1]) - 1]


def test_tubes_of_one_name_in_two_databases_keep_their_drivers(valkey: LocalServer) -> None:
    with tubes.connect(f"{valkey.url}?db=1") as one, tubes.connect(f"{valkey.url}?db=2") as two:
        tube, other = one.create_tube("t", "limfifottl"), two.create_tube("t", "utube")
        for number in range(3):
            tube.put(number)
            other.put(number, utube="x")
        assert [tube.take(timeout=0).data for _ in range(3)] == [0, 1, 2]  # type: ignore[union-attr]
        assert [task and task.data for task in (other.take(timeout=0), other.take(timeout=0))] == [0, None]
        for queue in (one, two):
            assert queue.admin.check("t") == []
            queue.tube("t").drop(force=True)


@pytest.mark.parametrize(
    ("driver", "options"), [("utubettl", {"max_in_flight": 2}), ("utubettl", {}), ("fifottl", {}), ("limfifottl", {})]
)
def test_damaged_task_leaves_the_others_of_its_batch(
    url: str, valkey: LocalServer, driver: str, options: dict[str, Any]
) -> None:
    with tubes.connect(url) as queue, valkey.client() as client:
        tube = queue.create_tube("t", driver, **options)
        items = [tubes.Item(n, utube=f"{n}") if driver == "utubettl" else tubes.Item(n) for n in range(9)]
        ids = [task.id for task in tube.put_many(items)]
        client.hset(f"{port_of(tube).shared.key}:tasks", str(ids[4]), b"\xff")
        with pytest.raises(tubes.Unreadable):
            tube.take_many(9, timeout=0)
        taken = [task.data for task in tube.take_many(9, timeout=0)]
        assert sorted(taken) == [0, 1, 2, 3, 5, 6, 7, 8]
