"""A moved task is always in exactly one place, even if the program dies at any moment."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import tubes
from tests.contract.faces import AioFace, Face, SyncFace
from tests.support.proxy import Proxy
from tubes.drivers.options import MAX_WAITING
from tubes.durable.journal import Journal
from tubes.errors import CodecError, TaskNotFound, TubeFull
from tubes.serve import create_app
from tubes.values.codecs import RawCodec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tubes.testing import LocalServer


def look(url: str, seen: list[list[str]], **options: Any) -> None:
    """Record all tasks in all tubes, including done ones."""
    with tubes.connect(url, **options) as queue:
        found: list[str] = []
        for name in sorted(queue.tubes()):
            tube = queue.tube(name)
            found += [f"{name} {task.state} {task.data}" for task in [*tube.select(), *tube.select("done")]]
        seen.append(found)


def redo_task(queue: Any) -> None:
    """Finish a task, requeue it and finish it again."""
    tube = queue.create_tube("mail", keep_done=60)
    tube.put("to ann")
    task = tube.take(0)
    task.ack()
    assert tube.kick(task=task.id).data == "to ann"


def move_tasks(queue: Any) -> None:
    """Move tasks to another tube."""
    mail, other = queue.create_tube("mail", "fifottl"), queue.create_tube("other", "utubettl")
    mail.put_many(["to ann", tubes.Item("to bob", key="bob", pri=1), tubes.Item("to cid", ttl=60)])
    assert mail.select("ready").move_to(other) == 3


@pytest.fixture(params=[SyncFace, AioFace], ids=["sync", "aio"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[Any], None], str], None]]:
    """Run a program with the queue at a URL."""
    face: Face = request.param()

    def run_program(program: Callable[[Any], None], url: str) -> None:
        with face.connect(url) as queue:
            program(queue)

    yield run_program
    face.close()


AGAIN = ("mail ready to ann",)
MOVED = ("other ready to ann", "other ready to bob", "other ready to cid")


@pytest.mark.parametrize(("program", "last"), [(redo_task, AGAIN), (move_tasks, MOVED)])
def test_task_moves_are_atomic_on_a_server(
    valkey: LocalServer, url: str, run: Any, program: Callable[[Any], None], last: tuple[str, ...]
) -> None:
    """Check the state that a program leaves if it dies before a request, and that each request is executed once."""
    seen: list[list[str]] = []
    cut: set[bytes] = set()
    with Proxy(valkey) as proxy:

        def watch(request: bytes) -> None:
            if b"FCALL" in request:
                look(url, seen, session_ttl=77)

        def cuts(request: bytes) -> bool:
            is_new = b"FCALL" in request and request not in cut
            cut.add(request)
            return is_new

        proxy.lies, proxy.cuts = watch, cuts
        run(program, f"{proxy.url}?{url.partition('?')[2]}")
        assert proxy.count
    look(url, seen)
    check(seen, last)


def test_task_moves_are_atomic_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """Check the files that a program leaves if it dies after a commit."""
    copies: list[Path] = []
    commit = Journal.commit

    def commit_and_copy(journal: Journal, now: int) -> bool:
        written = commit(journal, now)
        if written:
            copies.append(tmp_path / f"copy{len(copies)}")
            shutil.copytree(tmp_path / "jobs", copies[-1])
        return written

    monkeypatch.setattr(Journal, "commit", commit_and_copy)
    run(redo_task, f"file:{tmp_path / 'jobs'}")
    monkeypatch.undo()
    seen: list[list[str]] = []
    for copy in copies:
        look(f"file:{copy}", seen)
    check(seen, AGAIN)


def check(seen: list[list[str]], last: tuple[str, ...]) -> None:
    """Check that each task is in one place at every moment after the puts."""
    places = [found for found in seen if found]
    assert [len(found) for found in places] == [len(last)] * len(places), seen
    assert sorted(places[-1]) == [*last]
    assert any(sorted(found) != [*last] for found in places)


def test_republished_job_replaces_the_old_one_in_one_step(valkey: LocalServer, url: str) -> None:
    """Check the jobs that a service leaves if it dies before a request."""
    seen: list[list[tuple[str, bytes]]] = []
    prefix = url.partition("?")[2]

    def watch(request: bytes) -> None:
        if b"FCALL" in request:
            with tubes.connect(f"{url}&namespace=shop", codec=RawCodec(), session_ttl=77) as queue:
                seen.append([(str(task.state), task.data) for task in queue.tube("q").select()])

    async def republish() -> None:
        app = create_app(tubes.aio.connect(f"{proxy.url}?{prefix}", codec="json"))
        transport = httpx.ASGITransport(app)
        async with app.service.run(), httpx.AsyncClient(transport=transport, base_url="http://a/api/shop") as http:
            job = ""
            for _ in range(2):
                job = (await http.put("/q", content=b"old")).json()["job_id"]
            proxy.lies = watch
            assert (await http.put(f"/q/job/{job}", content=b"new")).status_code == 201
            watch(b"FCALL")

    with Proxy(valkey) as proxy:
        asyncio.run(republish())
    old, new = ("ready", b"old"), ("ready", b"new")
    assert (seen[0], seen[-1]) == ([old, old], [old, new])
    assert all(jobs in ([old, old], [old, new]) for jobs in seen)


@pytest.mark.parametrize("place", ["memory", "folder", "server"])
@pytest.mark.parametrize("state", ["ready", "delayed", "taken", "buried", "done"])
def test_task_replaces_another_in_any_state(
    tmp_path: Path, request: pytest.FixtureRequest, place: str, state: str
) -> None:
    where = {"memory": "memory://", "folder": f"file:{tmp_path}/jobs"}.get(place)
    with tubes.connect(where or request.getfixturevalue("url"), codec="json") as queue:
        tube = queue.create_tube("mail", "utubettl", keep_done=60 if state == "done" else 0)
        old = tube.put("old", utube="a", delay=50 if state == "delayed" else 0)
        if state in ("taken", "done"):
            assert tube.take(0) is not None
        if state in ("buried", "done"):
            (tube.ack if state == "done" else tube.bury)(old)
        with pytest.raises(CodecError):
            tube._put_again(old, ({1j}, {}))
        assert str(tube.peek(old).state) == state
        with pytest.raises(TubeFull):
            tube._put_again(old, ("new", {MAX_WAITING: 0}))
        new = tube._put_again(tube.peek(old), ("new", {"utube": "b", "pri": 3}))
        assert (new.id, new.data, new.utube, new.pri, new.state) == (1, "new", "b", 3, "ready")
        for _ in range(2):
            with pytest.raises(TaskNotFound):
                tube._put_again(old, ("newer", {}))
        assert [task.data for task in [*tube.select(), *tube.select("done")]] == ["new"]
        assert [(lane.name, lane.ready, lane.taken) for lane in tube.lanes()] == [("b", 1, 0)]
        assert queue.admin.check("mail") == []
