"""Measure a subject once: a fresh server, a producer and a worker in separate processes, on one core."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Final, Self

from benchmarks.peers.environments import python_of
from benchmarks.peers.inside.notes import Notes
from benchmarks.peers.processes import Child, PeerFailed, all_cores, one_core, place
from benchmarks.peers.registry import REDIS, Subject
from benchmarks.peers.results import BATCHES, BYTES, CPU_PUT, CPU_WORK, CYCLE, ONE, SEVERAL, WORK, Turn
from benchmarks.peers.servers import STARTS, Server, cpu_seconds

#: Round trips of the yardstick before each measure, and cycles of the yardstick in process.
TRIPS: Final = 1000
CYCLES: Final = 50_000
#: Repetitions of a measure in process, which is short; the median counts.
PASSES: Final = 3
#: Tasks put before the first measure.
WARM: Final = 50
#: Seconds to wait for a worker to handle all tasks, and milliseconds for measuring its wake-up.
PATIENCE: Final = 60.0
WAKE: Final = 800


class Stage:
    """The environment of the measurements: a folder for logs, and the times of the yardsticks."""

    def __init__(self, server: str, share: float) -> None:
        self._redis = server
        #: The fraction of each subject's tasks to put, and of the time for measuring wake-ups.
        self._share = share
        self._folder = tempfile.TemporaryDirectory(prefix="peers-")
        self.folder = Path(self._folder.name)
        #: Seconds of a raw PING, and of a cycle of queue.Queue.
        self.pings: list[float] = []
        self.queues: list[float] = []

    def _settings(self, server: Server | None, way: str = "") -> dict[str, str]:
        address = {"PEERS_HOST": server.host, "PEERS_PORT": str(server.port)} if server else {}
        return {**address, "PEERS_WAY": way, "PEERS_NOTES": str(self.folder / "notes")}

    def _pinger(self, stack: ExitStack) -> Callable[[], float]:
        """Return the seconds of a raw PING now, to a separate server that is the same for all subjects."""
        server = stack.enter_context(closing(STARTS[self._redis]()))
        place([server.pid], one_core())
        log = self.folder / "ping.log"
        child = stack.enter_context(Child(python_of(()), "ping", "produce", self._settings(server), log))

        def ping() -> float:
            self.pings.append(child.ask(f"one {TRIPS}")["seconds"] / TRIPS)
            return self.pings[-1]

        return ping

    def _tasks(self, subject: Subject) -> int:
        return max(100, int(subject.tasks * self._share)) if subject.tasks >= 100 else subject.tasks

    def turn(self, subject: Subject) -> tuple[Turn, dict[str, str]]:
        """Measure a subject once, with the versions of its packages. Raises an error that says why this fails."""
        python = python_of(subject.packages)
        if not subject.server:
            return self._cycles(subject, python)
        turn = Turn()
        with ExitStack() as stack:
            server = stack.enter_context(closing(STARTS[self._redis if subject.server == REDIS else subject.server]()))
            place([server.pid], one_core())
            notes_file = self.folder / "notes"
            notes_file.unlink(missing_ok=True)
            ping = self._pinger(stack)
            settings = self._settings(server, subject.way)
            log = self.folder / f"{subject.module}.log"
            producer = stack.enter_context(Child(python, subject.module, "produce", settings, log))
            found = _versions(producer, subject)
            put = self._puts(subject, server, producer, turn, ping)
            notes = Notes(notes_file)
            trip = ping()
            worked = cpu_seconds(server.pid)
            worker_log = self.folder / f"{subject.module}-worker.log"
            worker = stack.enter_context(Child(python, subject.module, "work", settings, worker_log))
            _await(worker, notes, put)
            turn.costs[CPU_WORK] = (cpu_seconds(server.pid) - worked) / put
            # Measure the yardstick again: the load may have changed while the worker started.
            turn.rate(WORK, put - 1, notes.seconds, (trip + ping()) / 2)
            place([server.pid, *producer.pids(), *worker.pids()], all_cores())
            producer.ask(f"wake {WAKE * self._share:.0f}")
            turn.latencies = notes.latencies
        return turn, found

    def _puts(self, subject: Subject, server: Server, producer: Child, turn: Turn, ping: Callable[[], float]) -> int:
        """Put tasks in each supported way; return their number."""
        can = producer.ask("can 0")
        tasks = self._tasks(subject)
        producer.ask(f"one {WARM}")
        put = WARM
        if not subject.puts:
            word = "batches" if can["batches"] and tasks >= 100 else "one"
            producer.ask(f"{word} {tasks}")
            return put + (tasks // 100 * 100 if word == "batches" else tasks)
        memory, cpu = server.memory(), cpu_seconds(server.pid)
        trip = ping()
        turn.rate(ONE, tasks, producer.ask(f"one {tasks}")["seconds"], trip)
        turn.costs[CPU_PUT] = (cpu_seconds(server.pid) - cpu) / tasks
        # Read this before more clients connect, because they need memory too.
        turn.costs[BYTES] = (server.memory() - memory) / tasks
        put += tasks
        for word, measure, part in (("several", SEVERAL, 50), ("batches", BATCHES, 100)):
            if can[word]:
                trip = ping()
                count = tasks // part * part
                turn.rate(measure, count, producer.ask(f"{word} {count}")["seconds"], trip)
                put += count
        return put

    def _cycles(self, subject: Subject, python: str) -> tuple[Turn, dict[str, str]]:
        turn, tasks = Turn(), subject.tasks
        log = self.folder / "cycles.log"
        with (
            Child(python, subject.module, "produce", self._settings(None, subject.way), log) as child,
            Child(python_of(()), subject.module, "produce", self._settings(None, "queue.Queue"), log) as yardstick,
        ):
            found = _versions(child, subject)
            child.ask(f"cycle {max(100, tasks // 10)}")
            passes: list[tuple[float, float]] = []
            for _ in range(PASSES):
                self.queues.append(yardstick.ask(f"cycle {CYCLES}")["seconds"] / CYCLES)
                passes.append((child.ask(f"cycle {tasks}")["seconds"], self.queues[-1]))
            seconds, trip = sorted(passes, key=lambda both: both[0] / both[1])[PASSES // 2]
            turn.rate(CYCLE, tasks, seconds, trip)
        return turn, found

    def yardsticks(self) -> dict[str, float]:
        """Return the medians of all measurements of the yardsticks, per second."""
        found = (("PING", self.pings), ("queue.Queue", self.queues))
        return {name: 1 / median(times) for name, times in found if times}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


def _versions(child: Child, subject: Subject) -> dict[str, str]:
    names = [package.partition("[")[0] for package in subject.packages]
    return child.ask(f"versions {','.join(names)}") if names else {}


def _await(worker: Child, notes: Notes, put: int) -> None:
    """Wait until all tasks are handled."""
    deadline = time.monotonic() + PATIENCE
    while notes.count < put:
        if worker.has_ended():
            raise PeerFailed(f"its worker ended: {worker.last_words()}")
        if time.monotonic() > deadline:
            raise PeerFailed(f"{notes.count} of {put} tasks handled within {PATIENCE:g} s: {worker.last_words()}")
        time.sleep(0.02)
