# Generated from tubes/sync/__init__.py by .ci/make_aio.py (`make aio`): change that file, or the rules.
"""The API for asyncio: `connect`, `AsyncQueue`, `AsyncTube` and `AsyncTask`. The same names as for threads, awaited.

Waiting never blocks the event loop, and a cancelled take loses nothing. Threads and event loops may share one store:
each wakes the other.

>>> import asyncio, tubes.aio
>>> async def main():
...     async with tubes.aio.connect() as queue:
...         tube = await queue.create_tube("mail")
...         await tube.put("hello")
...         async with tube.taking(timeout=0) as task:
...             print(task.data)
>>> asyncio.run(main())
hello
"""

from tubes.aio.lane import AsyncLane
from tubes.aio.queue import AsyncEnqueuer, AsyncQueue, AsyncQueueAdmin, connect
from tubes.aio.selection import AsyncSelection
from tubes.aio.task import AsyncTask
from tubes.aio.tube import AsyncTube, AsyncTubeAdmin

__all__ = [
    "AsyncEnqueuer",
    "AsyncLane",
    "AsyncQueue",
    "AsyncQueueAdmin",
    "AsyncSelection",
    "AsyncTask",
    "AsyncTube",
    "AsyncTubeAdmin",
    "connect",
]
