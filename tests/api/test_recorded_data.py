"""This version opens the data that each recorded version stored, on a server and in a folder, and works with them.

`recorded/` has the data of each version. Until this version is released, a change of the layout needs new data of it:
`python -m tests.api.test_recorded_data`. The tests pass a minute later: the lease has ended, the schedule is due.
"""

from __future__ import annotations

import gzip
import json
from base64 import b64decode, b64encode
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

import tubes
from tubes.durable.database import NAME, back_up
from tubes.testing import LocalServer
from tubes.worker import Worker

RECORDED: Final = Path(__file__).parent / "recorded"
VERSIONS: Final = sorted(path.name for path in RECORDED.glob("*"))
SERVER: Final = "server.json"
FOLDER: Final = "folder.sqlite.gz"
LONG: Final = 50 * 365 * 86_400


def add_schedule(queue: tubes.Queue, calls: list[str]) -> Worker:
    """Return a worker with a schedule that records its calls."""
    worker = Worker(queue)

    @worker.every(60, name="tick")
    def tick() -> None:
        calls.append("tick")

    return worker


def fill(queue: tubes.Queue) -> None:
    """Store tasks in all states, lanes and a schedule. One task stays taken."""
    add_schedule(queue, []).run(burst=True)
    jobs = queue.create_tube("jobs", "fifottl", ttr=60, max_attempts=3, keep_done=LONG, key_ttl=LONG)
    jobs.put("taken", pri=1)
    jobs.put("done", pri=2, key="done")
    jobs.take_many(2, timeout=0)[1].ack({"size": 3})
    jobs.put({"name": "é"}, key="ready", context={"trace": "7"})
    jobs.put("delayed", delay=LONG)
    jobs.bury(jobs.put("buried"), "no such address")
    pages = queue.create_tube("pages", "utubettl", interval=1)
    for lane in ("a", "a", "b", "c"):
        pages.put(lane, utube=lane)
    pages.lane("b").block(LONG)


def check(queue: tubes.Queue) -> None:
    """Work with the stored data."""
    jobs, pages = queue.tube("jobs"), queue.tube("pages")
    # The consumer of the taken task is gone.
    assert jobs.statistics().tasks == {"ready": 2, "taken": 0, "buried": 1, "delayed": 1, "done": 1, "total": 4}
    assert jobs.result(1, timeout=0) == {"size": 3}
    ready, taken = jobs.take_many(3, timeout=0)
    assert (taken.data, taken.attempts, taken.ttr) == ("taken", 2, 60)
    assert (ready.data, ready.context) == ({"name": "é"}, {"trace": "7"})
    assert not jobs.put("again", key="ready").created_now
    taken.ack()
    ready.release(delay=5)
    (buried,) = jobs.select("buried")
    assert (buried.data, buried.reason) == ("buried", "no such address")
    assert jobs.select("buried").kick() == 1
    assert jobs.statistics().tasks == {"ready": 1, "taken": 0, "buried": 0, "delayed": 2, "done": 2, "total": 3}
    assert [task.data for task in pages.take_many(4, timeout=0)] == ["a", "c"]
    calls: list[str] = []
    add_schedule(queue, calls).run(burst=True)
    assert calls


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_data_of_a_server_can_be_used(version: str) -> None:
    with LocalServer() as server, server.client() as connection:
        client: Any = connection
        for key, dumped in json.loads((RECORDED / version / SERVER).read_text()).items():
            client.restore(key, 0, b64decode(dumped))
        with tubes.connect(server.url) as queue:
            check(queue)


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_data_of_a_folder_can_be_used(version: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(gzip.decompress((RECORDED / version / FOLDER).read_bytes()))
    with tubes.connect(f"file:{tmp_path}") as queue:
        check(queue)


def test_data_of_this_version_are_recorded() -> None:
    assert tubes.__version__ in VERSIONS


def record(folder: Path) -> None:
    """Record the data of this version."""
    folder.mkdir(parents=True, exist_ok=True)
    with LocalServer() as server, tubes.connect(server.url) as queue, server.client() as connection:
        fill(queue)
        client: Any = connection
        dumped = {key.decode(): b64encode(client.dump(key)).decode() for key in sorted(client.scan_iter())}
        (folder / SERVER).write_text(json.dumps(dumped, indent=1) + "\n")
    with TemporaryDirectory() as made, tubes.connect(f"file:{made}/store") as queue:
        fill(queue)
        back_up(Path(made, "store"), Path(made, "copy"), "file:copy")
        (folder / FOLDER).write_bytes(gzip.compress(Path(made, "copy", NAME).read_bytes(), mtime=0))


if __name__ == "__main__":
    record(RECORDED / tubes.__version__)
