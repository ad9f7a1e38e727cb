"""The internal option of a put that limits the ready and delayed tasks of its tube."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tubes
from tubes.drivers.options import MAX_WAITING
from tubes.errors import DuplicateKey, TubeFull

THREE: Any = {MAX_WAITING: 3}
DRIVERS = ("fifo", "fifottl", "utubettl", "limfifottl")


@pytest.fixture(params=["memory", "folder", "valkey"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tubes.Queue]:
    urls = {"memory": "memory://", "folder": f"file://{tmp_path}"}
    with tubes.connect(urls.get(request.param) or request.getfixturevalue("url")) as queue:
        yield queue


@pytest.mark.parametrize("driver", DRIVERS)
def test_put_beyond_the_limit_is_refused_and_changes_nothing(queue: tubes.Queue, driver: str) -> None:
    tube = queue.create_tube("t", driver)
    for _ in range(2):
        tube.put("x", **THREE)
    with pytest.raises(TubeFull, match="the token may have 3 waiting tasks in tube 't', and this put adds 2"):
        tube.put_many(["x", "x"], **THREE)
    assert len(tube.put_many(["x"], **THREE)) == 1
    with pytest.raises(TubeFull, match="the token may have 3 waiting tasks in tube 't', and this put adds 1"):
        tube.put("x", **THREE)
    assert [task.id for task in tube.select()] == [0, 1, 2]
    assert tube.put("x").id == 3


@pytest.mark.parametrize("driver", ["fifottl", "limfifottl"])
def test_delayed_tasks_count_and_taken_and_buried_ones_do_not(queue: tubes.Queue, driver: str) -> None:
    tube = queue.create_tube("t", driver)
    tube.put_many(["taken", "buried"], **THREE)
    _, buried = tube.take(0), tube.take(0)
    assert buried is not None
    buried.bury()
    tube.put("x", delay=60, **THREE)
    tube.put_many([tubes.Item("x", delay=60), tubes.Item("x", ttr=60)], **THREE)
    with pytest.raises(TubeFull):
        tube.put("x", delay=60, **THREE)


def test_put_that_adds_no_waiting_task_is_not_refused(queue: tubes.Queue) -> None:
    tube = queue.create_tube("t")
    first, *_ = tube.put_many([tubes.Item(key, key=key) for key in "abc"], **THREE)
    kept: Any = tube.put("new", key="a", **THREE)
    assert kept.id == first.id
    assert [task.created_now for task in tube.put_many(["new", "new"], key="b", **THREE)] == [False, False]
    replaced = tube.put_many([tubes.Item("1", key="c"), tubes.Item("2", key="c")], on_duplicate="replace", **THREE)
    assert [task.data for task in tube.select()] == ["a", "b", "2"]
    last: Any = tube.put("3", key="c", on_duplicate="replace", **THREE)
    assert last.id == replaced[-1].id + 1
    with pytest.raises(DuplicateKey):
        tube.put("new", key="a", on_duplicate="raise", **THREE)


@pytest.mark.parametrize("state", ["taken", "buried"])
def test_replacing_a_task_that_did_not_count_is_refused(queue: tubes.Queue, state: str) -> None:
    tube = queue.create_tube("t")
    tube.put("old", key="a")
    old = tube.take(0)
    assert old is not None
    if state == "buried":
        old.bury()
    tube.put_many(list("xyz"), **THREE)
    for put in (tube.put, lambda data, **options: tube.put_many([data], **options)):
        with pytest.raises(TubeFull):
            put("new", key="a", on_duplicate="replace", **THREE)
    assert tube.peek(old).data == "old"


def test_upload_beyond_the_limit_is_refused(queue: tubes.Queue) -> None:
    tube = queue.create_tube("t")
    most: Any = {MAX_WAITING: 5000}
    with pytest.raises(TubeFull):
        tube.put_many(range(5001), **most)
    assert len(tube.put_many(range(5000), **most)) == 5000


def test_limit_holds_in_an_altered_tube(queue: tubes.Queue) -> None:
    tube = queue.create_tube("t", "utubettl", interval=60)
    tube.alter(max_attempts=3, interval=1)
    tube.put_many(list("xyz"), utube="a", **THREE)
    with pytest.raises(TubeFull):
        tube.put("x", utube="b", **THREE)


def test_put_that_waits_for_room_keeps_the_limit(queue: tubes.Queue) -> None:
    tube = queue.create_tube("t", capacity=4)
    tube.put_many(list("wxyz"))
    tasks = [tube.take(0), tube.take(0)]
    assert tube.put("x", timeout=0.05, **THREE) is None
    for task in tasks:
        assert task is not None
        task.ack()
    assert tube.put("x", timeout=20, **THREE) is not None
    with pytest.raises(TubeFull):
        tube.put("x", timeout=20, **THREE)
