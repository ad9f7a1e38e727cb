"""Producer and worker processes: `python -m tests.soak.programs URL MODE TUBE SEED`.

They write a line for each call, like those of `tests.support.worker`. `wrong …` reports a broken rule that only they
can detect.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import random
import signal
import sys
import threading
import time
from itertools import count
from typing import Any, NoReturn

import tubes
from tests.soak.plan import BACKLOG, LEASE, PLANS, SLACK, TTR, draw_work_time, is_early, task
from tests.support.handlers import say
from tubes import ConnectionLost, TaskNotTaken
from tubes.worker import Worker


class Program:
    """A producer or worker of one tube, in one of several modes."""

    def __init__(self, url: str, tube: str, seed: str) -> None:
        self.url = url
        self.name = tube
        self.plan = PLANS[tube]
        self.rng = random.Random(seed)
        self.seed = seed
        self.is_over = False

    def record_take(self, *tasks: Any) -> float:
        """Report takes and return their time."""
        say("\n".join(f"took {task.id} {task.attempts} {task.data}" for task in tasks))
        for one in tasks:
            if is_early(one.data):
                say("wrong", f"task {one.id} was taken before it was due")
        return time.monotonic()

    def record_ack(self, task: Any, since: float) -> None:
        """Report an ack; it is wrong if the task was held for longer than its time to run."""
        say("acked", task.id, task.attempts)
        if self.plan.is_timed and since > TTR + SLACK:
            say("wrong", f"task {task.id} was acked after its time to run")

    # -- workers -------------------------------------------------------------------------------------------------------

    def work_singly(self) -> None:
        """Take and ack, one at a time."""
        with tubes.connect(self.url, session_ttl=LEASE) as queue:
            tube = queue.tube(self.name)
            say("ready")
            while True:
                try:
                    taken = tube.take(timeout=2)
                except ConnectionLost:
                    continue
                if taken is None:
                    continue
                began = self.record_take(taken)
                time.sleep(draw_work_time(self.plan, self.rng))
                say("acking", taken.id, taken.attempts)
                held = time.monotonic() - began
                try:
                    taken.ack()
                except TaskNotTaken:
                    say("late", taken.id, taken.attempts)
                except ConnectionLost:
                    continue
                else:
                    self.record_ack(taken, held)

    def batches(self) -> None:
        """Take and ack batches."""
        with tubes.connect(self.url, session_ttl=LEASE) as queue:
            tube = queue.tube(self.name)
            say("ready")
            while True:
                try:
                    taken = tube.take_many(20, timeout=2)
                except ConnectionLost:
                    continue
                if not taken:
                    continue
                began = self.record_take(*taken)
                time.sleep(draw_work_time(self.plan, self.rng))
                say("\n".join(f"acking {one.id} {one.attempts}" for one in taken))
                held = time.monotonic() - began
                try:
                    ended = tube.ack_many(taken)
                except ConnectionLost:
                    continue
                for one in taken:
                    if ended[one.id]:
                        self.record_ack(one, held)
                    else:
                        say("late", one.id, one.attempts)

    def loop(self) -> None:
        """Loop over the tube, which acks each task before it takes the next one."""
        with tubes.connect(self.url, session_ttl=LEASE) as queue:
            say("ready")
            while True:
                try:
                    for taken in queue.tube(self.name):
                        self.record_take(taken)
                        time.sleep(draw_work_time(self.plan, self.rng))
                        say("left", taken.id, taken.attempts)
                except ConnectionLost:
                    continue

    async def aio(self) -> None:
        """Run three tasks of an event loop, with some cancelled takes."""

        async def one(tube: tubes.AsyncTube) -> None:
            while True:
                waiting = asyncio.ensure_future(tube.take(timeout=2))
                if self.rng.random() < 0.02:
                    asyncio.get_running_loop().call_later(self.rng.random() * 0.01, waiting.cancel)
                try:
                    taken = await waiting
                except (ConnectionLost, asyncio.CancelledError):
                    continue
                if taken is None:
                    continue
                began = self.record_take(taken)
                await asyncio.sleep(draw_work_time(self.plan, self.rng))
                say("acking", taken.id, taken.attempts)
                held = time.monotonic() - began
                try:
                    await taken.ack()
                except TaskNotTaken:
                    say("late", taken.id, taken.attempts)
                except ConnectionLost:
                    continue
                else:
                    self.record_ack(taken, held)

        async with tubes.aio.connect(self.url, session_ttl=LEASE) as queue:
            tube = await queue.tube(self.name)
            say("ready")
            await asyncio.gather(one(tube), one(tube), one(tube))

    def handlers(self) -> NoReturn:
        """Run a worker with a handler, which keeps its tasks even if it is slow."""
        with tubes.connect(self.url, session_ttl=LEASE) as queue:
            worker = Worker(queue, concurrency=3)

            @worker.on(self.name)
            def handle(taken: tubes.Task) -> None:
                self.record_take(taken)
                time.sleep(draw_work_time(self.plan, self.rng))
                say("left", taken.id, taken.attempts)

            say("ready")
            while True:
                worker.run()

    # -- producers -----------------------------------------------------------------------------------------------------

    def producer(self) -> None:
        """Put into all tubes, one at a time and in batches, while their backlog is small."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "is_over", True))
        with tubes.connect(self.url, session_ttl=31.0) as queue:
            there = {name: queue.tube(name) for name in PLANS}
            say("ready")
            for turn in count():
                for name, tube in there.items():
                    if self.is_over:
                        return
                    size = self.rng.choice((1, 1, 1, 10, 50))
                    tasks = [task(PLANS[name], f"{self.seed}.{turn}.{n}", self.rng) for n in range(size)]
                    try:
                        if tube.statistics().tasks["total"] > BACKLOG:
                            time.sleep(0.002)
                            continue
                        if size == 1:
                            put: list[Any] = [tube.put(data, **options) for data, options in tasks]
                        else:
                            put = tube.put_many([tubes.Item(data, **options) for data, options in tasks])
                    except ConnectionLost:
                        say("\n".join(f"unknown {name} {data}" for data, _ in tasks))
                    else:
                        say("\n".join(f"put {name} {one.data} {one.id}" for one in put))

    async def aio_producer(self) -> None:
        """Do the same in ten tasks of an event loop."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: setattr(self, "is_over", True))

        async def some(queue: tubes.AsyncQueue, number: int) -> None:
            name = list(PLANS)[number % len(PLANS)]
            tube = await queue.tube(name)
            next_look = 0
            for turn in count():
                if self.is_over:
                    return
                data, options = task(PLANS[name], f"{self.seed}.{number}.{turn}", self.rng)
                try:
                    if turn >= next_look:
                        if (await tube.statistics()).tasks["total"] > BACKLOG:
                            await asyncio.sleep(0.05)
                            continue
                        next_look = turn + 20
                    put: Any = await tube.put(data, **options)
                except ConnectionLost:
                    say("unknown", name, data)
                else:
                    say("put", name, data, put.id)

        async with tubes.aio.connect(self.url, session_ttl=31.0) as queue:
            say("ready")
            await asyncio.gather(*(some(queue, number) for number in range(8)))


def _die_with(parent: int) -> NoReturn:
    """End when the parent has ended for any reason."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    """Run the command line."""
    # Cut connections, lost leases and late acks are expected in a soak.
    logging.disable(logging.WARNING)
    threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    # The collector delays a full collection until new objects exceed a quarter of the old ones, for half an hour here,
    # and memory would seem to grow. Freeze loaded modules, so that few old objects remain.
    gc.collect()
    gc.freeze()
    url, mode, tube, seed = sys.argv[1:]
    act = getattr(Program(url, tube, seed), mode)
    if inspect.iscoroutinefunction(act):
        asyncio.run(act())
    else:
        act()


if __name__ == "__main__":
    main()
