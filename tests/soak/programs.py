"""Producers and workers in processes of their own: `python -m tests.soak.programs URL MODE TUBE SEED`.

They write a line for everything they do, as those of `tests.support.worker`; `wrong …` is against a rule that
only they see.
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
from tests.soak.plan import BACKLOG, LEASE, PLANS, SLACK, TTR, is_early, labour, task
from tests.support.handlers import say
from tubes import ConnectionLost, TaskNotTaken
from tubes.worker import Worker


class Program:
    """Who works on one tube, in one of several ways."""

    def __init__(self, url: str, tube: str, seed: str) -> None:
        self.url = url
        self.name = tube
        self.plan = PLANS[tube]
        self.dice = random.Random(seed)
        self.seed = seed
        self.is_over = False

    def took(self, *tasks: Any) -> float:
        """Say so; when that was."""
        say("\n".join(f"took {task.id} {task.attempts} {task.data}" for task in tasks))
        for one in tasks:
            if is_early(one.data):
                say("wrong", f"task {one.id} was taken before it was due")
        return time.monotonic()

    def acked(self, task: Any, since: float) -> None:
        """Say so; who has had a task for longer than its time to run has lost it."""
        say("acked", task.id, task.attempts)
        if self.plan.is_timed and since > TTR + SLACK:
            say("wrong", f"task {task.id} was acked after its time to run")

    # -- workers -------------------------------------------------------------------------------------------------------

    def one(self) -> None:
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
                began = self.took(taken)
                time.sleep(labour(self.plan, self.dice))
                say("acking", taken.id, taken.attempts)
                held = time.monotonic() - began
                try:
                    taken.ack()
                except TaskNotTaken:
                    say("late", taken.id, taken.attempts)
                except ConnectionLost:
                    continue
                else:
                    self.acked(taken, held)

    def batches(self) -> None:
        """Many at a time."""
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
                began = self.took(*taken)
                time.sleep(labour(self.plan, self.dice))
                say("\n".join(f"acking {one.id} {one.attempts}" for one in taken))
                held = time.monotonic() - began
                try:
                    ended = tube.ack_many(taken)
                except ConnectionLost:
                    continue
                for one in taken:
                    if ended[one.id]:
                        self.acked(one, held)
                    else:
                        say("late", one.id, one.attempts)

    def loop(self) -> None:
        """A loop over the tube, which acks each task when it comes back for the next one."""
        with tubes.connect(self.url, session_ttl=LEASE) as queue:
            say("ready")
            while True:
                try:
                    for taken in queue.tube(self.name):
                        self.took(taken)
                        time.sleep(labour(self.plan, self.dice))
                        say("left", taken.id, taken.attempts)
                except ConnectionLost:
                    continue

    async def aio(self) -> None:
        """Three tasks of an event loop, whose takes are cancelled now and then."""

        async def one(tube: tubes.AsyncTube) -> None:
            while True:
                waiting = asyncio.ensure_future(tube.take(timeout=2))
                if self.dice.random() < 0.02:
                    asyncio.get_running_loop().call_later(self.dice.random() * 0.01, waiting.cancel)
                try:
                    taken = await waiting
                except (ConnectionLost, asyncio.CancelledError):
                    continue
                if taken is None:
                    continue
                began = self.took(taken)
                await asyncio.sleep(labour(self.plan, self.dice))
                say("acking", taken.id, taken.attempts)
                held = time.monotonic() - began
                try:
                    await taken.ack()
                except TaskNotTaken:
                    say("late", taken.id, taken.attempts)
                except ConnectionLost:
                    continue
                else:
                    self.acked(taken, held)

        async with tubes.aio.connect(self.url, session_ttl=LEASE) as queue:
            tube = await queue.tube(self.name)
            say("ready")
            await asyncio.gather(one(tube), one(tube), one(tube))

    def handlers(self) -> NoReturn:
        """A worker with a handler, which keeps its tasks however slow it is."""
        with tubes.connect(self.url, session_ttl=LEASE) as queue:
            worker = Worker(queue, concurrency=3)

            @worker.on(self.name)
            def handle(taken: tubes.Task) -> None:
                self.took(taken)
                time.sleep(labour(self.plan, self.dice))
                say("left", taken.id, taken.attempts)

            say("ready")
            while True:
                worker.run()

    # -- producers -----------------------------------------------------------------------------------------------------

    def producer(self) -> None:
        """Put into all tubes, one by one and in batches, as long as there is need."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "is_over", True))
        with tubes.connect(self.url, session_ttl=31.0) as queue:
            there = {name: queue.tube(name) for name in PLANS}
            say("ready")
            for turn in count():
                for name, tube in there.items():
                    if self.is_over:
                        return
                    size = self.dice.choice((1, 1, 1, 10, 50))
                    tasks = [task(PLANS[name], f"{self.seed}.{turn}.{n}", self.dice) for n in range(size)]
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
        """Ten tasks of an event loop that do the same."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: setattr(self, "is_over", True))

        async def some(queue: tubes.AsyncQueue, number: int) -> None:
            name = list(PLANS)[number % len(PLANS)]
            tube = await queue.tube(name)
            next_look = 0
            for turn in count():
                if self.is_over:
                    return
                data, options = task(PLANS[name], f"{self.seed}.{number}.{turn}", self.dice)
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
    """End when the soak has ended, however it did."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    """What the command line says."""
    # That lines are cut, leases lost and acks late is what a soak is about.
    logging.disable(logging.WARNING)
    threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    # The collector puts a look at everything off until there is a quarter more than what lasts, for half an hour here,
    # and it would look as if memory grew. Without what is loaded little lasts.
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
