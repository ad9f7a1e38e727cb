"""The source of each line of a script: printed next to it, and named in its errors."""

from __future__ import annotations

import asyncio
import re

import pytest

import tubes
import tubes.aio
from tubes.drivers import fifo
from tubes.redis.scripts.__main__ import main
from tubes.redis.scripts.assembly import TubeSettings, script
from tubes.redis.scripts.lines import LUA
from tubes.testing import LocalServer


def test_a_script_is_printed_with_the_source_of_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["put", "fifo", "--capacity"])
    printed = capsys.readouterr().out.splitlines()
    text = script("put", fifo.Fifo, TubeSettings(bounded=True)).text.decode().splitlines()
    assert len(printed) == len(text)
    seen = set[str]()
    for number, (line, there) in enumerate(zip(printed, text, strict=True), 1):
        assert line.split()[0] == str(number)
        assert line.endswith(there)
        if found := re.match(r" *\d+ (\S+\.lua):(\d+) ", line):
            seen.add(found[1])
            source = (LUA / found[1]).read_text().splitlines()[int(found[2]) - 1]
            made = source.lstrip().startswith(("--#", "COUNT", "TO", "META", "task.", "publish(EVENT"))
            assert made or source.split()[0] == there.split()[0]
    assert {"verbs/put.lua", "steps/head.lua", "move.lua", "lib/task.lua"} <= seen


def test_unknown_driver_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["put", "nix"])
    assert "there is no driver 'nix'" in capsys.readouterr().err


def test_an_error_of_a_script_names_its_line(server: LocalServer) -> None:
    with tubes.connect(server.url) as queue:
        tube = queue.create_tube("jobs")
        server.client().hset("tubes:{jobs}", "next", "x")
        source = (LUA / "steps/next_id.lua").read_text().splitlines()
        (line,) = (number for number, text in enumerate(source, 1) if "error(" in text)
        with pytest.raises(tubes.TubesError, match=rf"the next id is x.* \(drivers/lua/steps/next_id\.lua:{line}\)"):
            tube.put("a")
        # An error in a library function whose text also occurs in others.
        server.client().hset("tubes:{jobs}:tasks", "0", "")
        with pytest.raises(tubes.TubesError, match=r"\(drivers/lua/steps/read_task\.lua:\d+\)"):
            tube.peek(0)


def test_an_error_names_its_line_in_an_event_loop(server: LocalServer) -> None:
    async def put() -> None:
        async with tubes.aio.connect(server.url) as queue:
            tube = await queue.create_tube("jobs")
            server.client().hset("tubes:{jobs}", "next", "x")
            await tube.put("a")

    with pytest.raises(tubes.TubesError, match=r"the next id is x.* \(drivers/lua/steps/next_id\.lua:\d+\)"):
        asyncio.run(put())
