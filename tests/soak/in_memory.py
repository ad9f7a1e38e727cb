"""The part of a soak in one process, threads and an event loop on one store.

`python -m tests.soak.in_memory SECONDS SEED`.

The parent starts it, so that the memory of this process consists of the queue and its ledger.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, Final

import tubes
from tests.soak.long_ledger import Marks
from tests.soak.plan import BACKLOG, PLANS, SLACK, TTR, draw_work_time, is_early, task
from tests.soak.report import Part
from tests.soak.samples import Sample, resident
from tests.soak.watched import Watched
from tests.support.processes import python
from tubes import TaskNotFound, TaskNotTaken

_URL: Final = "memory://soak"
_EVERY: Final = 0.5
#: Seconds to wait for workers to finish the remaining tasks.
_PATIENCE: Final = 30.0


class Inside:
    """Producers and workers on all tubes, each a thread or a task of an event loop."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._numbers = count()
        self._stop = threading.Event()
        #: Ids of buried tasks by tube, because a kick ends a delay too.
        self._buried = {name: Marks() for name in PLANS}
        self._lock = threading.Lock()
        self._queue = tubes.connect(_URL)
        self.watched = {name: Watched(self._queue, name) for name in PLANS}
        self.mistakes: list[str] = []
        self.counts: Counter[str] = Counter()
        self._began = time.monotonic()
        self._until = math.inf

    def run(self, seconds: float) -> None:
        """Run for `seconds`, then finish the remaining tasks."""
        acts: list[Callable[[random.Random], object]] = [self._produce, self._produce, self._work, self._work]
        acts += [self._work, self._bury, lambda rng: asyncio.run(self._loop(rng))]
        threads = [
            threading.Thread(target=self._guarded, args=(act, number), daemon=True) for number, act in enumerate(acts)
        ]
        for thread in threads:
            thread.start()
        while time.monotonic() - self._began < seconds:
            time.sleep(_EVERY)
            now = time.monotonic() - self._began
            put = sum(one.ledger.count_put for one in self.watched.values())
            done = sum(one.ledger.count_done for one in self.watched.values())
            print("sample", json.dumps((now, put, done, {"process": resident(os.getpid())})), flush=True)
            for one in self.watched.values():
                one.forget_finished()
        self._until = time.monotonic() + _PATIENCE
        self._stop.set()
        for thread in threads:
            thread.join()
        for one in self.watched.values():
            if left := one.tube.statistics().tasks["total"]:
                self._record_mistake(one, f"{left} tasks were left that no worker took within {_PATIENCE:g} s")
            one.ledger.close(one.tube)
            self.mistakes += one.mistakes
        self._queue.close()

    def _is_done(self) -> bool:
        """Return True if the soak is over and all tasks are finished, or no worker is left."""
        if not self._stop.is_set():
            return False
        left = any(one.tube.statistics().tasks["total"] for one in self.watched.values())
        return not left or time.monotonic() > self._until

    def _guarded(self, act: Callable[[random.Random], object], number: int) -> None:
        try:
            act(random.Random(f"{self._seed}.{number}"))
        except Exception as error:
            self.mistakes.append(f"{act} ended: {error!r}")

    def _trouble(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _record_mistake(self, one: Watched, mistake: str) -> None:
        one.ledger.mistakes.append(mistake)

    def _produce(self, rng: random.Random) -> None:
        """Put tasks one at a time and in batches."""
        with tubes.connect(_URL) as queue:
            there = {name: queue.tube(name) for name in PLANS}
            while not self._stop.is_set():
                for name, tube in there.items():
                    ledger = self.watched[name].ledger
                    if tube.statistics().tasks["total"] > BACKLOG:
                        time.sleep(0.001)
                        continue
                    made = [task(PLANS[name], str(next(self._numbers)), rng) for _ in range(rng.choice((1, 1, 10)))]
                    if len(made) == 1:
                        ledger.put(tube, made[0][0], **made[0][1])
                        continue
                    for one in tube.put_many([tubes.Item(data, **options) for data, options in made]):
                        ledger.record_put(one.data, one.id)

    def _work(self, rng: random.Random) -> None:
        """Take and ack from any tube; closing a session with a held task simulates a killed worker."""
        while not self._is_done():
            with tubes.connect(_URL) as queue:
                there = [queue.tube(name) for name in PLANS]
                for _ in range(rng.randrange(2000)):
                    taken = queue.take_any(there, timeout=0.05, fair=True)
                    if taken is None:
                        if self._is_done():
                            return
                        continue
                    since = self._record_take(taken)
                    if rng.random() < 0.02:
                        with suppress(TaskNotTaken):  # Another thread has buried it.
                            taken.release()
                        continue
                    time.sleep(draw_work_time(PLANS[taken.tube], rng) if rng.random() < 0.05 else 0)
                    self._ack(taken, since)
                if (taken := there[rng.randrange(len(there))].take(timeout=0)) is not None:
                    self._record_take(taken)
            self._trouble("session closed")

    def _record_take(self, taken: Any) -> float:
        one = self.watched[taken.tube]
        one.ledger.record_take(taken.id, taken.attempts, taken.data)
        if is_early(taken.data) and taken.id not in self._buried[taken.tube]:
            self._record_mistake(one, f"task {taken.id} was taken before it was due")
        return time.monotonic()

    def _ack(self, taken: tubes.Task, since: float) -> None:
        one = self.watched[taken.tube]
        held = time.monotonic() - since
        try:
            taken.ack()
        except TaskNotTaken:
            one.ledger.late += 1
        else:
            one.ledger.record_done(taken.id, taken.attempts)
            if PLANS[taken.tube].is_timed and held > TTR + SLACK:
                self._record_mistake(one, f"task {taken.id} was acked after its time to run")

    def _bury(self, rng: random.Random) -> None:
        """Bury random tasks, including taken ones, and kick them again."""
        with tubes.connect(_URL) as queue:
            while not self._stop.wait(rng.random() * 0.05):
                tube = queue.tube(rng.choice(list(PLANS)))
                for found in tube.select(limit=rng.randrange(1, 5)):
                    try:
                        self._buried[tube.name].add(found.id)
                        found.bury("soaked")
                        self._trouble("task buried")
                    except TaskNotFound:
                        continue
                tube.select("buried", limit=10).kick()
            for name in PLANS:
                queue.tube(name).select("buried", limit=10**6).kick()

    async def _loop(self, rng: random.Random) -> None:
        """Work in an event loop, with cancelled takes."""

        async def work(tube: tubes.AsyncTube) -> None:
            one = self.watched[tube.name]
            while not self._stop.is_set():
                waiting = asyncio.ensure_future(tube.take(timeout=0.05))
                await asyncio.sleep(0)
                if rng.random() < 0.05:
                    await asyncio.sleep(rng.random() * 0.002)
                    waiting.cancel()
                    self._trouble("take cancelled")
                try:
                    taken = await waiting
                except asyncio.CancelledError:
                    continue
                if taken is None:
                    continue
                since = self._record_take(taken)
                await asyncio.sleep(draw_work_time(PLANS[tube.name], rng))
                held = time.monotonic() - since
                try:
                    await taken.ack()
                except TaskNotTaken:
                    one.ledger.late += 1
                else:
                    one.ledger.record_done(taken.id, taken.attempts)
                    if PLANS[tube.name].is_timed and held > TTR + SLACK:
                        self._record_mistake(one, f"task {taken.id} was acked after its time to run")

        async with tubes.aio.connect(_URL) as queue:
            await asyncio.gather(*[work(await queue.tube(name)) for name in PLANS for _ in range(3)])


def soak(seconds: float, seed: int) -> Part:
    """Run the soak in a separate process and evaluate it."""
    samples: list[Sample] = []
    result: dict[str, Any] = {"mistakes": ["the process did not come to its end"], "counts": {}, "judged": 0, "late": 0}
    with python("-m", "tests.soak.in_memory", seconds, seed, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                word, _, rest = line.partition(" ")
                if word == "sample":
                    samples.append(Sample(*json.loads(rest)))
                elif word == "end":
                    result = json.loads(rest)
        except BaseException:
            process.kill()
            raise
    return Part(
        "in memory", samples, result["mistakes"], result["counts"], result["judged"], result["late"], (), seconds
    )


def main() -> None:
    """Run the soak in the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    inside = Inside(int(sys.argv[2]))
    inside.run(float(sys.argv[1]))
    end = {
        "mistakes": inside.mistakes,
        "counts": inside.counts,
        "judged": sum(one.judged for one in inside.watched.values()),
        "late": sum(one.ledger.late for one in inside.watched.values()),
    }
    print("end", json.dumps(end), flush=True)


if __name__ == "__main__":
    main()
