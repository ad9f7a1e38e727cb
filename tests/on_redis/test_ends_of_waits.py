"""Waits in real time that end by themselves, or by what others do: at once, and in the order in which they began."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import tubes
from tubes.conformance.bench import eventually


def test_closing_a_queue_ends_its_waits_at_once_though_others_of_the_process_go_on(url: str) -> None:
    with tubes.connect(url) as queue:
        tube = queue.create_tube("load", capacity=1)
        ended: list[Any] = []

        def wait(other: tubes.Tube, **options: Any) -> None:
            try:
                other.put(1, **options) if options else other.take()
            except tubes.QueueClosed as error:
                ended.append(error)

        for options in ({}, {"timeout": 20}):
            session = queue.session()
            thread = threading.Thread(target=wait, args=(session.tube("load"),), kwargs=options)
            thread.start()
            assert eventually(lambda: tube.statistics().waiting == 1)
            time.sleep(0.1)  # Until it sleeps on the server.
            before = time.monotonic()
            session.close()
            thread.join()
            # Far less than it sleeps at most without looking.
            assert time.monotonic() - before < 2.5
            tube.put(0)
        assert len(ended) == 2
        assert tube.statistics().tasks == {
            "ready": 1, "taken": 0, "buried": 0, "delayed": 0, "done": 0, "total": 1,
        }  # fmt: skip


def test_who_waits_for_the_end_of_a_pause_or_a_delay_is_served_in_order(url: str) -> None:
    async def main() -> None:
        async with tubes.aio.connect(url) as queue:
            tube = await queue.create_tube("load", "fifottl")
            for number in range(6):
                waits = [asyncio.create_task(tube.take(timeout=5)) for _ in range(4)]
                while (await tube.statistics()).waiting < 4:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                if number % 2:
                    await tube.pause(0.1)
                    await tube.put_many(range(4))
                else:
                    await tube.put_many(range(4), delay=0.1)
                tasks = await asyncio.gather(*waits)
                assert [task.data for task in tasks if task is not None] == [0, 1, 2, 3]
                await tube.truncate()

    asyncio.run(main())
