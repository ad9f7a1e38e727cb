"""The part of a soak on a real server: producer and worker processes, and chaos."""

from __future__ import annotations

import random
import signal
import threading
import time
from contextlib import ExitStack
from itertools import count
from typing import Any, Final

import tubes
from tests.soak.actors import Actor, Job
from tests.soak.chaos import Chaos
from tests.soak.plan import PLANS
from tests.soak.report import Part
from tests.soak.samples import Sample, resident
from tests.soak.watched import Watched
from tests.support.lasting import OUTLIVES_KILLS
from tests.support.proxy import Proxy
from tubes.testing import LocalServer

#: The first half is never killed, so that its memory can be measured.
_WORKERS: Final = (
    Job("handlers", "timed", False),
    Job("loop", "fifo", False),
    Job("aio", "lanes", False),
    Job("batches", "timed-lanes", True),
    Job("work_singly", "unwatched", True),
    Job("aio", "timed-lanes", True),
    Job("batches", "fifo", True),
    Job("loop", "lanes", True),
    Job("work_singly", "timed", True),
    Job("batches", "unwatched", False),
)
_PRODUCERS: Final = (Job("producer", "fifo", True), Job("aio_producer", "fifo", False))
#: Seconds to wait for workers to finish the remaining tasks.
_PATIENCE: Final = 90.0


def soak(
    seconds: float, seed: int, *, program: str = "valkey", pause: float = 1.0, workers: int = len(_WORKERS)
) -> Part:
    """Run a soak and evaluate it. `pause`: the average seconds between faults; `workers`: five are one per tube."""
    rng = random.Random(seed)
    seeds = (str(number) for number in count(seed * 1000))
    with ExitStack() as stack:
        server = stack.enter_context(LocalServer(program, **OUTLIVES_KILLS))
        proxy = stack.enter_context(Proxy(server))
        queue = stack.enter_context(tubes.connect(server.url, session_ttl=31.0))
        watched = {name: Watched(queue, name) for name in PLANS}
        ledgers = {name: one.ledger for name, one in watched.items()}

        def hire(job: Job) -> Actor:
            return Actor(proxy.url if job.is_far else server.url, job, next(seeds), ledgers)

        producers = [hire(job) for job in _PRODUCERS]
        team = [hire(job) for job in _WORKERS[:workers]]
        stack.callback(_kill, producers, team)
        for actor in producers + team:
            assert actor.is_ready.wait(_PATIENCE), f"{actor.job} did not start"
        chaos = Chaos(server, proxy, team, lambda actor: hire(actor.job), list(watched.values()), rng)
        spared = {f"{actor.job.mode} of {actor.job.tube}": actor.process.pid for actor in team[: chaos.spared]}
        makers = {actor.job.mode.replace("_", " "): actor.process.pid for actor in producers}
        began = time.monotonic()
        meter = Meter(server, watched, {**spared, **makers}, began)
        stack.callback(meter.close)
        chaos.run(began + seconds, pause)
        meter.close()
        for actor in producers + team:
            actor.report_silence()
        for actor in producers:
            actor.end(signal.SIGTERM)
        mistakes = _finish(watched, team)
        troubles = [(when - began, what) for when, what in chaos.log]
        judged = sum(one.judged for one in watched.values())
        late = sum(one.ledger.late for one in watched.values())
        for one in watched.values():
            mistakes += one.mistakes
        return Part(f"on a {program}", meter.samples, mistakes, chaos.counts, judged, late, troubles, seconds)


def _kill(*many: list[Actor]) -> None:
    """Kill all processes, including ended ones."""
    for actors in many:
        for actor in actors:
            actor.process.kill()


def _finish(watched: dict[str, Watched], team: list[Actor]) -> list[str]:
    """Let the workers finish the remaining tasks, end them and close the ledgers."""
    mistakes: list[str] = []
    until = time.monotonic() + _PATIENCE
    while any(one.tube.statistics().tasks["total"] for one in watched.values()) and time.monotonic() < until:
        time.sleep(0.05)
    for actor in team:
        actor.end()
    for name, one in watched.items():
        if left := one.tube.statistics().tasks["total"]:
            mistakes.append(f"{name}: {left} tasks were left that no worker took within {_PATIENCE:g} s")
        one.ledger.close(one.tube)
        one.forget_finished()
    return mistakes


class Meter:
    """Take samples periodically in a separate thread."""

    _EVERY: Final = 0.5

    def __init__(
        self, server: LocalServer, watched: dict[str, Watched], processes: dict[str, int], began: float
    ) -> None:
        self.samples: list[Sample] = []
        self._server = server
        self._watched = list(watched.values())
        self._processes = processes
        self._began = began
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._EVERY):
            for one in self._watched:
                one.forget_finished()
            memory = {name: resident(process) for name, process in self._processes.items()}
            try:
                with self._server.client() as client:
                    memory_info: Any = client.info("memory")
            except Exception:  # The process is killed and about to be restarted.
                continue
            put = sum(one.ledger.count_put for one in self._watched)
            done = sum(one.ledger.count_done for one in self._watched)
            sample = Sample(time.monotonic() - self._began, put, done, {"server": memory_info["used_memory"], **memory})
            self.samples.append(sample)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
