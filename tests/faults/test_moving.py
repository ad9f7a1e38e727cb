"""Tasks that go from one place to another are never in both, and never in none, whenever the program dies."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import tubes
from tests.support.proxy import Proxy
from tubes.durable.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tubes.testing import LocalServer


def look(url: str, seen: list[list[str]], **options: Any) -> None:
    """Note which tasks are there, in all tubes, the done ones too."""
    with tubes.connect(url, **options) as queue:
        found: list[str] = []
        for name in sorted(queue.tubes()):
            tube = queue.tube(name)
            found += [f"{name} {task.state} {task.data}" for task in tube.tasks() + tube.tasks(state="done")]
        seen.append(found)


def done_again(url: str) -> None:
    """A task is done, and done again."""
    with tubes.connect(url) as queue:
        tube = queue.create_tube("mail", keep_done=60)
        tube.put("to ann")
        task = tube.take(0)
        assert task is not None
        task.ack()
        assert tube.again(task.id).data == "to ann"


async def done_again_in_a_loop(url: str) -> None:
    async with tubes.aio.connect(url) as queue:
        tube = await queue.create_tube("mail", keep_done=60)
        await tube.put("to ann")
        task = await tube.take(0)
        assert task is not None
        await task.ack()
        assert (await tube.again(task.id)).data == "to ann"


def run_in_a_loop(url: str) -> None:
    asyncio.run(done_again_in_a_loop(url))


@pytest.mark.parametrize("program", [done_again, run_in_a_loop])
def test_on_a_server(valkey: LocalServer, url: str, program: Callable[[str], None]) -> None:
    """Before each request the server has what a program leaves that dies there."""
    seen: list[list[str]] = []
    with Proxy(valkey) as proxy:

        def watch(request: bytes) -> None:
            if b"EVALSHA" in request:
                look(url, seen, session_ttl=77)

        proxy.lies = watch
        program(f"{proxy.url}?{url.partition('?')[2]}")
    look(url, seen)
    check(seen)


@pytest.mark.parametrize("program", [done_again, run_in_a_loop])
def test_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Callable[[str], None]) -> None:
    """After each commit the files have what a program leaves that dies there."""
    copies: list[Path] = []
    commit = Journal.commit

    def copied(journal: Journal, now: int) -> bool:
        written = commit(journal, now)
        if written:
            copies.append(tmp_path / f"copy{len(copies)}")
            shutil.copytree(tmp_path / "jobs", copies[-1])
        return written

    monkeypatch.setattr(Journal, "commit", copied)
    program(f"file:{tmp_path / 'jobs'}")
    monkeypatch.undo()
    seen: list[list[str]] = []
    for copy in copies:
        look(f"file:{copy}", seen)
    check(seen)


def check(seen: list[list[str]]) -> None:
    """Once the task is there it is in one place at every moment, and it has been in each."""
    places = [found for found in seen if found]
    assert [len(found) for found in places] == [1] * len(places), seen
    assert places[-1] == ["mail ready to ann"]
    assert ["mail done to ann"] in places
