"""Listeners: allowed calls in them, and errors without effect."""

from __future__ import annotations

import asyncio
import logging
import os
import threading

import pytest

import tubes
import tubes.aio
from tests.contract.faces import Face


def test_a_listener_may_use_the_queue(queue: tubes.Queue) -> None:
    tube, log = queue.create_tube("t"), queue.create_tube("log")
    tube.on_task_change(lambda task, event: log.put((event, task.id)))
    tube.put("x")
    tube.ack(tube.take(0).id)  # type: ignore[union-attr]
    assert [log.take(0).data for _ in range(3)] == [("put", 0), ("take", 0), ("delete", 0)]  # type: ignore[union-attr]


def test_a_listener_may_change_the_tube_it_listens_to(queue: tubes.Queue) -> None:
    tube = queue.create_tube("t")
    events: list[str] = []

    def listen(task: tubes.Task, event: str) -> None:
        events.append(event)
        if event == "put" and task.data == "again":
            tube.put("last")

    tube.on_task_change(listen)
    tube.put("again")
    assert events == ["put", "put"]


def test_listener_error_is_logged_and_has_no_effect(queue: tubes.Queue, caplog: pytest.LogCaptureFixture) -> None:
    tube = queue.create_tube("t")

    def fail(task: tubes.Task, event: str) -> None:
        raise RuntimeError("deaf")

    tube.on_task_change(fail)
    with caplog.at_level(logging.ERROR, logger="tubes"):
        task = tube.put("x")
        with tube.taking(0) as taken:
            assert taken.id == task.id
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info and record.exc_info[1]] == [
        ("deaf",)
    ] * 3
    assert tube.statistics().tasks["done"] == 1


def test_every_session_has_a_listener_of_its_own(queue: tubes.Queue) -> None:
    events: list[str] = []
    mine = queue.create_tube("t")
    with queue.session() as other:
        assert mine.on_task_change(lambda task, event: events.append("mine")) is None
        theirs = other.tube("t")
        theirs.on_task_change(lambda task, event: events.append("theirs"))
        theirs.put("x")
    mine.put("y")
    assert mine.on_task_change(None) is not None
    mine.put("z")
    assert events == ["mine", "theirs", "mine"]


def test_an_asyncio_listener_is_called_in_its_loop_in_order() -> None:
    async def main() -> None:
        events: list[int] = []
        async with tubes.aio.connect("memory://listeners-of-a-loop") as queue:
            tube = await queue.create_tube("t")
            loop_thread = threading.get_ident()

            def listen(task: tubes.AsyncTask, event: str) -> None:
                assert threading.get_ident() == loop_thread
                events.append(task.id)

            await tube.on_task_change(listen)

            def put_in_thread() -> None:
                with tubes.connect("memory://listeners-of-a-loop") as other:
                    for _ in range(100):
                        other.tube("t").put("x")

            await asyncio.gather(asyncio.to_thread(put_in_thread), *(tube.put("y") for _ in range(100)))
            await asyncio.sleep(0)
            assert events == list(range(200))

    asyncio.run(main())


def test_asyncio_listener_is_called_once_at_a_time() -> None:
    url = f"memory://one-at-a-time-{os.getpid()}"

    async def main() -> None:
        steps: list[str] = []
        async with tubes.aio.connect(url) as queue:
            tube = await queue.create_tube("t")
            with tubes.connect(url) as other:
                theirs = other.tube("t")

                def listen(task: tubes.AsyncTask, event: str) -> None:
                    steps.append(f"begin {task.id}")
                    if task.id == 0:
                        theirs.put("nested")
                    steps.append(f"end {task.id}")

                await tube.on_task_change(listen)
                thread = threading.Thread(target=lambda: [theirs.put("x") for _ in range(2)])
                thread.start()
                thread.join()
                await asyncio.sleep(0)
        assert steps == [f"{what} {id}" for id in range(3) for what in ("begin", "end")]

    asyncio.run(main())


def test_coroutine_listener_is_refused(face: Face) -> None:
    async def listen(task: object, event: str) -> None: ...

    with face.connect("memory://") as queue:
        tube = queue.create_tube("t")
        with pytest.raises(tubes.InvalidOption):
            tube.on_task_change(listen)


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), ValueError("no")], ids=repr)
def test_calls_and_alarms_continue_after_any_listener_error(error: BaseException) -> None:
    def listen(task: tubes.Task, event: str) -> None:
        raise error

    with tubes.connect() as queue, tubes.connect() as other:
        tube = queue.create_tube("t", "fifottl")
        tube.on_task_change(listen)
        assert tube.put("now").id == 0
        tube.put("later", delay=0.01)
        assert [task.data for task in (tube.take(0), tube.take(30)) if task] == ["now", "later"]
        elsewhere = other.create_tube("t", "fifottl")
        elsewhere.put("late", delay=0.01)
        assert elsewhere.take(30) is not None
